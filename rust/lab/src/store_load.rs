//! The load of a remote store: the format of its objects, and counts of requests and bytes.

/// The format of packs, the objects of a remote store, and when engines look for new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackFormat {
    /// Bytes of entries at which a pack is sent.
    pub pack_bytes: u64,
    /// Milliseconds after which a pack is sent that has not reached `pack_bytes`, counted from its first entry.
    pub wait: u64,
    /// The most bytes of a run, which is fetched by one request: neighbouring entries of a pack, or one larger entry.
    pub run_bytes: u64,
    /// Milliseconds after which a lookup looks for new packs.
    pub stale: u64,
    /// The most keys in a reply to a list request.
    pub list_keys: u64,
    /// Milliseconds before the last list request at which a list begins: so long may a pack be under way, and so much
    /// may the clocks of engines differ.
    pub overlap: u64,
    /// Milliseconds after which an engine lists everything, to learn what was deleted.
    pub whole: u64,
    /// Bytes of a pack's table without its rows.
    pub table_bytes: u64,
    /// Bytes of the row of an entry in a pack's table.
    pub row_bytes: u64,
    /// Milliseconds after which packs are deleted; `None` for never.
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
    /// Bytes of the tables of packs with so many entries together.
    pub(crate) const fn table(&self, packs: u64, entries: u64) -> u64 {
        let rows = entries.saturating_mul(self.row_bytes);
        packs.saturating_mul(self.table_bytes).saturating_add(rows)
    }
}

/// Counts of requests to a remote store and of bytes, in one second or in a longer time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreLoad {
    /// Lookups that looked for new packs.
    pub looks: u64,
    /// List requests: one for each reply.
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

    /// Keeps the larger of each count.
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
