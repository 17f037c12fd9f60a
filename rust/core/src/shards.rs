//! A hash table in many small ones, each of which grows by itself: no insertion moves a large table.

use hashbrown::HashTable;

const SHARDS: usize = 1 << 10;

/// Items by hash, each in one of many tables.
#[derive(Debug)]
pub(crate) struct Shards<T> {
    /// None at all before the first item.
    tables: Vec<HashTable<T>>,
    len: usize,
}

impl<T> Default for Shards<T> {
    fn default() -> Self {
        let (tables, len) = (Vec::new(), 0);
        Self { tables, len }
    }
}

impl<T> Shards<T> {
    /// The shard of a hash, by bits that its table doesn't use.
    const fn shard(hash: u64) -> usize {
        (hash >> 44) as usize % SHARDS
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        self.tables.get(Self::shard(hash))?.find(hash, is_it)
    }

    /// Adds an item that is not there yet.
    #[inline]
    pub(crate) fn insert_unique(&mut self, hash: u64, item: T, hash_of: impl Fn(&T) -> u64) {
        if self.tables.is_empty() {
            self.tables.resize_with(SHARDS, HashTable::new);
        }
        self.tables[Self::shard(hash)].insert_unique(hash, item, hash_of);
        self.len += 1;
    }

    /// Takes an item out, if it is there.
    #[inline]
    pub(crate) fn remove(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let table = self.tables.get_mut(Self::shard(hash))?;
        let (item, _) = table.find_entry(hash, is_it).ok()?.remove();
        if table.is_empty() {
            *table = HashTable::new();
        }
        self.len -= 1;
        Some(item)
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.tables.iter().flatten()
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = T> {
        self.tables.into_iter().flatten()
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        let tables = self.tables.iter().map(HashTable::allocation_size);
        tables.sum::<usize>() + self.tables.capacity() * size_of::<HashTable<T>>()
    }
}
