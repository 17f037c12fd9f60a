//! Copies between the host and tiers below that are under way.

use hashbrown::HashMap;

use super::asked::Asked;
use super::kept::Keep;
use super::stats::TierStats;
use super::tips::Tip;
use crate::ids::{EntryId, NodeId};
use crate::slab::Slab;
use crate::tier::{Below, CopyId};

/// A tier below, with counts.
pub(super) struct Level {
    pub(super) tier: Box<dyn Below>,
    /// Slots of the host that writes to it hold.
    pub(super) queued: u64,
    /// Boundaries and classes of reads that failed, and the blocks: the tier may have these entries still, and is asked
    /// again.
    pub(super) unread: HashMap<(NodeId, usize), usize>,
    /// The page that is held in it instead of the prefix that it ends, while room is made.
    pub(super) tip: Option<Tip>,
    pub(super) asked: Asked,
    pub(super) stats: TierStats,
}

impl Level {
    pub(super) fn new(tier: Box<dyn Below>) -> Self {
        let stats = TierStats {
            name: tier.name().to_owned(),
            ..TierStats::default()
        };
        Self {
            tier,
            queued: 0,
            unread: HashMap::new(),
            tip: None,
            asked: Asked::default(),
            stats,
        }
    }

    pub(super) fn stats(&self) -> TierStats {
        TierStats {
            usage: self.tier.room().usage(),
            ..self.stats.clone()
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let kept = self.unread.allocation_size() + self.asked.bytes();
        size_of::<Self>() + self.tier.room().bytes() + kept
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the host to the tier.
    Down,
    /// From the tier to the host.
    Up,
    /// From the tier, which has it as long as this lasts, into slots of the host that no lookup sees.
    Through(Keep),
}

/// A copy that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copy {
    pub(super) id: EntryId,
    pub(super) tier: usize,
    pub(super) direction: Direction,
    pub(super) batch: u32,
}

/// What is held in the host until copies have ended.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// In the order in which it is let go: the deepest first.
    pub(super) entries: Vec<EntryId>,
    /// The page among them that is held instead of the prefix that it ends.
    pub(super) tip: Option<Tip>,
}

#[derive(Debug)]
struct Batch {
    held: Held,
    left: u32,
}

/// Copies under way.
#[derive(Debug)]
pub(super) struct Copies {
    started: u64,
    running: HashMap<CopyId, Copy>,
    batches: Slab<Batch>,
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
    /// Opens a batch. It ends with its last copy, after [`leave`](Self::leave).
    pub(super) fn open(&mut self, held: Held) -> u32 {
        self.batches.insert(Batch { held, left: 1 })
    }

    /// A batch holds more, which stands on nothing that it holds: the deepest first.
    pub(super) fn hold_more(&mut self, batch: u32, entries: &[EntryId]) {
        let held = &mut self.batches.get_mut(batch).held.entries;
        held.extend_from_slice(entries);
    }

    /// A batch holds more, which may stand on what it holds: the deepest first.
    pub(super) fn hold_deeper(&mut self, batch: u32, entries: impl IntoIterator<Item = EntryId>) {
        let held = &mut self.batches.get_mut(batch).held.entries;
        held.splice(..0, entries);
    }

    /// A name for a copy that is about to start.
    pub(super) fn start(
        &mut self,
        id: EntryId,
        tier: usize,
        direction: Direction,
        batch: u32,
    ) -> CopyId {
        let copy = CopyId(self.started);
        self.started += 1;
        self.batches.get_mut(batch).left += 1;
        let running = Copy {
            id,
            tier,
            direction,
            batch,
        };
        self.running.insert(copy, running);
        copy
    }

    /// The copy of a tier that ended. Reports of copies that are not under way are ignored.
    pub(super) fn end(&mut self, copy: CopyId, tier: usize) -> Option<Copy> {
        self.running.get(&copy).filter(|copy| copy.tier == tier)?;
        self.running.remove(&copy)
    }

    /// One copy fewer, or the batch has all its copies. With the last one it ends: returns what it held.
    pub(super) fn leave(&mut self, batch: u32) -> Option<Held> {
        let record = self.batches.get_mut(batch);
        record.left -= 1;
        (record.left == 0).then(|| self.batches.remove(batch).held)
    }

    /// Copies that were ever started.
    pub(super) const fn started(&self) -> u64 {
        self.started
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Copy> {
        self.running.values()
    }

    pub(super) fn bytes(&self) -> usize {
        self.running.allocation_size() + self.batches.bytes()
    }
}
