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
    /// Whether it counts among what needs its parent.
    counts: bool,
    present: bool,
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
#[derive(Debug)]
pub(super) struct Tree {
    pages: Vec<Page>,
}

impl Tree {
    pub(super) fn new(room: usize) -> Self {
        Self {
            pages: Vec::with_capacity(room),
        }
    }

    pub(super) fn add(&mut self, id: EntryId, parent: Option<EntryId>, depth: u32) {
        let at = id.0 as usize;
        let absent = Page {
            parent: NONE,
            needed_by: 0,
            record: NONE,
            depth: 0,
            counts: true,
            present: false,
        };
        if at >= self.pages.len() {
            self.pages.resize(at + 1, absent);
        }
        self.pages[at] = Page {
            parent: parent.map_or(NONE, |parent| parent.0),
            depth,
            present: true,
            ..absent
        };
    }

    /// One more need of a page. Shows to `revived` the pages that are needed again.
    pub(super) fn need(&mut self, page: EntryId, mut revived: impl FnMut(EntryId)) {
        let mut at = page.0;
        while at != NONE {
            let page = &mut self.pages[at as usize];
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

    /// One need of a page less. Shows to `left` the pages that nothing needs any more, deepest first;
    /// those of which it says that they are held go on counting.
    pub(super) fn spare(&mut self, page: EntryId, mut left: impl FnMut(EntryId) -> bool) {
        let mut at = page.0;
        while at != NONE {
            let page = &mut self.pages[at as usize];
            if !page.present {
                break;
            }
            page.needed_by -= 1;
            if page.needed_by > 0 || !left(EntryId(at)) {
                break;
            }
            page.counts = false;
            at = page.parent;
        }
    }

    /// Removes a page; tells which one it hung from, if it counted there.
    pub(super) fn remove(&mut self, page: EntryId) -> Option<EntryId> {
        let page = &mut self.pages[page.0 as usize];
        page.present = false;
        (page.counts && page.parent != NONE).then_some(EntryId(page.parent))
    }

    pub(super) fn is_needed(&self, page: EntryId) -> bool {
        self.pages[page.0 as usize].needed_by > 0
    }

    /// Sets or clears the record of the checkpoint at a page.
    pub(super) fn mark(&mut self, page: EntryId, record: Option<u32>) {
        self.pages[page.0 as usize].record = record.unwrap_or(NONE);
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
