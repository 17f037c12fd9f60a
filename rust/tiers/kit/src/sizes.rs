//! Sizes of entries, and the room of a tier for them.

use hybrid_pages::error::Result;
use hybrid_pages::geometry::Geometry;
use hybrid_pages::policy::Policy;
use hybrid_pages::tier::Room;

/// Most slots of a store that machines share.
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

/// The size of an entry of each class, with slots of `slot_bytes` bytes.
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

/// The number of slots of the largest entry, at least 1.
#[must_use]
pub fn largest_entry(sizes: &[EntrySize]) -> u64 {
    let slots = sizes.iter().map(|size| size.slots as u64);
    slots.max().unwrap_or(1).max(1)
}

/// The number of slots that may wait to be written: those that fit into `queue_bytes`, but at least the `largest`
/// entry.
#[must_use]
pub fn queue_slots(queue_bytes: u64, slot_bytes: usize, largest: u64) -> u64 {
    (queue_bytes / slot_bytes.max(1) as u64).max(largest)
}

/// Implements `Tier` for a type with a field `room`, under this name in logs and metrics.
#[macro_export]
macro_rules! impl_tier {
    ($type:ty, $name:literal) => {
        impl ::hybrid_pages::tier::Tier for $type {
            fn name(&self) -> &str {
                $name
            }

            fn room(&self) -> &::hybrid_pages::tier::Room {
                &self.room
            }

            fn room_mut(&mut self) -> &mut ::hybrid_pages::tier::Room {
                &mut self.room
            }
        }
    };
}

/// The room of a store that machines share. The store's own limit is unknown, so the room limits how many of its
/// entries the cache keeps track of.
#[must_use]
pub fn shared_room(most_entries: u64, largest: u64, policy: Box<dyn Policy>) -> Room {
    let slots = most_entries.saturating_mul(largest);
    Room::new(slots.min(MOST_SHARED_SLOTS), policy)
}
