//! What a remote store has to do: the format of its objects, and counts of requests and bytes.

/// The format of packs, and when engines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// A pack is sent when its entries have so many bytes, or
    pub pack_bytes: u64,
    /// when its first entry has waited so many ms.
    pub wait: u64,
    /// Entries of a run have at most so many bytes together; a larger entry is a run.
    pub run_bytes: u64,
    /// A lookup finds its index too old after so many ms.
    pub stale: u64,
    /// Keys in a reply to a list.
    pub list_keys: u64,
    /// A list begins so many ms before the last one: so long may a pack be under way, and the clocks of engines differ.
    pub overlap: u64,
    /// An engine lists everything after so many ms, to learn what was deleted.
    pub whole: u64,
    /// Bytes of a pack's table, but for its rows.
    pub table_bytes: u64,
    /// Bytes of an entry's row there.
    pub row_bytes: u64,
    /// Packs are deleted after so many ms.
    pub retention: Option<u64>,
}

impl Default for Packing {
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

impl Packing {
    /// Bytes of the tables of packs with so many entries together.
    pub(crate) const fn table(&self, packs: u64, entries: u64) -> u64 {
        let rows = entries.saturating_mul(self.row_bytes);
        packs.saturating_mul(self.table_bytes).saturating_add(rows)
    }
}

/// Requests and bytes: of a second, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Lookups that found their index old.
    pub looks: u64,
    /// Lists: one for each full reply.
    pub lists: u64,
    /// Gets of tables.
    pub table_gets: u64,
    /// Gets of entries.
    pub data_gets: u64,
    /// Puts.
    pub puts: u64,
    /// Bytes of tables that were got.
    pub table_bytes: u64,
    /// Bytes of entries that were got.
    pub down_bytes: u64,
    /// Bytes that were put.
    pub up_bytes: u64,
}

impl Load {
    pub(crate) fn add(&mut self, other: &Self) {
        self.merge(other, u64::saturating_add);
    }

    /// The larger of each.
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
