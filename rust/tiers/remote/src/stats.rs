//! Counts of a remote store.

/// Why a copy or a question failed: one count each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A pack whose table is damaged, cut short, or another pack's.
    Table,
    /// Bytes that have not the checksums that they were written with.
    Checksum,
    /// An object that ends before its entry does.
    Short,
    /// A read that the store refused, or a store that can't be reached.
    Read,
    /// A read or a question that took longer than the deadline.
    Deadline,
    /// The pack was gone when it was read.
    Gone,
    /// A listing that the store refused.
    List,
    /// A write that the store refused, or that took too long.
    Write,
    /// The bytes in the slots had not the checksums that they were offered with.
    Source,
    /// What a reset has made wrong could not be removed yet; it is tried again.
    Remove,
    /// A write that was not begun, since the store takes none.
    Paused,
    /// A pack that only a listing of everything has found: its writer's clock, or this engine's, is wrong.
    Late,
    /// A task that panicked.
    Panic,
    /// A write that had not ended when the store was closed.
    Closed,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Table,
        Self::Checksum,
        Self::Short,
        Self::Read,
        Self::Deadline,
        Self::Gone,
        Self::List,
        Self::Write,
        Self::Source,
        Self::Remove,
        Self::Paused,
        Self::Late,
        Self::Panic,
        Self::Closed,
    ];

    /// Its name in counts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Checksum => "checksum",
            Self::Short => "short",
            Self::Read => "read",
            Self::Deadline => "deadline",
            Self::Gone => "gone",
            Self::List => "list",
            Self::Write => "write",
            Self::Source => "source",
            Self::Remove => "remove",
            Self::Paused => "paused",
            Self::Late => "late",
            Self::Panic => "panic",
            Self::Closed => "closed",
        }
    }
}

/// Counts of a remote store at one moment, since it was connected where they are not of the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// Lookups of an entry that was there.
    pub hits: u64,
    /// Lookups of an entry that was not, or while the store was out.
    pub misses: u64,
    /// Entries read.
    pub reads: u64,
    /// Payload of them.
    pub read_bytes: u64,
    /// Microseconds that these reads took, from call to end, summed.
    pub read_us: u64,
    /// Entries written.
    pub writes: u64,
    /// Bytes written, tables included.
    pub written_bytes: u64,
    /// Microseconds that these writes took, from call to end, summed.
    pub write_us: u64,
    /// Writes that were not needed: the bytes were there.
    pub spared_writes: u64,
    /// Reads that have not ended.
    pub reading: u64,
    /// Writes that have not ended.
    pub writing: u64,
    /// Entries that were not taken since no second request has used them yet.
    pub unproven: u64,
    /// Entries that were not taken since the store took none.
    pub dropped: u64,
    /// Objects written.
    pub puts: u64,
    /// Ranges of objects read, tables included.
    pub gets: u64,
    /// Listings.
    pub lists: u64,
    /// Times that the store was left alone since it failed or hung.
    pub outages: u64,
    /// Whether it is left alone now.
    pub out: bool,
    /// Whether what is written is found by others: not after a clear.
    pub shared: bool,
    /// Failures by reason, in the order of [`Reason::ALL`].
    pub failures: [u64; Reason::ALL.len()],
    /// Entries in the catalog.
    pub entries: u64,
    /// Packs in the catalog.
    pub packs: u64,
    /// Payload of the entries in the catalog.
    pub stored_bytes: u64,
    /// Microseconds that a small answer takes, as last measured; 0 before.
    pub latency_us: u64,
    /// Bytes a second that reads bring, as last measured; 0 before.
    pub bandwidth: u64,
}

impl RemoteStats {
    /// Every count with its name, but for failures.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 24] {
        [
            ("hits", self.hits),
            ("misses", self.misses),
            ("reads", self.reads),
            ("read_bytes", self.read_bytes),
            ("read_us", self.read_us),
            ("writes", self.writes),
            ("written_bytes", self.written_bytes),
            ("write_us", self.write_us),
            ("spared_writes", self.spared_writes),
            ("reading", self.reading),
            ("writing", self.writing),
            ("unproven", self.unproven),
            ("dropped", self.dropped),
            ("puts", self.puts),
            ("gets", self.gets),
            ("lists", self.lists),
            ("outages", self.outages),
            ("out", self.out.into()),
            ("shared", self.shared.into()),
            ("entries", self.entries),
            ("packs", self.packs),
            ("stored_bytes", self.stored_bytes),
            ("latency_us", self.latency_us),
            ("bandwidth", self.bandwidth),
        ]
    }

    /// Failures of a reason.
    #[must_use]
    pub fn failed(&self, reason: Reason) -> u64 {
        self.failures[reason as usize]
    }
}
