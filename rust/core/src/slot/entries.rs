//! One record per entry, from its reservation until no tier and no lease has it.

use super::places::Places;
use super::pool::{SlotPool, SlotSet};
use crate::ids::{EntryId, NodeId};
use crate::rows::Rows;
use crate::slab::Slab;

/// One page or checkpoint.
#[derive(Debug)]
pub(crate) struct EntryRecord {
    pub(crate) class: usize,
    /// The boundary under which the index knows the entry. `None` once the index has dropped the entry, and only leases
    /// keep it.
    pub(crate) home: Option<NodeId>,
    /// Number of leases and copies that need the slots of the entry: while there is one, they are not reused.
    pub(crate) pins: u32,
    /// Slots of the host that the entry owns. While the entry is pinned, it keeps them even if it has left the host.
    pub(crate) slots: Option<SlotSet>,
    /// Tiers that the entry is a member of: they have room for it, and its bytes are whole there or on their way.
    pub(crate) members: Places,
    /// Tiers where the entry's bytes are whole: some of `members`. They are the same bytes everywhere.
    pub(crate) places: Places,
    /// Tiers below that copy the entry now, from or to the host.
    pub(crate) copying: Places,
    /// Whether an earlier whole entry was in the same place, and left.
    pub(crate) again: bool,
}

// There are very many, so places cost no memory.
const _: () = assert!(size_of::<Option<EntryRecord>>() == 40);

impl EntryRecord {
    /// Number of slots that the entry owns.
    #[inline]
    pub(crate) fn slots_len(&self) -> u32 {
        self.slots.as_ref().map_or(0, SlotSet::len)
    }
}

/// All entries, each with one checksum per rank, or with none at all.
#[derive(Debug)]
pub(crate) struct EntryTable {
    entries: Slab<EntryRecord>,
    checksums: Rows<u64>,
    /// For each entry, whether its checksums are known.
    hashed: Rows<bool>,
    /// For each entry, the tiers below that passed over it, or a page that it hangs from.
    passed_over: Rows<Places>,
}

impl EntryTable {
    /// Most entries at a time: ids are below this.
    pub(crate) const MAX_ENTRIES: usize = SlotPool::MAX_SLOTS;

    /// An empty table for entries written by so many ranks.
    pub(crate) const fn new(ranks: usize) -> Self {
        Self {
            entries: Slab::new(),
            checksums: Rows::new(ranks),
            hashed: Rows::new(1),
            passed_over: Rows::new(1),
        }
    }

    /// Adds an entry that no tier has yet; without a home, one that no lookup will see.
    pub(crate) fn insert(&mut self, class: usize, home: impl Into<Option<NodeId>>) -> EntryId {
        let entry = EntryRecord {
            class,
            home: home.into(),
            pins: 0,
            slots: None,
            members: Places::NONE,
            places: Places::NONE,
            copying: Places::NONE,
            again: false,
        };
        let id = self.entries.insert(entry);
        if id as usize == self.hashed.len() {
            self.checksums.grow(id as usize + 1, &0);
            self.hashed.push(false);
            self.passed_over.push(Places::NONE);
        }
        self.hashed[id as usize] = false;
        self.passed_over[id as usize] = Places::NONE;
        EntryId(id)
    }

    /// Takes an entry out for good.
    pub(crate) fn remove(&mut self, id: EntryId) {
        self.entries.remove(id.0);
    }

    /// An entry by id.
    pub(crate) fn get(&self, id: EntryId) -> &EntryRecord {
        self.entries.get(id.0)
    }

    /// An entry by id, to change.
    pub(crate) fn get_mut(&mut self, id: EntryId) -> &mut EntryRecord {
        self.entries.get_mut(id.0)
    }

    /// Checksums of an entry's shards, one per rank, if they are known.
    pub(crate) fn checksums(&self, id: EntryId) -> Option<&[u64]> {
        self.hashed[id.0 as usize].then(|| self.checksums.row(id.0 as usize))
    }

    /// Sets the checksums of an entry's shards: one value per rank, or that none are known.
    pub(crate) fn set_checksums(&mut self, id: EntryId, shards: Option<&[u64]>) {
        self.hashed[id.0 as usize] = shards.is_some();
        if let Some(shards) = shards {
            let places = self.checksums.row_mut(id.0 as usize);
            places.copy_from_slice(shards);
        }
    }

    /// Tiers below that were offered an entry, or a page that it stands on, and passed it over.
    pub(crate) fn passed_over(&self, id: EntryId) -> Places {
        self.passed_over[id.0 as usize]
    }

    /// Notes that a tier passed an entry over.
    pub(crate) fn pass_over(&mut self, id: EntryId, tier: usize) {
        let tiers = &mut self.passed_over[id.0 as usize];
        *tiers = tiers.with(Places::of(tier));
    }

    /// Lets every tier judge an entry again.
    pub(crate) fn reconsider(&mut self, id: EntryId) {
        self.passed_over[id.0 as usize] = Places::NONE;
    }

    /// Every entry.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EntryId, &EntryRecord)> {
        self.entries.iter().map(|(id, entry)| (EntryId(id), entry))
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes()
            + self.checksums.bytes()
            + self.hashed.bytes()
            + self.passed_over.bytes()
    }
}
