//! The tree of resident entries: blocks that a checkpoint saves, and the size that its eviction frees.

use crate::ids::EntryId;
use crate::policy::chunk_table::ChunkTable;
use crate::policy::{EntryKind, NewEntry};

const NONE: u32 = u32::MAX;

/// A resident entry and its place in the tree. It never lies across two lines of the processor's cache.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(super) struct TreeEntry {
    pub(super) kind: EntryKind,
    pub(super) held: bool,
    /// Whether this page counts in `needed_by` of its parent.
    counts: bool,
    present: bool,
    /// The page that the entry hangs from.
    parent: u32,
    /// For a page: how many counting pages hang from it, plus one for its own checkpoint.
    needed_by: u32,
    /// Record of a checkpoint, or of the checkpoint at a page's end.
    record: u32,
    depth: u32,
    /// The size of the entry. A page's size includes that of its window pages.
    size: u32,
    boundary: u64,
}

const ABSENT: TreeEntry = TreeEntry {
    kind: EntryKind::Page,
    held: false,
    counts: true,
    present: false,
    parent: NONE,
    needed_by: 0,
    record: NONE,
    depth: 0,
    size: 0,
    boundary: 0,
};

/// The size that the eviction of a checkpoint would free, and the blocks that it would cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weight {
    /// Size of the checkpoint and of the pages that only it needs.
    pub(super) size: u32,
    /// Blocks from the nearest checkpoint above down to this one.
    pub(super) blocks: u32,
}

/// All resident entries by number.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: ChunkTable<TreeEntry>,
}

impl Tree {
    pub(super) const fn new() -> Self {
        Self {
            nodes: ChunkTable::new(ABSENT),
        }
    }

    pub(super) fn get(&self, id: EntryId) -> &TreeEntry {
        &self.nodes[id.0]
    }

    pub(super) fn known(&self, id: EntryId) -> bool {
        self.nodes.get(id.0).is_some_and(|node| node.present)
    }

    pub(super) fn hold(&mut self, id: EntryId, held: bool) {
        self.nodes[id.0].held = held;
    }

    /// Adds an entry, held; `record` is a checkpoint's. Shows to `revived` the pages that are needed again.
    pub(super) fn add(
        &mut self,
        entry: &NewEntry,
        record: Option<u32>,
        revived: impl FnMut(EntryId),
    ) {
        *self.nodes.reach(entry.id.0) = TreeEntry {
            kind: entry.kind,
            held: true,
            present: true,
            parent: entry.parent.map_or(NONE, |page| page.0),
            record: record.unwrap_or(NONE),
            depth: entry.depth,
            size: entry.size,
            boundary: entry.boundary,
            ..ABSENT
        };
        let Some(page) = entry.parent else { return };
        match entry.kind {
            EntryKind::Page => self.need(page, revived),
            EntryKind::Checkpoint => {
                self.nodes[page.0].record = record.unwrap_or(NONE);
                self.need(page, revived);
            }
            EntryKind::Window => self.nodes[page.0].size += entry.size,
        }
    }

    fn need(&mut self, page: EntryId, mut revived: impl FnMut(EntryId)) {
        let mut at = page.0;
        while at != NONE {
            let page = &mut self.nodes[at];
            page.needed_by += 1;
            if page.needed_by == 1 {
                revived(EntryId(at));
            }
            if std::mem::replace(&mut page.counts, true) {
                break;
            }
            at = page.parent;
        }
    }

    /// Removes an entry. Shows to `left` the pages that nothing needs any more, deepest first. Pages that are held, and
    /// those that `left` says are kept, go on counting. For a checkpoint, returns the record of the nearest one above.
    pub(super) fn remove(
        &mut self,
        id: EntryId,
        mut left: impl FnMut(EntryId) -> bool,
    ) -> Option<u32> {
        let gone = std::mem::replace(&mut self.nodes[id.0], ABSENT);
        let mut at = gone.parent;
        if at == NONE {
            return None;
        }
        match gone.kind {
            EntryKind::Page if gone.counts => {}
            EntryKind::Page => return None,
            EntryKind::Checkpoint => self.nodes[at].record = NONE,
            EntryKind::Window => {
                self.nodes[at].size -= gone.size;
                return None;
            }
        }
        while at != NONE && self.nodes[at].present {
            let page = &mut self.nodes[at];
            page.needed_by -= 1;
            if page.needed_by > 0 || page.held || !left(EntryId(at)) {
                break;
            }
            page.counts = false;
            at = page.parent;
        }
        while gone.kind == EntryKind::Checkpoint && at != NONE {
            let page = self.nodes[at];
            if page.record != NONE {
                return Some(page.record);
            }
            at = page.parent;
        }
        None
    }

    /// Whether anything needs a page, or the page of a window entry.
    pub(super) fn is_stood_on(&self, id: EntryId) -> bool {
        let node = self.get(id);
        match node.kind {
            EntryKind::Page => node.is_needed(),
            EntryKind::Checkpoint => false,
            EntryKind::Window if node.parent == NONE => false,
            EntryKind::Window => self.nodes[node.parent].is_needed(),
        }
    }

    /// The weight of a checkpoint.
    pub(super) fn weigh(&self, checkpoint: EntryId) -> Weight {
        let own = self.nodes[checkpoint.0];
        let (mut size, mut alone, mut at) = (own.size, true, own.parent);
        while at != NONE {
            let page = self.nodes[at];
            if page.record != NONE && page.record != own.record {
                return Weight {
                    size,
                    blocks: own.depth - page.depth,
                };
            }
            alone &= page.needed_by == 1;
            size += if alone { page.size } else { 0 };
            at = page.parent;
        }
        Weight {
            size,
            blocks: own.depth,
        }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.nodes.bytes()
    }
}

impl TreeEntry {
    pub(super) const fn is_needed(&self) -> bool {
        self.needed_by > 0
    }

    /// Whether a page counts among those that need its parent. If so, each page that it stands on does, too.
    pub(super) const fn needs_parent(&self) -> bool {
        self.counts
    }

    pub(super) const fn boundary(&self) -> u64 {
        self.boundary
    }

    /// The record of a checkpoint.
    pub(super) const fn record(&self) -> u32 {
        self.record
    }

    /// Whether the entry needs no page.
    pub(super) const fn stands_alone(&self) -> bool {
        self.parent == NONE
    }
}
