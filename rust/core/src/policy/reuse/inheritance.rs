//! Inheritance of Gittins indexes. Requests that would have resumed at an evicted checkpoint now resume at the nearest
//! one above, its *heir*. The heir counts for as much as the evicted one until that one's time has passed.

use super::record::{CheckpointRecord, NONE};
use super::state::Reuse;

impl Reuse {
    /// Whether a ghost's Gittins index is the one that its heir has inherited.
    pub(super) fn leads(&self, at: u32) -> bool {
        let heir = self.records[at].heir;
        heir != NONE && self.records[heir].source == at
    }

    /// Hands the Gittins index of a ghost to its heir.
    pub(super) fn bequeath(&mut self, at: u32) {
        let CheckpointRecord { index, heir, .. } = self.records[at];
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

    /// Takes the Gittins index of a record back from its heir.
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
