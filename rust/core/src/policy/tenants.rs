//! Evictable entries by tenant and rank: which of a tenant's entries leaves first when its share is full.

use super::NewEntry;
use super::chunk_table::ChunkTable;
use super::lists::Lists;
use crate::ids::{EntryId, TenantId};

/// Evictable entries of each tenant by rank, in the order in which they were put there. A policy says what a rank
/// means: the least leaves first. Entries without a tenant are not kept.
#[derive(Debug)]
pub struct ByTenant {
    ranks: usize,
    /// One list for each tenant and rank.
    lists: Lists,
    owners: ChunkTable<TenantId>,
}

impl ByTenant {
    /// No entries, for so many ranks.
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks,
            lists: Lists::new(0),
            owners: ChunkTable::new(TenantId::NONE),
        }
    }

    /// Notes the tenant of a new entry.
    pub fn enter(&mut self, entry: &NewEntry) {
        if entry.tenant != TenantId::NONE {
            self.lists.grow((entry.tenant.0 as usize + 1) * self.ranks);
            *self.owners.reach(entry.id.0) = entry.tenant;
        }
    }

    /// Puts an entry behind all others of its rank.
    #[inline]
    pub fn put(&mut self, id: EntryId, rank: usize) {
        if let Some(&owner) = self.owners.get(id.0)
            && owner != TenantId::NONE
        {
            self.lists.push(owner.0 as usize * self.ranks + rank, id.0);
        }
    }

    /// Takes an entry out that may not be evicted any more.
    #[inline]
    pub fn take(&mut self, id: EntryId) {
        self.lists.remove(id.0);
    }

    /// Forgets an entry that is gone.
    #[inline]
    pub fn leave(&mut self, id: EntryId) {
        self.take(id);
        if self.owners.get(id.0).is_some() {
            self.owners[id.0] = TenantId::NONE;
        }
    }

    /// The entry of a tenant that was put into a rank before all others there.
    pub fn first(&self, tenant: TenantId, rank: usize) -> Option<EntryId> {
        let list = tenant.0 as usize * self.ranks + rank;
        self.lists.first(list).map(EntryId)
    }

    /// The first entry of the least rank that has any of a tenant's, with that rank.
    pub fn least(&self, tenant: TenantId) -> Option<(EntryId, usize)> {
        (0..self.ranks).find_map(|rank| Some((self.first(tenant, rank)?, rank)))
    }

    /// Bytes of memory held.
    pub const fn bytes(&self) -> usize {
        self.lists.bytes() + self.owners.bytes()
    }
}
