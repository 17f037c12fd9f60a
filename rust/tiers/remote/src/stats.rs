//! Counts of a remote store.

use hybrid_pages_tiers::{counts, failures};

failures! {
    /// Kinds of failures, each with a count of its own.
    pub enum RemoteFailure {
        /// A pack whose table is damaged, cut short, or of another pack.
        Table = "table",
        /// Bytes whose checksums are not those they were written with.
        Checksum = "checksum",
        /// Encrypted bytes that were not sealed with this key for this entry and this pack: changed or moved ones.
        Sealed = "sealed",
        /// An object that ends before its entry does.
        Short = "short",
        /// A read that the store refused, or a store that can't be reached.
        Read = "read",
        /// A read or a listing that took longer than the deadline.
        Deadline = "deadline",
        /// The pack was gone when it was read.
        Gone = "gone",
        /// A listing that the store refused.
        List = "list",
        /// A write that the store refused, or that took too long.
        Write = "write",
        /// Slots whose bytes don't have the checksums they were offered with.
        Source = "source",
        /// Entries that a reset has made wrong and that could not be removed yet. The removal is tried again.
        Remove = "remove",
        /// A write that was not begun because the store takes none.
        Paused = "paused",
        /// A pack that only a listing of everything has found, since the clock of its writer or of this engine is
        /// wrong.
        Late = "late",
        /// A task that panicked.
        Panic = "panic",
        /// A write that had not ended when the store was closed.
        Closed = "closed",
    }
}

counts! {
    /// Counts of a remote store at one moment. Counts of events begin when the store is connected.
    pub struct RemoteStats: RemoteFailure {
        /// Total microseconds that the reads of entries took, each from call to end.
        read_us: u64,
        /// Total microseconds that the writes of entries took, each from call to end.
        write_us: u64,
        /// Entries that were not written because no second request has used them yet.
        unproven: u64,
        /// Objects written.
        puts: u64,
        /// Ranges of objects read, tables included.
        gets: u64,
        /// Listings.
        lists: u64,
        /// Whether other engines find entries that this process writes now. False after a reset.
        shared: bool,
        /// Entries in the catalog.
        entries: u64,
        /// Packs in the catalog.
        packs: u64,
        /// Total payload of the entries in the catalog, in bytes.
        stored_bytes: u64,
        /// Measured latency of a small answer in microseconds; 0 before a measurement.
        latency_us: u64,
        /// Measured bandwidth of reads in bytes per second; 0 before a measurement.
        bandwidth: u64,
    }
}
