//! Ages, worth, and what goes next.

use super::Reuse;
use super::hazard::{BINS, EARLY, Features, Kind, Origin};
use super::order::Order;
use super::record::CLIMB;
use super::tree::Weight;
use crate::ids::EntryId;

/// Ages that one request brings up to date at most.
const UPDATES: usize = 1024;
/// Rescorings that one eviction does at most.
const RESCORES: usize = 64;
/// First age bin of which only every other renews the index: about a quarter of an hour.
const COARSE: usize = EARLY + 20;
/// Of so many bins that pass, one weighs a checkpoint anew.
const WEIGHING: usize = 8;

impl Reuse {
    /// Brings ages up to date: every bin that has passed is learned from and changes the index. From the
    /// oldest bin to the youngest, so that each stays in order.
    pub(super) fn grow_older(&mut self) {
        let mut left = UPDATES;
        for bin in (0..BINS - 1).rev() {
            if self.now < self.due[bin] {
                continue;
            }
            while let Some(at) = self.records.ages.first(bin) {
                let record = self.records[at];
                let age = self.now.saturating_sub(record.since);
                let mut next = bin;
                while next < BINS - 1 && age >= self.hazards.end(next) && left > 0 {
                    self.hazards.learn(&record.features, next, 1.0, false);
                    next += 1;
                    left -= 1;
                }
                if next == bin {
                    self.due[bin] = record.since + self.hazards.end(bin);
                    break;
                }
                self.records.ages.push(next, at);
                self.records[at].bin = next as u8;
                // Later, an index that is half an octave old is good enough.
                if next > COARSE && next - bin == 1 && bin % 2 == 0 {
                    continue;
                }
                self.renew(at, bin % WEIGHING == 0);
            }
        }
    }

    /// Brings the index of a record up to date that has grown older.
    fn renew(&mut self, at: u32, weigh: bool) {
        let leads = self.leads(at);
        let record = &mut self.records[at];
        if record.is_resident() || leads {
            record.index = self.hazards.index(&record.features, record.bin.into());
        }
        if record.is_resident() {
            if weigh {
                self.weigh(at);
            }
            self.place(at);
        } else if leads {
            self.bequeath(at);
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
