//! Requests that would have resumed at an evicted checkpoint now resume at the nearest one above, which counts
//! for as much until the evicted one's time has passed.

use super::Reuse;
use super::record::{NONE, Record};

impl Reuse {
    /// Whether a ghost's index counts for the checkpoint above it.
    pub(super) fn leads(&self, at: u32) -> bool {
        let heir = self.records[at].heir;
        heir != NONE && self.records[heir].source == at
    }

    /// Hands the index of an evicted record to its heir.
    pub(super) fn bequeath(&mut self, at: u32) {
        let Record { index, heir, .. } = self.records[at];
        if heir == NONE {
            return;
        }
        let to = &mut self.records[heir];
        if !to.is_resident() {
            self.records[at].heir = NONE;
        } else if to.source == at || index > to.inherited {
            to.source = at;
            to.inherited = index;
            self.place(heir);
        }
    }

    /// Takes back what a record's heir has from it.
    pub(super) fn disinherit(&mut self, at: u32) {
        let heir = std::mem::replace(&mut self.records[at].heir, NONE);
        if heir != NONE && self.records[heir].source == at {
            let to = &mut self.records[heir];
            to.source = NONE;
            to.inherited = 0.0;
            self.place(heir);
        }
    }
}
