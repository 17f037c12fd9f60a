//! Evictable entries by tenant, each tenant's by rank: what leaves first when a tenant has its share.

use super::NewEntry;
use super::list::Lists;
use super::table::Table;
use crate::ids::{EntryId, TenantId};

/// Entries by tenant and rank; of entries without a tenant it keeps nothing.
#[derive(Debug)]
pub(super) struct ByTenant {
    ranks: usize,
    /// One a tenant and rank.
    lists: Lists,
    owners: Table<TenantId>,
}

impl ByTenant {
    /// Nothing, for so many ranks.
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            ranks,
            lists: Lists::new(0),
            owners: Table::new(TenantId::NONE),
        }
    }

    /// Notes whose an entry is.
    pub(super) fn enter(&mut self, entry: &NewEntry) {
        if entry.tenant != TenantId::NONE {
            self.lists.grow((entry.tenant.0 as usize + 1) * self.ranks);
            *self.owners.reach(entry.id.0) = entry.tenant;
        }
    }

    /// Puts an entry behind all others of its rank.
    #[inline]
    pub(super) fn put(&mut self, id: EntryId, rank: usize) {
        if let Some(&owner) = self.owners.get(id.0)
            && owner != TenantId::NONE
        {
            self.lists.push(owner.0 as usize * self.ranks + rank, id.0);
        }
    }

    /// An entry may not be evicted.
    #[inline]
    pub(super) fn take(&mut self, id: EntryId) {
        self.lists.remove(id.0);
    }

    /// An entry is gone.
    #[inline]
    pub(super) fn leave(&mut self, id: EntryId) {
        self.take(id);
        if self.owners.get(id.0).is_some() {
            self.owners[id.0] = TenantId::NONE;
        }
    }

    /// The first of a tenant's entries of a rank.
    pub(super) fn first(&self, tenant: TenantId, rank: usize) -> Option<EntryId> {
        let list = tenant.0 as usize * self.ranks + rank;
        self.lists.first(list).map(EntryId)
    }

    /// The first of a tenant's entries of the least rank, with that.
    pub(super) fn least(&self, tenant: TenantId) -> Option<(EntryId, usize)> {
        (0..self.ranks).find_map(|rank| Some((self.first(tenant, rank)?, rank)))
    }

    pub(super) const fn bytes(&self) -> usize {
        self.lists.bytes() + self.owners.bytes()
    }
}
