//! The load of a remote store: counts of requests and bytes, and the format of objects that determines them.

/// The format of packs, which are the objects of a remote store, and when engines look for new packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackFormat {
    /// A pack is sent when its entries have this many bytes.
    pub pack_bytes: u64,
    /// Milliseconds after its first entry at which a pack is sent, even if it is smaller than `pack_bytes`.
    pub wait: u64,
    /// The most bytes of neighbouring entries that one request fetches. A larger entry has a request of its own.
    pub run_bytes: u64,
    /// Age in milliseconds from which on a lookup finds the index too old, and looks for new packs.
    pub stale: u64,
    /// The most keys in a reply to a list request.
    pub list_keys: u64,
    /// A list request begins this many milliseconds before the last one: a pack may be under way as long, or clocks
    /// of engines may differ as much.
    pub overlap: u64,
    /// Milliseconds after which an engine lists all packs, to find out which were deleted.
    pub whole: u64,
    /// Bytes of a pack's table without its rows.
    pub table_bytes: u64,
    /// Bytes of the row of an entry in a pack's table.
    pub row_bytes: u64,
    /// Age in milliseconds at which packs are deleted; `None` if they never are.
    pub retention: Option<u64>,
}

impl Default for PackFormat {
    fn default() -> Self {
        Self {
            pack_bytes: 32 << 20,
            wait: 400,
            run_bytes: 8 << 20,
            stale: 1000,
            list_keys: 1000,
            overlap: 60_000,
            whole: 600_000,
            table_bytes: 128,
            row_bytes: 56,
            retention: None,
        }
    }
}

impl PackFormat {
    /// Total bytes of the tables of `packs` packs with `entries` entries in all.
    pub(crate) const fn table(&self, packs: u64, entries: u64) -> u64 {
        let rows = entries.saturating_mul(self.row_bytes);
        packs.saturating_mul(self.table_bytes).saturating_add(rows)
    }
}

/// Counts of requests to a remote store and of bytes, during a second or longer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreLoad {
    /// Lookups that looked for new packs.
    pub looks: u64,
    /// List requests. A long list takes several.
    pub lists: u64,
    /// Get requests for tables.
    pub table_gets: u64,
    /// Get requests for entries.
    pub data_gets: u64,
    /// Put requests.
    pub puts: u64,
    /// Bytes of tables that were fetched.
    pub table_bytes: u64,
    /// Bytes of entries that were fetched.
    pub down_bytes: u64,
    /// Bytes that were uploaded.
    pub up_bytes: u64,
}

impl StoreLoad {
    pub(crate) fn add(&mut self, other: &Self) {
        self.merge(other, u64::saturating_add);
    }

    /// Sets each count to the larger of the two.
    pub(crate) fn most(&mut self, other: &Self) {
        self.merge(other, u64::max);
    }

    fn merge(&mut self, other: &Self, join: impl Fn(u64, u64) -> u64) {
        for (one, more) in [
            (&mut self.looks, other.looks),
            (&mut self.lists, other.lists),
            (&mut self.table_gets, other.table_gets),
            (&mut self.data_gets, other.data_gets),
            (&mut self.puts, other.puts),
            (&mut self.table_bytes, other.table_bytes),
            (&mut self.down_bytes, other.down_bytes),
            (&mut self.up_bytes, other.up_bytes),
        ] {
            *one = join(*one, more);
        }
    }
}
