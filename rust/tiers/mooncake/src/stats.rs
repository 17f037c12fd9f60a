//! Counts of a Mooncake tier.

use hybrid_pages_tiers::{counts, failures};

failures! {
    /// Kinds of failures, each with a count of its own.
    pub enum MooncakeFailure {
        /// A value that is not the entry that its key names: damaged, cut short, or another's.
        Header = "header",
        /// Bytes with other checksums than they were written with.
        Checksum = "checksum",
        /// A read that the store refused, or a machine that has it and can't be reached.
        Read = "read",
        /// A read or a question that took longer than the deadline.
        Deadline = "deadline",
        /// The value had left when it was read.
        Gone = "gone",
        /// A question that the store refused.
        Ask = "ask",
        /// A write that the store refused, or took and lost.
        Write = "write",
        /// A write that found no room.
        Full = "full",
        /// A write of an entry that is there with other bytes, which the store keeps.
        Kept = "kept",
        /// A value that should go could not be removed yet; it is tried again.
        Remove = "remove",
        /// The process of Mooncake's client ended, hung, or could not be started.
        Helper = "helper",
        /// A write that had not ended when the store was closed.
        Closed = "closed",
        /// A panic inside: the store is left alone for good.
        Panic = "panic",
    }
}

counts! {
    /// Counts of a Mooncake tier at one moment. Counts of events begin when it is connected.
    pub struct MooncakeStats: MooncakeFailure {
        /// Lookups of an entry that was found.
        hits: u64,
        /// Lookups of an entry that was not found, or while the store was out.
        misses: u64,
        /// Entries that the store was asked for.
        asked: u64,
        /// Entries read.
        reads: u64,
        /// Bytes of payload of the entries read.
        read_bytes: u64,
        /// Microseconds that the reads of entries took, from call to end, summed.
        read_us: u64,
        /// Entries written.
        writes: u64,
        /// Bytes written, headers included.
        written_bytes: u64,
        /// Microseconds that the writes of entries took, from call to end, summed.
        write_us: u64,
        /// Writes that were not needed: the store had the entry.
        spared_writes: u64,
        /// Entries that were not written since no second request has used them yet.
        unproven: u64,
        /// Entries that were not written since the store took no writes.
        dropped: u64,
        /// Reads that have not ended.
        reading: u64,
        /// Writes that have not ended.
        writing: u64,
        /// Batches of writes that the client was given.
        puts: u64,
        /// Batches of reads that the client was given.
        gets: u64,
        /// Batches of questions that the client was given.
        lists: u64,
        /// Outages: times that the store began to be left alone because it failed or hung.
        outages: u64,
        /// Whether the store is left alone now, or the client is not ready yet.
        out: bool,
        /// Whether others find what this process writes: not after a reset.
        shared: bool,
        /// Times that the process of the client was started.
        helpers: u64,
        /// Microseconds that an answer takes, as last measured; 0 before.
        latency_us: u64,
        /// Bytes a second that reads bring, as last measured; 0 before.
        bandwidth: u64,
    }
}
