//! Copies between the host and tiers below that are under way.

use hashbrown::HashMap;

use super::prefix_pins::PinSet;
use super::tier_pins::TierPin;
use crate::ids::EntryId;
use crate::slab::Slab;
use crate::tier::CopyId;

/// Which way a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyDirection {
    /// From the host to the tier.
    Down,
    /// From the tier to the host.
    Up,
    /// From the tier, where the entry is pinned, into slots of the host that no lookup sees.
    Through(TierPin),
}

/// A copy that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunningCopy {
    pub(super) id: EntryId,
    pub(super) tier: usize,
    pub(super) direction: CopyDirection,
    pub(super) batch: u32,
}

/// Copies whose pins end together.
#[derive(Debug)]
struct PendingBatch {
    pinned: PinSet,
    /// The number of copies that have not ended, plus one until all were started.
    left: u32,
}

/// Copies under way, in batches.
#[derive(Debug)]
pub(super) struct Copies {
    started: u64,
    running: HashMap<CopyId, RunningCopy>,
    batches: Slab<PendingBatch>,
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            started: 0,
            running: HashMap::new(),
            batches: Slab::new(),
        }
    }
}

impl Copies {
    /// Opens a batch. It ends with the last of its copies, after [`leave`](Self::leave).
    pub(super) fn open(&mut self, pinned: PinSet) -> u32 {
        self.batches.insert(PendingBatch { pinned, left: 1 })
    }

    /// Adds to a batch's pins entries that hang from none of the pinned ones: the deepest first.
    pub(super) fn pin_more(&mut self, batch: u32, entries: &[EntryId]) {
        let pinned = &mut self.batches.get_mut(batch).pinned.entries;
        pinned.extend_from_slice(entries);
    }

    /// Adds to a batch's pins entries that may hang from pinned ones: the deepest first.
    pub(super) fn pin_deeper(&mut self, batch: u32, entries: impl IntoIterator<Item = EntryId>) {
        let pinned = &mut self.batches.get_mut(batch).pinned.entries;
        pinned.splice(..0, entries);
    }

    /// A name for a copy that is about to start.
    pub(super) fn start(
        &mut self,
        id: EntryId,
        tier: usize,
        direction: CopyDirection,
        batch: u32,
    ) -> CopyId {
        let copy = CopyId(self.started);
        self.started += 1;
        self.batches.get_mut(batch).left += 1;
        let running = RunningCopy {
            id,
            tier,
            direction,
            batch,
        };
        self.running.insert(copy, running);
        copy
    }

    /// A copy of a tier that is under way.
    pub(super) fn find(&self, copy: CopyId, tier: usize) -> Option<RunningCopy> {
        self.running
            .get(&copy)
            .copied()
            .filter(|copy| copy.tier == tier)
    }

    /// Ends a copy of a tier and returns it. Reports of copies that are not under way are ignored.
    pub(super) fn end(&mut self, copy: CopyId, tier: usize) -> Option<RunningCopy> {
        self.find(copy, tier)?;
        self.running.remove(&copy)
    }

    /// Counts one copy of a batch as ended, or all its copies as started. The batch ends with the last copy: then this
    /// returns its pins.
    pub(super) fn leave(&mut self, batch: u32) -> Option<PinSet> {
        let record = self.batches.get_mut(batch);
        record.left -= 1;
        (record.left == 0).then(|| self.batches.remove(batch).pinned)
    }

    /// Copies that were ever started.
    pub(super) const fn started(&self) -> u64 {
        self.started
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &RunningCopy> {
        self.running.values()
    }

    /// Batches that have not ended.
    #[cfg(shuttle)] // tests/rust/races
    pub(super) const fn batches(&self) -> usize {
        self.batches.len()
    }

    /// Whether each batch waits for its own copies, and maybe for more to be started.
    pub(super) fn are_in_batches(&self) -> bool {
        let mut of_batch = HashMap::<u32, u32>::new();
        for copy in self.running.values() {
            *of_batch.entry(copy.batch).or_default() += 1;
        }
        let counts_its_own = |(batch, record): (u32, &PendingBatch)| {
            let copies = of_batch.remove(&batch).unwrap_or_default();
            record.left > 0 && (copies..=copies + 1).contains(&record.left)
        };
        self.batches.iter().all(counts_its_own) && of_batch.is_empty()
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.running.allocation_size() + self.batches.bytes()
    }
}
