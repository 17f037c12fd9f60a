//! Entries on their way through the host: read from a tier below into slots for one load.
//!
//! No lookup sees them and no policy knows them, so they need no page before them. They are in the table of
//! entries like those that left the host while somebody held them: with slots and holds, and no home.

use hashbrown::HashMap;

use super::copies::{Direction, Held};
use super::kept::Keep;
use super::state::State;
use crate::ids::{EntryId, EntryKey, NamespaceId};

/// Whether their bytes are whole yet; one that failed is not among them.
#[derive(Debug, Default)]
pub(super) struct Passing(HashMap<EntryId, bool>);

impl Passing {
    /// `Some(true)` when the bytes are whole, `Some(false)` while they are read, `None` after a failure.
    pub(super) fn is_whole(&self, id: EntryId) -> Option<bool> {
        self.0.get(&id).copied()
    }

    /// A read has ended.
    pub(super) fn end(&mut self, id: EntryId, intact: bool) {
        if !intact {
            self.0.remove(&id);
        } else if let Some(whole) = self.0.get_mut(&id) {
            *whole = true;
        }
    }

    /// Nobody waits for it any more.
    pub(super) fn forget(&mut self, id: EntryId) {
        self.0.remove(&id);
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.allocation_size()
    }
}

impl State {
    /// Starts to read a kept entry into slots that only the caller knows. Room was made. The new entry is
    /// held by the caller, and by the batch until the read ends.
    pub(super) fn pass(&mut self, namespace: NamespaceId, source: Keep, key: &EntryKey) -> EntryId {
        let class = self.entries.get(source.id).class;
        let size = self.classes[class].slots;
        let checksums = self.entries.checksums(source.id).map(<[u64]>::to_vec);
        let id = self.entries.insert(class, None);
        self.entries.set_checksums(id, checksums.as_deref());
        if self.tenants.is_counted() {
            let name = self.index.namespaces.known_tenant(namespace);
            self.tenants.enter(id, name, size);
        }
        let entry = self.entries.get_mut(id);
        entry.slots = Some(self.host.lend(size));
        entry.holds = 2;
        self.passing.0.insert(id, false);
        let batch = self.copies.open(Held {
            entries: vec![id],
            tip: None,
        });
        let copy = self
            .copies
            .start(id, source.tier, Direction::Through(source), batch);
        let slots = self.slots(id);
        self.below[source.tier - 1].tier.read(copy, key, &slots);
        self.end_batch(batch);
        id
    }
}
