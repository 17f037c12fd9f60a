//! Ages, worth, and what goes next.

use super::Reuse;
use super::hazard::{BINS, Features, Kind, Origin};
use super::order::Order;
use super::record::CLIMB;
use super::tree::Weight;
use crate::ids::EntryId;

/// Ages that one request brings up to date at most.
const UPDATES: usize = 256;
/// Rescorings that one eviction does at most.
const RESCORES: usize = 64;
/// First age bin of which only every other renews the index: about a quarter of an hour.
const COARSE: usize = 20;

impl Reuse {
    /// Brings ages up to date: every bin that has passed is learned from and changes the index.
    pub(super) fn grow_older(&mut self) {
        let mut left = UPDATES;
        for bin in 0..BINS - 1 {
            while let Some(at) = self.records.ages.first(bin) {
                let record = self.records[at];
                if left == 0 || self.now < record.since + self.hazards.end(bin) {
                    break;
                }
                left -= 1;
                self.hazards.learn(&record.features, bin, 1.0, false);
                self.records.ages.push(bin + 1, at);
                self.records[at].bin = bin as u8 + 1;
                // Later, an index that is half an octave old is good enough.
                if bin >= COARSE && bin % 2 == 0 {
                    continue;
                }
                let leads = self.leads(at);
                if record.is_resident() || leads {
                    self.records[at].index = self.hazards.index(&record.features, bin + 1);
                }
                if record.is_resident() {
                    if bin % 2 == 0 {
                        self.weigh(at);
                    }
                    self.place(at);
                } else if leads {
                    self.bequeath(at);
                }
            }
        }
    }

    /// Learns from what a record has lived through since its last bin.
    pub(super) fn conclude(&mut self, at: u32, used: bool) {
        let record = &self.records[at];
        let bin = record.bin.into();
        let age = self.now.saturating_sub(record.since);
        let share = self.hazards.share(bin, age);
        self.hazards.learn(&record.features, bin, share, used);
    }

    /// Begins a new life of a record.
    pub(super) fn begin(&mut self, at: u32, kind: Kind, origin: Origin) {
        let record = &mut self.records[at];
        record.kind = kind;
        record.origin = origin;
        record.features = Features::new(kind, record.hits, &origin);
        record.since = self.now;
        record.bin = 0;
        record.index = self.hazards.index(&record.features, 0);
        let resident = record.is_resident();
        self.records.ages.push(0, at);
        self.records.touch(at);
        if resident {
            self.score(at);
        }
    }

    /// Expected saving a unit of room and time.
    fn worth(&self, at: u32) -> f32 {
        let record = &self.records[at];
        record.index.max(record.inherited) * record.density
    }

    pub(super) fn weigh(&mut self, at: u32) {
        let weight = self.weight(at);
        self.records[at].density = weight.blocks as f32 / weight.units.max(1) as f32;
    }

    /// What the eviction of a resident record's checkpoint would free and cost.
    pub(super) fn weight(&self, at: u32) -> Weight {
        let entry = EntryId(self.records[at].entry);
        let mut weight = self.tree.weigh(entry);
        if !self.tree.get(entry).stands_alone() {
            return weight;
        }
        let mut upper = at;
        for _ in 0..CLIMB {
            let Some(next) = self.records.above(upper) else {
                break;
            };
            upper = next;
            if self.records[next].is_resident() {
                weight.blocks -= self.records[next].depth;
                weight.above = Some(next);
                break;
            }
        }
        weight
    }

    /// Puts a resident record where it belongs in the order.
    fn place(&mut self, at: u32) {
        if !self.tree.get(EntryId(self.records[at].entry)).held {
            let bucket = Order::bucket(self.worth(at));
            self.order.put(at, bucket);
        }
    }

    /// Weighs a resident record and puts it where it belongs.
    pub(super) fn score(&mut self, at: u32) {
        self.weigh(at);
        self.place(at);
    }

    /// The checkpoint of least worth.
    pub(super) fn least(&mut self) -> Option<u32> {
        for _ in 0..RESCORES {
            let (at, bucket) = self.order.least()?;
            // What happened around it since it was last weighed may have made it worth more.
            self.weigh(at);
            let worth = self.worth(at);
            let now = Order::bucket(worth);
            if now <= bucket {
                self.threshold += 0.02 * (worth - self.threshold);
                return Some(at);
            }
            self.order.put(at, now);
        }
        self.order.least().map(|(at, _)| at)
    }
}
