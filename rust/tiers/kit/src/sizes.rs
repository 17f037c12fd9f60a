//! How large entries are, and what a tier can take of them.

use hybrid_pages::error::Result;
use hybrid_pages::geometry::Geometry;
use hybrid_pages::policy::Policy;
use hybrid_pages::tier::Room;

/// Slots of all tiers must have names: a store that machines share takes at most a quarter of them.
const MOST_SHARED_SLOTS: u64 = 1 << 27;

/// The size of the entries of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntrySize {
    /// Bytes of one rank's shard.
    pub shard_bytes: usize,
    /// Bytes of all shards.
    pub bytes: u64,
    /// Slots of the host that an entry takes.
    pub slots: usize,
}

/// The sizes of the entries of each class, in slots of `slot_bytes`.
///
/// # Errors
/// [`Error::InvalidArgument`](hybrid_pages::error::Error::InvalidArgument) for slots of an impossible size.
pub fn entry_sizes(geometry: &Geometry, slot_bytes: usize) -> Result<Vec<EntrySize>> {
    let size = |class: &hybrid_pages::geometry::PageClass| {
        Ok(EntrySize {
            shard_bytes: class.rank_bytes,
            bytes: (class.rank_bytes * geometry.ranks()) as u64,
            slots: geometry.slots_per_entry(class.index, slot_bytes)?,
        })
    };
    geometry.classes().iter().map(size).collect()
}

/// Slots of the largest entry, at least 1.
#[must_use]
pub fn largest_entry(sizes: &[EntrySize]) -> u64 {
    let slots = sizes.iter().map(|size| size.slots as u64);
    slots.max().unwrap_or(1).max(1)
}

/// Slots that may wait to be written: what `queue_bytes` hold, and at least the largest entry.
#[must_use]
pub fn queue_slots(queue_bytes: u64, slot_bytes: usize, largest: u64) -> u64 {
    (queue_bytes / slot_bytes.max(1) as u64).max(largest)
}

/// The room of a store that machines share: it has no bound that is known here, so this is how many entries the cache
/// keeps track of in it.
#[must_use]
pub fn shared_room(most_entries: u64, largest: u64, policy: Box<dyn Policy>) -> Room {
    let slots = most_entries.saturating_mul(largest);
    Room::new(slots.min(MOST_SHARED_SLOTS), policy)
}
