//! Entries as a lease shows them.

use smallvec::SmallVec;

use crate::ids::SlotId;

/// The slots of an entry. Up to four are stored in place.
pub type Slots = SmallVec<[SlotId; 4]>;

/// One page or checkpoint under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseEntry {
    /// Index of the class.
    pub class_index: usize,
    /// Index of the block.
    pub block_index: usize,
    /// The slots that hold the payload, in payload order.
    pub slots: Slots,
    /// Checksums of the shards, one per rank; empty while the entry is being written, and if it was published
    /// without them.
    pub checksums: Vec<u64>,
}

/// Entries wanted by a [`WriteLease`](super::WriteLease) that it doesn't write, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Entries that are resident already.
    pub resident: usize,
    /// Entries that another lease, or the same call, is writing already.
    pub in_writing: usize,
    /// Entries without room: everything else that could make room is in use or belongs to the same prefix.
    pub no_room: usize,
    /// Entries without room while some slots are not ready.
    pub not_ready: usize,
    /// Entries without room in the share of the tenant.
    pub tenant_share: usize,
    /// Entries that could never be reached: a page before them is neither there nor being written.
    pub orphan: usize,
}
