//! Ages brought up to date, the worth of checkpoints, and which one is evicted next.
//!
//! The *worth* of a checkpoint is its Gittins index, its own or an inherited one, times its density (blocks that it
//! saves over the size that its eviction frees) and the scale of its priority: the expected saving per size and time.

use super::ages::Life;
use super::hazard::{BINS, Features};
use super::order::{Order, SURPLUS, WAITING};
use super::origin::{CheckpointKind, Origin};
use super::record::CLIMB;
use super::state::Reuse;
use crate::ids::{EntryId, TenantId};

/// The most ages that one request brings up to date.
const UPDATES: usize = 1024;
/// The most checkpoints that one eviction weighs anew.
const RESCORES: usize = 64;
/// Number of bins after which a checkpoint is weighed anew.
const WEIGHING: usize = 8;
/// How many times the threshold a checkpoint's worth must be for its Gittins index to be renewed one bin late.
const SAFE: f32 = 8.0;
/// How many times the threshold a checkpoint's worth must be for its index to be renewed three bins late, and for it
/// not to be weighed.
const FAR: f32 = 64.0;

/// Factors of worth by priority, from the least priority on: a step doubles it.
const SCALES: [f32; 21] = {
    let mut scales = [1.0; 21];
    let mut step = 1;
    while step <= 10 {
        scales[10 + step] = scales[9 + step] * 2.0;
        scales[10 - step] = scales[11 - step] / 2.0;
        step += 1;
    }
    scales
};

/// The factor by which a priority multiplies worth.
pub(super) fn scale(priority: i8) -> f32 {
    SCALES[(i16::from(priority) + 10).clamp(0, 20) as usize]
}

impl Reuse {
    /// Brings ages up to date: every bin that has passed is learned from and changes Gittins indexes. It goes from
    /// the oldest bin to the youngest, so that each bin stays in order.
    pub(super) fn grow_older(&mut self) {
        let mut left = UPDATES;
        for bin in (0..BINS - 1).rev() {
            let end = self.hazards.end(bin);
            while left > 0
                && let Some(life) = self.records.ages.pop(bin, end, self.now)
            {
                let passed = self.visit(life, bin);
                left = left.saturating_sub(passed);
            }
        }
    }

    /// Moves a life out of a bin whose end it has reached. Returns the number of bins that it has passed since it was
    /// put there.
    fn visit(&mut self, mut life: Life, bin: usize) -> usize {
        let Some(watched) = self.records.ages.goes_on(&life) else {
            return 1;
        };
        if watched {
            life.features = self.records[life.record].features;
        }
        let age = self.now.saturating_sub(life.since);
        let mut next = bin;
        while next < BINS - 1 && age >= self.hazards.end(next) {
            if life.teaches {
                self.hazards.learn(&life.features, next, 1.0, false);
            }
            next += 1;
        }
        let weigh = bin % WEIGHING == WEIGHING / 2;
        if watched && (weigh || !life.is_fresh(next)) {
            life.keep_until(next + self.renew(life.record, next, weigh));
        }
        self.records.ages.push(next, life);
        next - bin
    }

    /// Brings the Gittins index of a record up to date, and renews it with the record's age from now on.
    pub(super) fn watch(&mut self, at: u32) {
        let record = &mut self.records[at];
        let bin = self.hazards.bin(self.now.saturating_sub(record.since));
        record.index = self.hazards.index(&record.features, bin);
        self.records.ages.watch(at, true);
    }

    /// Renews the Gittins index of a record that has grown older. Returns the number of further bins for which that is
    /// not needed again.
    fn renew(&mut self, at: u32, bin: usize, weigh: bool) -> usize {
        let leads = self.leads(at);
        let record = &mut self.records[at];
        if !record.is_resident() && !leads {
            self.records.ages.watch(at, false);
            return 0;
        }
        record.index = self.hazards.index(&record.features, bin);
        if leads {
            self.bequeath(at);
            return 0;
        }
        if weigh && !self.exceeds(at, FAR) {
            self.weigh(at);
        }
        self.place(at);
        usize::from(self.exceeds(at, SAFE)) + 2 * usize::from(self.exceeds(at, FAR))
    }

    /// Whether the worth of a record is at least so many times the threshold.
    fn exceeds(&self, at: u32, times: f32) -> bool {
        self.threshold > 0.0 && self.worth(at) >= times * self.threshold
    }

    /// Learns from the part of the present bin that a record has lived through, which ends with a use or without.
    pub(super) fn conclude(&mut self, at: u32, used: bool) {
        if self.records.past[at].resumed {
            return;
        }
        let record = &self.records[at];
        let age = self.now.saturating_sub(record.since);
        let bin = self.hazards.bin(age);
        let share = self.hazards.share(bin, age);
        self.hazards.learn(&record.features, bin, share, used);
    }

    /// Begins a new life of a record.
    pub(super) fn begin(&mut self, at: u32, kind: CheckpointKind, origin: Origin) {
        self.records.past[at].resumed = false;
        self.live(at, kind, origin, 0);
    }

    /// Begins the life of a record that an earlier process made and of which only the age is known. Nothing is learned
    /// from it: of such entries, only those that are used are ever met again.
    pub(super) fn resume(&mut self, at: u32, age: u64) {
        self.records.past[at].resumed = true;
        self.live(at, CheckpointKind::End, Origin::UNKNOWN, age);
    }

    fn live(&mut self, at: u32, kind: CheckpointKind, origin: Origin, age: u64) {
        let past = &mut self.records.past[at];
        past.kind = kind;
        past.origin = origin;
        let features = Features::new(kind, past.hits, &origin);
        let teaches = !past.resumed;
        let since = self.now.saturating_sub(age);
        let record = &mut self.records[at];
        record.features = features;
        record.superseded = false;
        record.since = since;
        let bin = self.hazards.bin(self.now - since);
        record.index = self.hazards.index(&record.features, bin);
        self.records.ages.begin(at, since, features, teaches);
        self.records.touch(at);
        self.place(at);
    }

    /// The worth of a record: expected saving per size and time.
    fn worth(&self, at: u32) -> f32 {
        let record = &self.records[at];
        if record.superseded {
            return 0.0;
        }
        record.index.max(record.inherited) * record.density * scale(record.priority)
    }

    /// Renews the density of a resident record from what the eviction of its checkpoint would free and cost.
    fn weigh(&mut self, at: u32) {
        let mut weight = self.tree.weigh(EntryId(self.records[at].entry));
        if let Some(above) = self.passed(at) {
            // A boundary without pages is forgotten, and then its key may come for another block.
            weight.blocks = weight.blocks.saturating_sub(self.records.past[above].depth);
        }
        self.records[at].density = weight.blocks as f32 / weight.size.max(1) as f32;
    }

    /// The record of the nearest resident checkpoint above one that needs no page.
    pub(super) fn passed(&self, at: u32) -> Option<u32> {
        if !self
            .tree
            .get(EntryId(self.records[at].entry))
            .stands_alone()
        {
            return None;
        }
        let mut upper = at;
        for _ in 0..CLIMB {
            upper = self.records.above(upper)?;
            if self.records[upper].is_resident() {
                return Some(upper);
            }
        }
        None
    }

    /// Makes the checkpoint of a resident record evictable.
    pub(super) fn offer(&mut self, at: u32) {
        if self.records[at].density == 0.0 {
            self.weigh(at);
        }
        self.list(at, Order::bucket(self.worth(at)));
    }

    /// Lists an evictable checkpoint by its worth.
    fn list(&mut self, at: u32, bucket: usize) {
        self.order.put(at, bucket);
        let entry = EntryId(self.records[at].entry);
        self.tenants.put(entry, 1 + Order::octave(bucket));
    }

    /// Moves an evictable record to where its worth belongs in the order.
    pub(super) fn place(&mut self, at: u32) {
        if self.order.has(at) {
            self.list(at, Order::bucket(self.worth(at)));
        }
    }

    /// Weighs a resident record and moves it to where its worth belongs in the order.
    pub(super) fn score(&mut self, at: u32) {
        self.weigh(at);
        self.place(at);
    }

    /// The checkpoint of least worth.
    pub(super) fn least(&mut self) -> Option<u32> {
        for _ in 0..RESCORES {
            let (at, bucket) = self.order.least()?;
            // It may be worth more than when it was last weighed.
            self.weigh(at);
            let worth = self.worth(at);
            let now = Order::bucket(worth);
            if now <= bucket {
                if self.records[at].superseded {
                    return Some(at); // It tells nothing of the worth of the others.
                }
                self.threshold += 0.02 * (worth - self.threshold);
                return Some(at);
            }
            self.list(at, now);
        }
        self.order.least().map(|(at, _)| at)
    }

    /// The entry of a tenant that leaves first, to an octave of worth.
    pub(super) fn least_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        for _ in 0..RESCORES {
            let (id, rank) = self.tenants.least(tenant)?;
            if rank == SURPLUS || rank == WAITING {
                return Some(id);
            }
            let at = self.tree.get(id).record();
            self.weigh(at);
            let bucket = Order::bucket(self.worth(at));
            if Order::octave(bucket) < rank {
                return Some(id);
            }
            self.list(at, bucket);
        }
        self.tenants.least(tenant).map(|(id, _)| id)
    }
}
