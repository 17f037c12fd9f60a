//! Transient entries: read from a tier below into slots of the host for one load.
//!
//! No lookup sees them and no policy knows them, so they need no page before them. They are in the table of
//! entries like those that left the host while somebody pinned them: with slots and pins, and no home.

use hashbrown::HashMap;

use crate::ids::EntryId;

/// Whether the bytes of each transient entry are whole yet; one whose read failed is not among them.
#[derive(Debug, Default)]
pub(super) struct Transients(HashMap<EntryId, bool>);

impl Transients {
    /// Notes that the read of an entry begins.
    pub(super) fn begin(&mut self, id: EntryId) {
        self.0.insert(id, false);
    }

    /// `Some(true)` when the bytes are whole, `Some(false)` while they are read, `None` after a failure.
    pub(super) fn is_whole(&self, id: EntryId) -> Option<bool> {
        self.0.get(&id).copied()
    }

    /// Notes that the read of an entry has ended.
    pub(super) fn end(&mut self, id: EntryId, intact: bool) {
        if !intact {
            self.0.remove(&id);
        } else if let Some(whole) = self.0.get_mut(&id) {
            *whole = true;
        }
    }

    /// Forgets an entry that nobody waits for any more.
    pub(super) fn forget(&mut self, id: EntryId) {
        self.0.remove(&id);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.0.allocation_size()
    }
}
