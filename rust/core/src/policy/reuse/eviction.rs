//! Ages, worth, and what goes next.

use super::Reuse;
use super::ages::Life;
use super::hazard::{BINS, Features, Kind, Origin};
use super::order::{OCTAVES, Order};
use super::record::CLIMB;
use crate::ids::{EntryId, TenantId};

/// Ages that one request brings up to date at most.
const UPDATES: usize = 1024;
/// Rescorings that one eviction does at most.
const RESCORES: usize = 64;
/// Of so many bins that pass, one weighs a checkpoint anew.
const WEIGHING: usize = 8;
/// A checkpoint of so many times the worth of what is being evicted may have an index that is one bin old.
const SAFE: f32 = 8.0;
/// Of so many times: three bins, and need not be weighed.
const FAR: f32 = 64.0;

/// What leaves first of a tenant's: pages that are worth nothing, checkpoints by octaves of worth, pages
/// that wait for their checkpoint.
pub(super) const SURPLUS: usize = 0;
pub(super) const WAITING: usize = 1 + OCTAVES;
pub(super) const RANKS: usize = WAITING + 1;

/// Worth by priority, from the least one on: a step doubles it.
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

/// How much a priority multiplies worth by.
pub(super) fn scale(priority: i8) -> f32 {
    SCALES[(i16::from(priority) + 10).clamp(0, 20) as usize]
}

impl Reuse {
    /// Brings ages up to date: every bin that has passed is learned from and changes the index. From the
    /// oldest bin to the youngest, so that each stays in order.
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

    /// A life leaves a bin. Returns how many it has passed since it came there.
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

    /// The index of a record is that of its age, and is renewed with it from now on.
    pub(super) fn watch(&mut self, at: u32) {
        let record = &mut self.records[at];
        let bin = self.hazards.bin(self.now.saturating_sub(record.since));
        record.index = self.hazards.index(&record.features, bin);
        self.records.ages.watch(at, true);
    }

    /// Brings the index of a record up to date that has grown older. Returns for how many bins more it is good enough.
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

    /// Whether a record is worth so many times what is being evicted.
    fn exceeds(&self, at: u32, times: f32) -> bool {
        self.threshold > 0.0 && self.worth(at) >= times * self.threshold
    }

    /// Learns from what a record has lived through since its last bin.
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
    pub(super) fn begin(&mut self, at: u32, kind: Kind, origin: Origin) {
        self.records.past[at].resumed = false;
        self.live(at, kind, origin, 0);
    }

    /// Goes on with a life of which only its age is known. It teaches nothing: of those like it only the ones that
    /// are used are ever met again.
    pub(super) fn resume(&mut self, at: u32, age: u64) {
        self.records.past[at].resumed = true;
        self.live(at, Kind::End, Origin::UNKNOWN, age);
    }

    fn live(&mut self, at: u32, kind: Kind, origin: Origin, age: u64) {
        let past = &mut self.records.past[at];
        past.kind = kind;
        past.origin = origin;
        let features = Features::new(kind, past.hits, &origin);
        let teaches = !past.resumed;
        let since = self.now.saturating_sub(age);
        let record = &mut self.records[at];
        record.features = features;
        record.since = since;
        let bin = self.hazards.bin(self.now - since);
        record.index = self.hazards.index(&record.features, bin);
        self.records.ages.begin(at, since, features, teaches);
        self.records.touch(at);
        self.place(at);
    }

    /// Expected saving per room and time.
    fn worth(&self, at: u32) -> f32 {
        let record = &self.records[at];
        record.index.max(record.inherited) * record.density * scale(record.priority)
    }

    /// Looks at what the eviction of a resident record's checkpoint would free and cost.
    fn weigh(&mut self, at: u32) {
        let mut weight = self.tree.weigh(EntryId(self.records[at].entry));
        if let Some(above) = self.passed(at) {
            // A boundary without pages is forgotten, and then its key may come for another block.
            weight.blocks = weight.blocks.saturating_sub(self.records.past[above].depth);
        }
        self.records[at].density = weight.blocks as f32 / weight.size.max(1) as f32;
    }

    /// Of a checkpoint that needs no page: the nearest resident one above.
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

    /// A resident record's checkpoint may be evicted from now on.
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

    /// Puts a record where it belongs in the order, if it is there at all.
    pub(super) fn place(&mut self, at: u32) {
        if self.order.has(at) {
            self.list(at, Order::bucket(self.worth(at)));
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
            // It may be worth more than when it was last weighed.
            self.weigh(at);
            let worth = self.worth(at);
            let now = Order::bucket(worth);
            if now <= bucket {
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
