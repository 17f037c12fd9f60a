//! The sizes of entries.

use hybrid_pages::error::Result;
use hybrid_pages::geometry::Geometry;

/// One class of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class {
    /// Bytes of one rank's shard.
    pub(crate) shard_bytes: usize,
    /// Bytes of all shards.
    pub(crate) bytes: u64,
    /// Slots of the host that an entry takes.
    pub(crate) slots: usize,
}

pub(crate) fn classes(geometry: &Geometry, slot_bytes: usize) -> Result<Vec<Class>> {
    let class = |class: &hybrid_pages::geometry::PageClass| {
        Ok(Class {
            shard_bytes: class.rank_bytes,
            bytes: (class.rank_bytes * geometry.ranks()) as u64,
            slots: geometry.slots_per_entry(class.index, slot_bytes)?,
        })
    };
    geometry.classes().iter().map(class).collect()
}
