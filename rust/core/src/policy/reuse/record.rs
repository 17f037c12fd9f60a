//! Records of checkpoints: of those that are in the cache (*resident*), and *ghosts* of those that were or might be.

use super::ages::Ages;
use super::hazard::Features;
use super::name_index::NameIndex;
use super::origin::{CheckpointKind, Origin};
use super::unneeded::PATIENCE;
use crate::policy::chunk_table::ChunkTable;
use crate::policy::lists::Lists;

/// No record, no entry.
pub(super) const NONE: u32 = u32::MAX;
/// The most ghosts that are kept.
const GHOSTS: usize = 16_384;

/// The most records that are followed up a prompt.
pub(super) const CLIMB: usize = 32;

/// The record of one checkpoint: how valuable the checkpoint is at its age. A record whose checkpoint is not in the
/// cache is a *ghost*, kept to learn from and to find forks.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckpointRecord {
    /// Time when the checkpoint was made or last used.
    pub(super) since: u64,
    pub(super) features: Features,
    /// The checkpoint's entry; [`NONE`] for a ghost.
    pub(super) entry: u32,
    /// Gittins index at the present age.
    pub(super) index: f32,
    /// Density when the checkpoint was last weighed: blocks that it saves over the size that its eviction would free;
    /// 0 before that.
    pub(super) density: f32,
    /// The largest Gittins index among evicted checkpoints whose requests would now resume at this one.
    pub(super) inherited: f32,
    /// The record that `inherited` is from.
    pub(super) source: u32,
    /// The heir of a ghost: the record of the nearest checkpoint above, which inherits the ghost's Gittins index.
    pub(super) heir: u32,
    /// Priority of the request that stored or last used the checkpoint.
    pub(super) priority: i8,
    /// Whether the checkpoint's conversation has a later end, so that nobody is expected to use it.
    pub(super) superseded: bool,
}

/// The history of one checkpoint, as requests have shown it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    /// Boundary of the next record above, in the prompt of the last request that passed.
    pub(super) above: u64,
    /// Number of the last running request that passes this boundary on its way to a deeper checkpoint, counted from 1;
    /// 0 when it has ended.
    pub(super) running: u64,
    pub(super) origin: Origin,
    pub(super) kind: CheckpointKind,
    pub(super) depth: u32,
    pub(super) hits: u16,
    /// Whether the present life began in an earlier process.
    pub(super) resumed: bool,
}

const BLANK: CheckpointRecord = CheckpointRecord {
    since: 0,
    features: Features::NONE,
    entry: NONE,
    index: 0.0,
    density: 0.0,
    inherited: 0.0,
    source: NONE,
    heir: NONE,
    priority: 0,
    superseded: false,
};

const NO_PAST: Past = Past {
    above: 0,
    running: 0,
    origin: Origin::UNKNOWN,
    kind: CheckpointKind::End,
    depth: 0,
    hits: 0,
    resumed: false,
};

impl CheckpointRecord {
    pub(super) const fn is_resident(&self) -> bool {
        self.entry != NONE
    }
}

impl Past {
    /// Whether a running request may still store pages below the checkpoint.
    pub(super) const fn awaits_more(&self, requests: u64) -> bool {
        self.running > 0 && self.running + PATIENCE >= requests
    }
}

/// All records by number, by boundary and by age.
pub(super) struct CheckpointRecords {
    table: ChunkTable<CheckpointRecord>,
    pub(super) past: ChunkTable<Past>,
    span: u32,
    vacant: Lists,
    names: NameIndex,
    pub(super) ages: Ages,
    /// Ghosts, oldest first.
    ghosts: Lists,
    ghost_count: usize,
}

impl CheckpointRecords {
    pub(super) fn new() -> Self {
        Self {
            table: ChunkTable::new(BLANK),
            past: ChunkTable::new(NO_PAST),
            span: 0,
            vacant: Lists::new(1),
            names: NameIndex::new(),
            ages: Ages::new(),
            ghosts: Lists::new(1),
            ghost_count: 0,
        }
    }

    pub(super) fn find(&self, boundary: u64) -> Option<u32> {
        self.names.find(boundary)
    }

    /// The next record above, in the prompt of the last request that passed, if it is still known.
    pub(super) fn above(&self, at: u32) -> Option<u32> {
        let past = &self.past[at];
        let above = self.names.find(past.above)?;
        (self.past[above].depth < past.depth).then_some(above)
    }

    /// Adds a ghost for a boundary.
    pub(super) fn add(&mut self, boundary: u64, depth: u32) -> u32 {
        let at = self.vacant.first(0).unwrap_or(self.span);
        self.vacant.remove(at);
        self.span = self.span.max(at + 1);
        *self.table.reach(at) = BLANK;
        *self.past.reach(at) = Past { depth, ..NO_PAST };
        self.names.insert(boundary, at);
        self.ghosts.push(0, at);
        self.ghost_count += 1;
        at
    }

    /// Makes a ghost a resident record: its checkpoint has entered the cache.
    pub(super) fn wake(&mut self, at: u32, entry: u32) {
        self.table[at].entry = entry;
        self.ghosts.remove(at);
        self.ghost_count -= 1;
    }

    /// Makes a record a ghost: its checkpoint has left the cache.
    pub(super) fn sleep(&mut self, at: u32) {
        self.table[at].entry = NONE;
        self.ghosts.push(0, at);
        self.ghost_count += 1;
    }

    /// Makes a ghost that was of use the last to be forgotten.
    pub(super) fn touch(&mut self, at: u32) {
        if !self.table[at].is_resident() {
            self.ghosts.push(0, at);
        }
    }

    /// The oldest ghost, if there are too many.
    pub(super) fn excess(&self) -> Option<u32> {
        let oldest = self.ghosts.first(0)?;
        (self.ghost_count > GHOSTS).then_some(oldest)
    }

    /// Forgets a ghost.
    pub(super) fn forget(&mut self, at: u32) {
        self.ghosts.remove(at);
        self.ages.end(at);
        self.names.remove(at);
        self.vacant.push(0, at);
        self.ghost_count -= 1;
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes()
            + self.past.bytes()
            + self.vacant.bytes()
            + self.names.bytes()
            + self.ages.bytes()
            + self.ghosts.bytes()
    }
}

impl std::ops::Index<u32> for CheckpointRecords {
    type Output = CheckpointRecord;

    fn index(&self, at: u32) -> &CheckpointRecord {
        &self.table[at]
    }
}

impl std::ops::IndexMut<u32> for CheckpointRecords {
    fn index_mut(&mut self, at: u32) -> &mut CheckpointRecord {
        &mut self.table[at]
    }
}
