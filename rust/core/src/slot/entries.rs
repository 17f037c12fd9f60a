//! Who owns which slots: one record an entry, from its reservation to the end of its last lease.

use super::SlotSet;
use crate::ids::{EntryId, NodeId};
use crate::slab::Slab;

/// One page or checkpoint.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its class.
    pub(crate) class: usize,
    /// Where the index knows it; `None` once it was dropped from there and only leases keep it.
    pub(crate) home: Option<NodeId>,
    /// Leases that need it to stay: while there is one, its slots are not reused.
    pub(crate) holds: u32,
    /// Whether its bytes are whole. It never goes back to false.
    pub(crate) resident: bool,
    /// Whether a whole entry was in its place before it, and went.
    pub(crate) again: bool,
    /// What it owns.
    pub(crate) slots: SlotSet,
}

/// All entries, with a checksum a rank each.
#[derive(Debug)]
pub(crate) struct EntryTable {
    entries: Slab<Entry>,
    checksums: Vec<u64>,
    ranks: usize,
}

impl EntryTable {
    /// An empty table for entries written by so many ranks.
    pub(crate) const fn new(ranks: usize) -> Self {
        Self {
            entries: Slab::new(),
            checksums: Vec::new(),
            ranks,
        }
    }

    /// Adds an entry that its writer holds.
    pub(crate) fn insert(&mut self, class: usize, home: NodeId, slots: SlotSet) -> EntryId {
        let entry = Entry {
            class,
            home: Some(home),
            holds: 1,
            resident: false,
            again: false,
            slots,
        };
        let id = self.entries.insert(entry);
        self.checksums.resize(self.entries.span() * self.ranks, 0);
        EntryId(id)
    }

    /// Takes an entry out for good.
    pub(crate) fn remove(&mut self, id: EntryId) -> Entry {
        self.entries.remove(id.0)
    }

    /// An entry by id.
    pub(crate) fn get(&self, id: EntryId) -> &Entry {
        self.entries.get(id.0)
    }

    /// An entry by id, to change.
    pub(crate) fn get_mut(&mut self, id: EntryId) -> &mut Entry {
        self.entries.get_mut(id.0)
    }

    /// Checksums of its parts, a rank each.
    pub(crate) fn checksums(&self, id: EntryId) -> &[u64] {
        &self.checksums[id.0 as usize * self.ranks..][..self.ranks]
    }

    /// Sets the checksums of its parts; `parts` has a value a rank.
    pub(crate) fn set_checksums(&mut self, id: EntryId, parts: &[u64]) {
        self.checksums[id.0 as usize * self.ranks..][..self.ranks].copy_from_slice(parts);
    }

    /// Every entry.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        self.entries.iter().map(|(id, entry)| (EntryId(id), entry))
    }

    /// Bytes of memory held.
    pub(crate) const fn bytes(&self) -> usize {
        self.entries.bytes() + self.checksums.capacity() * size_of::<u64>()
    }
}
