//! Cells: the index's data about one entry, which is its id and where its bytes are whole.

use crate::ids::EntryId;
use crate::slot::Places;

/// The entry of one class at a boundary and where it is whole, in four bytes: an id below
/// `EntryTable::MAX_ENTRIES` and three bits that tell a lookup all it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexCell(u32);

impl IndexCell {
    pub(crate) const EMPTY: Self = Self(u32::MAX);
    /// Empty, after an entry that was whole.
    pub(crate) const GONE: Self = Self(u32::MAX - 1);

    const HOST: u32 = 0;
    const BOTH: u32 = 1 << 29;
    const BELOW: u32 = 2 << 29;
    const SHARED: u32 = 3 << 29;
    const WRITING: u32 = 4 << 29;
    /// Values from here on mean that there is no entry.
    const NONE: u32 = 5 << 29;
    const ID: u32 = (1 << 29) - 1;

    /// The cell of an entry whose bytes are whole in `places`. `shared`: the tiers that other caches use, too.
    pub(crate) const fn of(id: EntryId, places: Places, shared: Places) -> Self {
        let own = places.and(Places::BELOW).without(shared);
        let state = match (places.in_host(), own.is_empty()) {
            (true, true) => Self::HOST,
            (true, false) => Self::BOTH,
            (false, false) => Self::BELOW,
            (false, true) if places.is_empty() => Self::WRITING,
            (false, true) => Self::SHARED,
        };
        Self(state | id.0)
    }

    /// The entry that is here, whole or not.
    pub(crate) fn entry(self) -> Option<EntryId> {
        (self.0 < Self::NONE).then_some(EntryId(self.0 & Self::ID))
    }

    /// Whether an entry is here and its bytes are whole somewhere.
    pub(crate) const fn is_whole(self) -> bool {
        self.0 < Self::WRITING
    }

    /// Whether an entry is here and its bytes are whole in the host.
    pub(crate) const fn is_in_host(self) -> bool {
        self.0 < Self::BELOW
    }

    /// Whether an entry is here and its bytes are whole in a tier below the host that nobody shares.
    pub(crate) const fn is_below(self) -> bool {
        Self::BOTH <= self.0 && self.0 < Self::SHARED
    }
}

/// What becomes of an entry that is asked to leave a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The entry wasn't in the place that it was asked to leave, so nothing that hangs from it is there either.
    Elsewhere,
    /// The entry stays, in fewer places.
    Stays(IndexCell),
    /// The index forgets the entry. `known`: whether the cell then is [`IndexCell::GONE`], which says that a whole
    /// entry was here.
    Gone { known: bool },
}
