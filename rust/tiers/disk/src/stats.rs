//! Counts of a disk.

use std::time::Duration;

use hybrid_pages_tiers::{counts, failures};

failures! {
    /// Kinds of failures and damage, each with a count of its own.
    pub enum DiskFailure {
        /// A cell whose header is not that of the entry in the index.
        Header = "header",
        /// Bytes whose checksums are not those they were written with.
        Checksum = "checksum",
        /// Encrypted bytes that were not sealed with this key for this entry and this cell: changed or moved ones.
        Sealed = "sealed",
        /// A file ends before its cell does.
        Short = "short",
        /// A read that the system refused.
        Read = "read",
        /// A read or write that exceeded the deadline, or waited for one that did.
        Deadline = "deadline",
        /// The entry left before it was read.
        Gone = "gone",
        /// No room on the file system.
        Full = "full",
        /// A write that the system refused.
        Write = "write",
        /// No cell within the quota.
        Quota = "quota",
        /// Slots whose bytes don't have the checksums they were offered with.
        Source = "source",
        /// The index could not be opened and is tried again, or could not be written and is made anew.
        Index = "index",
        /// The index was damaged; it was set aside.
        IndexDamaged = "index_damaged",
        /// A record of the index was damaged; the entry is lost.
        Record = "record",
        /// A directory or file could not be opened, removed, made or renamed, or the marker of the path was damaged.
        Directory = "directory",
        /// Bytes that could not be synced, or a hole that could not be punched.
        Upkeep = "upkeep",
        /// The saved knowledge of the policy was damaged or of another version; the policy learns anew.
        Learnt = "learnt",
    }
}

/// Upper limits, in microseconds, of the buckets of [`Latencies`]. The last bucket has none.
pub const LATENCY_LIMITS_US: [u64; 11] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
];

/// A histogram of how long copies took, from their call to their end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Number of copies in each bucket, not cumulative.
    pub buckets: [u64; LATENCY_LIMITS_US.len() + 1],
    /// Sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl Latencies {
    pub(crate) fn add(&mut self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_LIMITS_US.partition_point(|&limit| limit < took);
        self.buckets[bucket] += 1;
        self.sum_us = self.sum_us.saturating_add(took);
    }
}

counts! {
    /// Counts of a disk at one moment. Counts of events begin when the disk is connected.
    pub struct DiskStats: DiskFailure {
        /// Entries that can be found.
        entries: u64,
        /// Entries of earlier processes that no lookup has found again.
        left_over: u64,
        /// Bytes of the cells that are taken, including those of left over entries.
        live_bytes: u64,
        /// Bytes that other identities have in this lane.
        other_bytes: u64,
        /// Bytes that cells and other identities may take.
        quota_bytes: u64,
        /// Written entries that a new process would find if this one were killed now.
        durable: u64,
        /// Whether a later process finds entries that are written now. False after a reset.
        persistent: bool,
        /// Whether reads and writes go past the system's cache.
        direct: bool,
    }
    besides {
        /// Durations of reads that did not fail.
        read_latencies: Latencies,
        /// Durations of writes that did not fail.
        write_latencies: Latencies,
    }
}
