//! Who hangs from which page: what a checkpoint saves and what room its eviction frees.

use crate::ids::EntryId;

const NONE: u32 = u32::MAX;

/// A page: what it hangs from, and what needs it.
#[derive(Debug, Clone, Copy)]
struct Page {
    parent: u32,
    /// Pages that hang from it, and its own checkpoint.
    needed_by: u32,
    /// Record of its own checkpoint.
    record: u32,
    depth: u32,
}

/// What the eviction of a checkpoint would free and cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weight {
    /// Pages that nothing else needs.
    pub(super) pages: u32,
    /// Blocks down from the nearest checkpoint above.
    pub(super) blocks: u32,
    /// Record of that checkpoint.
    pub(super) above: Option<u32>,
}

/// All resident pages by entry number.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pages: Vec<Page>,
}

impl Tree {
    pub(super) fn add(&mut self, id: EntryId, parent: Option<EntryId>, depth: u32) {
        let at = id.0 as usize;
        let absent = Page {
            parent: NONE,
            needed_by: 0,
            record: NONE,
            depth: 0,
        };
        if at >= self.pages.len() {
            self.pages.resize(at + 1, absent);
        }
        self.pages[at] = Page {
            parent: parent.map_or(NONE, |parent| parent.0),
            depth,
            ..absent
        };
        if let Some(parent) = parent {
            self.pages[parent.0 as usize].needed_by += 1;
        }
    }

    /// Removes a page; returns the one before it if nothing needs that any more.
    pub(super) fn remove(&mut self, id: EntryId) -> Option<EntryId> {
        let parent = self.pages[id.0 as usize].parent;
        (parent != NONE).then_some(EntryId(parent)).filter(|&parent| self.spare(parent))
    }

    /// One need less; whether that was the last.
    fn spare(&mut self, page: EntryId) -> bool {
        let page = &mut self.pages[page.0 as usize];
        page.needed_by = page.needed_by.saturating_sub(1);
        page.needed_by == 0
    }

    pub(super) fn is_needed(&self, page: EntryId) -> bool {
        self.pages[page.0 as usize].needed_by > 0
    }

    /// Hangs a checkpoint from its page.
    pub(super) fn attach(&mut self, page: EntryId, record: u32) {
        let page = &mut self.pages[page.0 as usize];
        page.record = record;
        page.needed_by += 1;
    }

    /// Takes the checkpoint off its page; whether nothing needs the page any more.
    pub(super) fn detach(&mut self, page: EntryId) -> bool {
        self.pages[page.0 as usize].record = NONE;
        self.spare(page)
    }

    /// Of the checkpoint at a page.
    pub(super) fn weigh(&self, page: EntryId) -> Weight {
        let own = self.pages[page.0 as usize];
        let mut alone = own.needed_by == 1;
        let mut pages = u32::from(alone);
        let mut at = own.parent;
        while at != NONE {
            let page = self.pages[at as usize];
            if page.record != NONE {
                return Weight {
                    pages,
                    blocks: own.depth - page.depth,
                    above: Some(page.record),
                };
            }
            alone &= page.needed_by == 1;
            pages += u32::from(alone);
            at = page.parent;
        }
        Weight {
            pages,
            blocks: own.depth,
            above: None,
        }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>()
    }
}
