//! Counts of a Mooncake tier.

use hybrid_pages_tiers::{counts, failures};

failures! {
    /// Why a copy or a question failed: one count each.
    pub enum MooncakeFailure {
        /// A value that is not the entry that its key names: damaged, cut short, or another's.
        Header = "header",
        /// Bytes that have not the checksums that they were written with.
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
    /// Counts of a Mooncake tier at one moment, since it was connected where they are not of the moment.
    pub struct MooncakeStats: MooncakeFailure {
        /// Lookups of an entry that was there.
        hits: u64,
        /// Lookups of an entry that was not, or while the store was out.
        misses: u64,
        /// Entries that the store was asked for.
        asked: u64,
        /// Entries read.
        reads: u64,
        /// Payload of them.
        read_bytes: u64,
        /// Microseconds that these reads took, from call to end, summed.
        read_us: u64,
        /// Entries written.
        writes: u64,
        /// Bytes written, headers included.
        written_bytes: u64,
        /// Microseconds that these writes took, from call to end, summed.
        write_us: u64,
        /// Writes that were not needed: the same bytes were there.
        spared_writes: u64,
        /// Entries that were not taken since no second request has used them yet.
        unproven: u64,
        /// Entries that were not taken since the store took none.
        dropped: u64,
        /// Reads that have not ended.
        reading: u64,
        /// Writes that have not ended.
        writing: u64,
        /// Batches of writes, reads and questions that the client was given.
        puts: u64,
        /// See `puts`.
        gets: u64,
        /// See `puts`.
        lists: u64,
        /// Times that the store was left alone since it failed or hung.
        outages: u64,
        /// Whether it is left alone now, or the client is not ready yet.
        out: bool,
        /// Whether what is written is found by others: not after a clear.
        shared: bool,
        /// Times that the process of the client was started.
        helpers: u64,
        /// Microseconds that an answer takes, as last measured; 0 before.
        latency_us: u64,
        /// Bytes a second that reads bring, as last measured; 0 before.
        bandwidth: u64,
    }
}
