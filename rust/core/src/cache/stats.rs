//! Counts that a cache gives out.

use crate::tier::Usage;

/// Makes a struct of counts.
macro_rules! counts {
    (
        $(#[$about:meta])*
        pub struct $type:ident { $($(#[$doc:meta])* pub $field:ident: u64,)+ }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $type { $($(#[$doc])* pub $field: u64,)+ }

        impl $type {
            /// Every count with its name.
            #[must_use]
            pub const fn fields(&self) -> [(&'static str, u64); [$(stringify!($field)),+].len()] {
                [$((stringify!($field), self.$field)),+]
            }
        }
    };
}

counts! {
    /// Counts and sizes of a cache at one moment, in the host. For the tiers below see [`TierStats`].
    pub struct CacheStats {
        /// Slots in all.
        pub slots: u64,
        /// Slots that may be taken by now; see [`Cache::set_ready_slots`](super::Cache::set_ready_slots).
        pub ready_slots: u64,
        /// Ready slots that hold nothing.
        pub free_slots: u64,
        /// Bytes of a slot.
        pub slot_bytes: u64,
        /// Resident attention pages.
        pub pages: u64,
        /// Resident checkpoints.
        pub checkpoints: u64,
        /// Resident window pages.
        pub windows: u64,
        /// Bytes of the slots of resident attention pages.
        pub page_bytes: u64,
        /// Bytes of the slots of resident checkpoints.
        pub checkpoint_bytes: u64,
        /// Bytes of the slots of resident window pages.
        pub window_bytes: u64,
        /// Slots that can't be evicted now: a lease reads them, writes them or needs them to be reachable.
        pub leased_slots: u64,
        /// Entries of write leases that have not ended.
        pub writing_entries: u64,
        /// Boundaries in the index.
        pub nodes: u64,
        /// Attention pages that write leases have published since the start.
        pub stored_pages: u64,
        /// Checkpoints that write leases have published since the start.
        pub stored_checkpoints: u64,
        /// Window pages that write leases have published since the start.
        pub stored_windows: u64,
        /// Attention pages evicted since the start.
        pub evicted_pages: u64,
        /// Checkpoints evicted since the start.
        pub evicted_checkpoints: u64,
        /// Window pages evicted since the start.
        pub evicted_windows: u64,
        /// Resident entries dropped since the start because a page before them went.
        pub reclaimed: u64,
        /// Tenants that have entries, where a tenant's share is less than all.
        pub tenants: u64,
        /// Bytes of memory that index, policy, tables and pool hold.
        pub metadata_bytes: u64,
    }
}

/// Counts of a tier below the host: of this moment where they say so, otherwise since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Name of the tier.
    pub name: String,
    /// The room at this moment, in slots, and the number of evicted entries.
    pub usage: Usage,
    /// Entries written.
    pub written: u64,
    /// Times that an entry was offered and not wanted, found the queue full, or no room.
    pub declined: u64,
    /// Writes that failed; each cost that write.
    pub failed_writes: u64,
    /// Entries that were there before the cache, or put there by others.
    pub found: u64,
    /// Entries read.
    pub read: u64,
    /// Reads that failed; the tier's entry was dropped.
    pub failed_reads: u64,
    /// Reads of other bytes than were written; the tier's entry was dropped.
    pub corrupt_reads: u64,
}

counts! {
    /// Counts of restores from tiers below the host.
    pub struct RestoreStats {
        /// Restores that were begun.
        pub begun: u64,
        /// Restores that have not ended and come in waves, since the host can't hold them.
        pub in_waves: u64,
        /// Waves that were taken to be loaded.
        pub waves: u64,
        /// Restores that failed: something that they needed was gone or damaged.
        pub failed: u64,
        /// Promotions that read up to a shallower boundary than the joint hit, for want of room.
        pub shallower: u64,
        /// Restores and promotions that left out a part of the joint hit, or all of it, since computing is faster.
        pub not_worth: u64,
    }
}

impl TierStats {
    /// Every count with its name.
    #[must_use]
    pub const fn fields(&self) -> [(&'static str, u64); 12] {
        [
            ("slots", self.usage.capacity),
            ("free_slots", self.usage.free),
            ("evictable_slots", self.usage.evictable),
            ("entries", self.usage.entries),
            ("evicted", self.usage.evicted),
            ("written", self.written),
            ("declined", self.declined),
            ("failed_writes", self.failed_writes),
            ("found", self.found),
            ("read", self.read),
            ("failed_reads", self.failed_reads),
            ("corrupt_reads", self.corrupt_reads),
        ]
    }
}
