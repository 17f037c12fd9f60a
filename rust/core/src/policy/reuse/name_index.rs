//! A hash table of numbers by name, with linear hashing: it grows by one bucket at a time and never moves everything.

use crate::policy::chunk_table::ChunkTable;

const NONE: u32 = u32::MAX;
/// Buckets of an empty table.
const FIRST: u32 = 1024;

#[derive(Debug, Clone, Copy)]
struct Chained {
    name: u64,
    after: u32,
}

/// Small numbers by name, in chains of a hash table with at least two buckets for each number.
#[derive(Debug)]
pub(super) struct NameIndex {
    heads: ChunkTable<u32>,
    links: ChunkTable<Chained>,
    buckets: u32,
    len: u32,
}

impl NameIndex {
    pub(super) fn new() -> Self {
        let mut heads = ChunkTable::new(NONE);
        heads.reach(FIRST - 1);
        Self {
            heads,
            links: ChunkTable::new(Chained {
                name: 0,
                after: NONE,
            }),
            buckets: FIRST,
            len: 0,
        }
    }

    fn bucket(&self, name: u64) -> u32 {
        let hash = (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        let most = self.buckets.next_power_of_two();
        let bucket = hash & (most - 1);
        if bucket < self.buckets {
            bucket
        } else {
            bucket - most / 2
        }
    }

    fn link(&mut self, item: u32) {
        let bucket = self.bucket(self.links[item].name);
        self.links[item].after = std::mem::replace(&mut self.heads[bucket], item);
    }

    /// Adds a number. Of several numbers with one name, the last one is found.
    pub(super) fn insert(&mut self, name: u64, item: u32) {
        self.links.reach(item).name = name;
        self.link(item);
        self.len += 1;
        while self.buckets < self.len * 2 && self.buckets < 1 << 31 {
            self.split();
        }
    }

    /// Adds a bucket, and moves to it the numbers of an older bucket that belong there.
    fn split(&mut self) {
        let from = self.buckets - self.buckets.next_power_of_two() / 2;
        let from = if self.buckets.is_power_of_two() {
            0
        } else {
            from
        };
        self.heads.reach(self.buckets);
        self.buckets += 1;
        let mut at = std::mem::replace(&mut self.heads[from], NONE);
        while at != NONE {
            let after = self.links[at].after;
            self.link(at);
            at = after;
        }
    }

    pub(super) fn find(&self, name: u64) -> Option<u32> {
        let mut at = self.heads[self.bucket(name)];
        while at != NONE {
            let link = self.links[at];
            if link.name == name {
                return Some(at);
            }
            at = link.after;
        }
        None
    }

    /// Removes a number that is in the table.
    pub(super) fn remove(&mut self, item: u32) {
        let Chained { name, after } = self.links[item];
        let bucket = self.bucket(name);
        let mut at = self.heads[bucket];
        if at == item {
            self.heads[bucket] = after;
        }
        while at != NONE && at != item {
            let next = self.links[at].after;
            if next == item {
                self.links[at].after = after;
            }
            at = next;
        }
        self.len -= 1;
    }

    pub(super) const fn bytes(&self) -> usize {
        self.heads.bytes() + self.links.bytes()
    }
}
