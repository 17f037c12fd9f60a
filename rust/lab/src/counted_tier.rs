//! A tier that only counts: it knows which entries it has, and asks a policy which one leaves.

use hybrid_pages::ids::{EntryId, TenantId};
use hybrid_pages::policy::{EntryKind, Hints, NewEntry, Policy};

use crate::trace::{ROOT, Trace};

pub(crate) const NONE: u32 = u32::MAX;

/// The numbers of the page and the checkpoint of one block; [`NONE`] for one that is absent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockEntries {
    pub(crate) page: u32,
    pub(crate) checkpoint: u32,
}

/// A tier whose entries have sizes, but no bytes.
pub(crate) struct CountedTier<'a> {
    trace: &'a Trace,
    pub(crate) policy: Box<dyn Policy>,
    ratio: u32,
    pub(crate) budget: u64,
    cells: Vec<BlockEntries>,
    /// How many pages there are right behind each block.
    behind: Vec<u32>,
    /// Block and kind of each entry.
    entries: Vec<(u32, EntryKind)>,
    vacant: Vec<u32>,
    pages: u64,
    checkpoints: u64,
    /// Total size of all entries that ever entered.
    pub(crate) written: u64,
}

impl<'a> CountedTier<'a> {
    pub(crate) fn new(trace: &'a Trace, policy: Box<dyn Policy>, ratio: u32, budget: u64) -> Self {
        let empty = BlockEntries {
            page: NONE,
            checkpoint: NONE,
        };
        Self {
            trace,
            policy,
            ratio,
            budget,
            cells: vec![empty; trace.boundaries.len()],
            behind: vec![0; trace.boundaries.len()],
            entries: Vec::new(),
            vacant: Vec::new(),
            pages: 0,
            checkpoints: 0,
            written: 0,
        }
    }

    pub(crate) fn cell(&self, at: u32) -> BlockEntries {
        self.cells[at as usize]
    }

    pub(crate) fn has_page(&self, at: u32) -> bool {
        self.cell(at).page != NONE
    }

    pub(crate) fn has_checkpoint(&self, at: u32) -> bool {
        self.cell(at).checkpoint != NONE
    }

    /// Total size of all checkpoints.
    pub(crate) fn checkpoint_size(&self) -> u64 {
        self.checkpoints * u64::from(self.ratio)
    }

    /// Total size of all entries.
    pub(crate) fn taken(&self) -> u64 {
        self.pages + self.checkpoint_size()
    }

    /// Free room, or 0 while the tier holds more than its budget.
    pub(crate) fn free(&self) -> u64 {
        self.budget.saturating_sub(self.taken())
    }

    /// Size of an entry of this kind.
    pub(crate) const fn size(&self, kind: EntryKind) -> u32 {
        match kind {
            EntryKind::Page | EntryKind::Window => 1,
            EntryKind::Checkpoint => self.ratio,
        }
    }

    /// Releases an entry that a request with these hints has stored or used.
    pub(crate) fn let_go(&mut self, id: EntryId, hints: &Hints) {
        if hints.keep() {
            self.policy.hold(id);
            self.policy.keep(id, TenantId::NONE, hints);
        }
        self.policy.release(id);
    }

    /// Description of a new entry for the policy.
    pub(crate) fn as_new(&self, id: EntryId, at: u32, kind: EntryKind) -> NewEntry {
        let boundary = self.trace.boundaries[at as usize];
        let parent = match kind {
            EntryKind::Page | EntryKind::Window if boundary.parent == ROOT => None,
            EntryKind::Page | EntryKind::Window => Some(self.cell(boundary.parent).page),
            EntryKind::Checkpoint => Some(self.cell(at).page),
        };
        NewEntry {
            id,
            kind,
            parent: parent.map(EntryId),
            depth: boundary.depth,
            size: self.size(kind),
            boundary: boundary.name,
            tenant: TenantId::NONE,
            unused: None,
            proven: false,
        }
    }

    pub(crate) fn enter(&mut self, at: u32, kind: EntryKind) {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push((ROOT, kind));
            self.entries.len() as u32 - 1
        });
        self.entries[id as usize] = (at, kind);
        let new = self.as_new(EntryId(id), at, kind);
        let cell = &mut self.cells[at as usize];
        match kind {
            EntryKind::Page | EntryKind::Window => {
                cell.page = id;
                self.pages += 1;
                if let Some(behind) = self.behind_parent(at) {
                    *behind += 1;
                }
            }
            EntryKind::Checkpoint => {
                cell.checkpoint = id;
                self.checkpoints += 1;
            }
        }
        self.written += u64::from(new.size);
        self.policy.enter(&new);
    }

    pub(crate) fn evict(&mut self, victim: EntryId) {
        let (at, kind) = self.entries[victim.0 as usize];
        let cell = &mut self.cells[at as usize];
        match kind {
            EntryKind::Page | EntryKind::Window => {
                cell.page = NONE;
                self.pages -= 1;
                let orphan = cell.checkpoint;
                if let Some(behind) = self.behind_parent(at) {
                    *behind -= 1;
                }
                // There is a checkpoint here only if the policy evicts a page before its checkpoint.
                if orphan != NONE {
                    self.evict(EntryId(orphan));
                }
            }
            EntryKind::Checkpoint => {
                cell.checkpoint = NONE;
                self.checkpoints -= 1;
            }
        }
        self.policy.leave(victim);
        self.vacant.push(victim.0);
    }

    fn behind_parent(&mut self, at: u32) -> Option<&mut u32> {
        let parent = self.trace.boundaries[at as usize].parent;
        self.behind
            .get_mut(parent as usize)
            .filter(|_| parent != ROOT)
    }

    /// Gives up what a path has behind its first `first` blocks, up to where another path goes on, as
    /// [`Cache::give_up`](hybrid_pages::cache::Cache::give_up) does.
    pub(crate) fn give_up(&mut self, path: &[u32], first: usize) {
        for (block, &at) in path.iter().enumerate().skip(first).rev() {
            let goes_on = path.get(block + 1).is_some_and(|&next| self.has_page(next));
            if self.behind[at as usize] > u32::from(goes_on) {
                break;
            }
            let BlockEntries { page, checkpoint } = self.cell(at);
            for id in [page, checkpoint].into_iter().filter(|&id| id != NONE) {
                self.policy.give_up(EntryId(id));
            }
        }
    }

    /// Evicts until the tier's entries have at most this size. False if the policy names no victim before.
    pub(crate) fn shrink(&mut self, most: u64) -> bool {
        while self.taken() > most {
            let Some(victim) = self.policy.victim() else {
                return false;
            };
            self.evict(victim);
        }
        true
    }
}
