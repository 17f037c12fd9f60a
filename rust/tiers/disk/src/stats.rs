//! Counts of a disk.

use std::time::Duration;

/// Why a copy failed, or an entry was lost: one count each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A cell holds something else than the index says.
    Header,
    /// Bytes that have not the checksums that they were written with.
    Checksum,
    /// A file ends before its cell does.
    Short,
    /// A read that the system refused.
    Read,
    /// A read or write with a call that took longer than the deadline, or that waited for one.
    Deadline,
    /// The entry left before it was read.
    Gone,
    /// No room on the file system.
    Full,
    /// A write that the system refused.
    Write,
    /// No cell within the quota.
    Quota,
    /// The bytes in the slots had not the checksums that they were offered with.
    Source,
    /// The index could not be opened, and is tried again; or not be written, and is made anew.
    Index,
    /// The index was damaged; it was set aside.
    IndexDamaged,
    /// A record of the index was damaged; the entry is lost.
    Record,
    /// A directory or file could not be opened, removed, made or renamed, or the marker of the path was damaged.
    Directory,
    /// Bytes that could not be synced, or a hole that could not be punched.
    Upkeep,
    /// What the policy had learned was damaged or of another version; it learns anew.
    Learnt,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Header,
        Self::Checksum,
        Self::Short,
        Self::Read,
        Self::Deadline,
        Self::Gone,
        Self::Full,
        Self::Write,
        Self::Quota,
        Self::Source,
        Self::Index,
        Self::IndexDamaged,
        Self::Record,
        Self::Directory,
        Self::Upkeep,
        Self::Learnt,
    ];

    /// Its name in counts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Checksum => "checksum",
            Self::Short => "short",
            Self::Read => "read",
            Self::Deadline => "deadline",
            Self::Gone => "gone",
            Self::Full => "full",
            Self::Write => "write",
            Self::Quota => "quota",
            Self::Source => "source",
            Self::Index => "index",
            Self::IndexDamaged => "index_damaged",
            Self::Record => "record",
            Self::Directory => "directory",
            Self::Upkeep => "upkeep",
            Self::Learnt => "learnt",
        }
    }
}

/// Upper limits, in microseconds, of the buckets of [`Latencies`]; the last bucket has none.
pub const LATENCY_LIMITS_US: [u64; 11] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
];

/// How long copies took, from their call to their end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Copies in each bucket, not added up.
    pub buckets: [u64; LATENCY_LIMITS_US.len() + 1],
    /// All of them together, in microseconds.
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

/// Counts of a disk at one moment, since it was connected where they are not of the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Lookups of an entry that was there.
    pub hits: u64,
    /// Lookups of an entry that was not, or while the disk was out.
    pub misses: u64,
    /// Entries read.
    pub reads: u64,
    /// Payload of them.
    pub read_bytes: u64,
    /// How long reads took that did not fail.
    pub read_latencies: Latencies,
    /// Entries written.
    pub writes: u64,
    /// Bytes written for entries, headers and padding included.
    pub written_bytes: u64,
    /// How long writes took that did not fail.
    pub write_latencies: Latencies,
    /// Writes that were not needed: the bytes were there.
    pub spared_writes: u64,
    /// Reads that have not ended.
    pub reading: u64,
    /// Writes that have not ended.
    pub writing: u64,
    /// Times that an entry was offered while the disk took none.
    pub dropped: u64,
    /// Times that the disk was taken out because it hung or could not be opened.
    pub outages: u64,
    /// Whether it is out now.
    pub out: bool,
    /// Failures by reason, in the order of [`Reason::ALL`].
    pub failures: [u64; Reason::ALL.len()],
    /// Entries that can be found.
    pub entries: u64,
    /// Entries of earlier processes that no lookup has found again.
    pub left_over: u64,
    /// Bytes of the cells that are taken, left over ones included.
    pub live_bytes: u64,
    /// Bytes that other identities have in this lane.
    pub other_bytes: u64,
    /// Bytes that cells and other identities may take.
    pub quota_bytes: u64,
    /// Entries written that a new process would find after this one is killed.
    pub durable: u64,
    /// Whether what is written now outlives this process: not after a clear.
    pub persistent: bool,
    /// Whether bytes go past the system's cache.
    pub direct: bool,
}

impl DiskStats {
    /// Every count with its name, but for latencies and failures.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 20] {
        [
            ("hits", self.hits),
            ("misses", self.misses),
            ("reads", self.reads),
            ("read_bytes", self.read_bytes),
            ("writes", self.writes),
            ("written_bytes", self.written_bytes),
            ("spared_writes", self.spared_writes),
            ("reading", self.reading),
            ("writing", self.writing),
            ("dropped", self.dropped),
            ("outages", self.outages),
            ("out", self.out.into()),
            ("entries", self.entries),
            ("left_over", self.left_over),
            ("live_bytes", self.live_bytes),
            ("other_bytes", self.other_bytes),
            ("quota_bytes", self.quota_bytes),
            ("durable", self.durable),
            ("persistent", self.persistent.into()),
            ("direct", self.direct.into()),
        ]
    }

    /// Failures of a reason.
    #[must_use]
    pub fn failed(&self, reason: Reason) -> u64 {
        self.failures[reason as usize]
    }
}
