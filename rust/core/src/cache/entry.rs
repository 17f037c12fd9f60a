//! Entries as a lease shows them.

use smallvec::SmallVec;

use crate::ids::SlotId;

/// Slots of an entry; a few take no memory of their own.
pub type Slots = SmallVec<[SlotId; 4]>;

/// One page or checkpoint under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseEntry {
    /// Index of the class.
    pub class_index: usize,
    /// Index of the block.
    pub block_index: usize,
    /// Where the payload lies, in payload order.
    pub slots: Slots,
    /// Checksums of the shards, one per rank; empty while the entry is being written, and if it was published
    /// without them.
    pub checksums: Vec<u64>,
}

/// Entries wanted by a [`WriteLease`](super::WriteLease) that it doesn't write, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// There already.
    pub resident: usize,
    /// Another lease, or the same call, writes it already.
    pub in_writing: usize,
    /// Everything else that could make room is in use or belongs to the same prefix.
    pub no_room: usize,
    /// No room, while some slots are not ready.
    pub not_ready: usize,
    /// No room within the share of the tenant.
    pub tenant_share: usize,
    /// A page before it is neither there nor being written: it could never be reached.
    pub orphan: usize,
}
