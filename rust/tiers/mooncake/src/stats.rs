//! Counts of a Mooncake tier.

use hybrid_pages_tiers::{counts, failures};

failures! {
    /// Kinds of failures, each with a count of its own.
    pub enum MooncakeFailure {
        /// A value that is not the entry of its key: damaged, cut short, or another entry.
        Header = "header",
        /// Bytes whose checksums are not those they were written with.
        Checksum = "checksum",
        /// A read that the store refused, or whose machine can't be reached.
        Read = "read",
        /// A read or a question that took longer than the deadline.
        Deadline = "deadline",
        /// The value had left when it was read.
        Gone = "gone",
        /// A question that the store refused.
        Ask = "ask",
        /// A write that the store refused, or accepted and lost.
        Write = "write",
        /// A write that found no room.
        Full = "full",
        /// A write of an entry that is in the store with other bytes, which the store keeps.
        Kept = "kept",
        /// A value that could not be removed yet. It is tried again.
        Remove = "remove",
        /// The helper, which runs Mooncake's client, ended, hung, or could not be started.
        Helper = "helper",
        /// A write that had not ended when the store was closed.
        Closed = "closed",
        /// A panic inside the tier. The store is left alone for good.
        Panic = "panic",
    }
}

counts! {
    /// Counts of a Mooncake tier at one moment. Counts of events begin when the tier is connected.
    pub struct MooncakeStats: MooncakeFailure {
        /// Entries that the store was asked for.
        asked: u64,
        /// Total microseconds that the reads of entries took, each from call to end.
        read_us: u64,
        /// Total microseconds that the writes of entries took, each from call to end.
        write_us: u64,
        /// Entries that were not written because no second request has used them yet.
        unproven: u64,
        /// Batches of writes that the client was given.
        puts: u64,
        /// Batches of reads that the client was given.
        gets: u64,
        /// Batches of questions that the client was given.
        lists: u64,
        /// Whether other processes find entries that this one writes now. False after a reset.
        shared: bool,
        /// How often a helper was started.
        helpers: u64,
        /// Measured latency of a small answer in microseconds; 0 before a measurement.
        latency_us: u64,
        /// Measured bandwidth of reads in bytes per second; 0 before a measurement.
        bandwidth: u64,
    }
}
