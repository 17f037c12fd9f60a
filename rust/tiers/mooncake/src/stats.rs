//! Counts of a Mooncake tier.

/// Why a copy or a question failed: one count each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A value that is not the entry that its key names: damaged, cut short, or another's.
    Header,
    /// Bytes that have not the checksums that they were written with.
    Checksum,
    /// A read that the store refused, or a machine that has it and can't be reached.
    Read,
    /// A read or a question that took longer than the deadline.
    Deadline,
    /// The value had left when it was read.
    Gone,
    /// A question that the store refused.
    Ask,
    /// A write that the store refused, or took and lost.
    Write,
    /// A write that found no room.
    Full,
    /// A write of an entry that is there with other bytes, which the store keeps.
    Kept,
    /// A value that should go could not be removed yet; it is tried again.
    Remove,
    /// The process of Mooncake's client ended, hung, or could not be started.
    Helper,
    /// A write that had not ended when the store was closed.
    Closed,
    /// A panic inside: the store is left alone for good.
    Panic,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Header,
        Self::Checksum,
        Self::Read,
        Self::Deadline,
        Self::Gone,
        Self::Ask,
        Self::Write,
        Self::Full,
        Self::Kept,
        Self::Remove,
        Self::Helper,
        Self::Closed,
        Self::Panic,
    ];

    /// Its name in counts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Checksum => "checksum",
            Self::Read => "read",
            Self::Deadline => "deadline",
            Self::Gone => "gone",
            Self::Ask => "ask",
            Self::Write => "write",
            Self::Full => "full",
            Self::Kept => "kept",
            Self::Remove => "remove",
            Self::Helper => "helper",
            Self::Closed => "closed",
            Self::Panic => "panic",
        }
    }
}

/// Counts of a Mooncake tier at one moment, since it was connected where they are not of the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MooncakeStats {
    /// Lookups of an entry that was there.
    pub hits: u64,
    /// Lookups of an entry that was not, or while the store was out.
    pub misses: u64,
    /// Entries that the store was asked for.
    pub asked: u64,
    /// Entries read.
    pub reads: u64,
    /// Payload of them.
    pub read_bytes: u64,
    /// Microseconds that these reads took, from call to end, summed.
    pub read_us: u64,
    /// Entries written.
    pub writes: u64,
    /// Bytes written, headers included.
    pub written_bytes: u64,
    /// Microseconds that these writes took, from call to end, summed.
    pub write_us: u64,
    /// Writes that were not needed: the same bytes were there.
    pub spared_writes: u64,
    /// Entries that were not taken since no second request has used them yet.
    pub unproven: u64,
    /// Entries that were not taken since the store took none.
    pub dropped: u64,
    /// Reads that have not ended.
    pub reading: u64,
    /// Writes that have not ended.
    pub writing: u64,
    /// Batches of writes, reads and questions that the client was given.
    pub puts: u64,
    /// See `puts`.
    pub gets: u64,
    /// See `puts`.
    pub lists: u64,
    /// Times that the store was left alone since it failed or hung.
    pub outages: u64,
    /// Whether it is left alone now, or the client is not ready yet.
    pub out: bool,
    /// Whether what is written is found by others: not after a clear.
    pub shared: bool,
    /// Times that the process of the client was started.
    pub helpers: u64,
    /// Microseconds that an answer takes, as last measured; 0 before.
    pub latency_us: u64,
    /// Bytes a second that reads bring, as last measured; 0 before.
    pub bandwidth: u64,
    /// Failures by reason, in the order of [`Reason::ALL`].
    pub failures: [u64; Reason::ALL.len()],
}

impl MooncakeStats {
    /// Every count with its name, but for failures.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 23] {
        [
            ("hits", self.hits),
            ("misses", self.misses),
            ("asked", self.asked),
            ("reads", self.reads),
            ("read_bytes", self.read_bytes),
            ("read_us", self.read_us),
            ("writes", self.writes),
            ("written_bytes", self.written_bytes),
            ("write_us", self.write_us),
            ("spared_writes", self.spared_writes),
            ("unproven", self.unproven),
            ("dropped", self.dropped),
            ("reading", self.reading),
            ("writing", self.writing),
            ("puts", self.puts),
            ("gets", self.gets),
            ("lists", self.lists),
            ("outages", self.outages),
            ("out", self.out.into()),
            ("shared", self.shared.into()),
            ("helpers", self.helpers),
            ("latency_us", self.latency_us),
            ("bandwidth", self.bandwidth),
        ]
    }

    /// Failures of a reason.
    #[must_use]
    pub const fn failed(&self, reason: Reason) -> u64 {
        self.failures[reason as usize]
    }
}
