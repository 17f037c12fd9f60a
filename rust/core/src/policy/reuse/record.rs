//! Records of checkpoints: of those that are in the cache, and of ghosts, which were in it or might come.

use super::ages::Ages;
use super::bare::PATIENCE;
use super::hazard::{Features, Kind, Origin};
use super::names::Names;
use crate::policy::list::Lists;
use crate::policy::table::Table;

/// The number that stands for no record, or for no entry.
pub(super) const NONE: u32 = u32::MAX;
/// Records kept of checkpoints that are not resident.
const GHOSTS: usize = 16_384;

/// The most records that are followed up a prompt.
pub(super) const CLIMB: usize = 32;

/// One checkpoint, as its eviction is judged: its age, its expected uses and what it saves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    /// When the checkpoint was made or last used.
    pub(super) since: u64,
    pub(super) features: Features,
    /// The checkpoint's entry, if it is resident.
    pub(super) entry: u32,
    /// Gittins index: the most expected uses per time held, over all horizons.
    pub(super) index: f32,
    /// Blocks that the checkpoint saves over the room that its eviction frees, when this was last computed; 0 before.
    pub(super) density: f32,
    /// The largest index among evicted checkpoints whose requests would now resume here.
    pub(super) inherited: f32,
    /// Number of the record that the inherited index comes from.
    pub(super) source: u32,
    /// If the checkpoint is evicted: the number of the record that inherited its index.
    pub(super) heir: u32,
    /// Priority of the request that stored or last used the checkpoint.
    pub(super) priority: i8,
}

/// The history of one checkpoint, as requests told it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    /// Boundary of the next record up the prompt of the last request that passed.
    pub(super) above: u64,
    /// Number, counted from 1, of the last request that passes here on its way to a deeper checkpoint; 0 when that
    /// request has ended.
    pub(super) running: u64,
    pub(super) origin: Origin,
    pub(super) kind: Kind,
    pub(super) depth: u32,
    pub(super) hits: u16,
    /// Whether the checkpoint was made before this process began.
    pub(super) resumed: bool,
}

const BLANK: Record = Record {
    since: 0,
    features: Features::NONE,
    entry: NONE,
    index: 0.0,
    density: 0.0,
    inherited: 0.0,
    source: NONE,
    heir: NONE,
    priority: 0,
};

const NO_PAST: Past = Past {
    above: 0,
    running: 0,
    origin: Origin::UNKNOWN,
    kind: Kind::End,
    depth: 0,
    hits: 0,
    resumed: false,
};

impl Record {
    pub(super) const fn is_resident(&self) -> bool {
        self.entry != NONE
    }
}

impl Past {
    /// Whether a request may still store pages below.
    pub(super) const fn awaits_more(&self, requests: u64) -> bool {
        self.running > 0 && self.running + PATIENCE >= requests
    }
}

/// All records by number, by boundary and by age.
pub(super) struct Records {
    table: Table<Record>,
    pub(super) past: Table<Past>,
    span: u32,
    vacant: Lists,
    names: Names,
    pub(super) ages: Ages,
    /// Records of ghosts, oldest first.
    ghosts: Lists,
    ghost_count: usize,
}

impl Records {
    pub(super) fn new() -> Self {
        Self {
            table: Table::new(BLANK),
            past: Table::new(NO_PAST),
            span: 0,
            vacant: Lists::new(1),
            names: Names::new(),
            ages: Ages::new(),
            ghosts: Lists::new(1),
            ghost_count: 0,
        }
    }

    pub(super) fn find(&self, boundary: u64) -> Option<u32> {
        self.names.find(boundary)
    }

    /// The next record up the prompt of the last request that passed, if it is still known.
    pub(super) fn above(&self, at: u32) -> Option<u32> {
        let past = &self.past[at];
        let above = self.names.find(past.above)?;
        (self.past[above].depth < past.depth).then_some(above)
    }

    /// Adds a record of a boundary, as a ghost.
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

    /// The checkpoint of a record is in the cache now.
    pub(super) fn wake(&mut self, at: u32, entry: u32) {
        self.table[at].entry = entry;
        self.ghosts.remove(at);
        self.ghost_count -= 1;
    }

    /// The checkpoint of a record left the cache.
    pub(super) fn sleep(&mut self, at: u32) {
        self.table[at].entry = NONE;
        self.ghosts.push(0, at);
        self.ghost_count += 1;
    }

    /// A record is of use: a ghost is the last to be forgotten now.
    pub(super) fn touch(&mut self, at: u32) {
        if !self.table[at].is_resident() {
            self.ghosts.push(0, at);
        }
    }

    /// The ghost to be forgotten, when there are too many.
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

impl std::ops::Index<u32> for Records {
    type Output = Record;

    fn index(&self, at: u32) -> &Record {
        &self.table[at]
    }
}

impl std::ops::IndexMut<u32> for Records {
    fn index_mut(&mut self, at: u32) -> &mut Record {
        &mut self.table[at]
    }
}
