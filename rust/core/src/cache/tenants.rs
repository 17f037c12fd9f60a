//! The share of the host's room that one tenant cannot exceed.
//!
//! An entry counts against the tenant of its namespace from when it gets slots until they are free again.
//! A tenant at its share makes room among its own entries, never among others'. Without a share nothing is
//! counted.

use hashbrown::HashMap;

use crate::ids::{EntryId, NodeId, TenantId};
use crate::rows::Rows;
use crate::slab::Slab;
use crate::slot::EntryRecord;

/// One tenant that has slots.
#[derive(Debug)]
struct Tenant {
    name: u64,
    used: u64,
    evictable: u64,
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The host is full of entries that can't be evicted.
    Host,
    /// The tenant's share is full.
    Share,
}

/// Slots by tenant.
#[derive(Debug)]
pub(super) struct Tenants {
    /// The most slots that one tenant may have; `None` if slots are not counted.
    share: Option<u64>,
    numbers: HashMap<u64, TenantId>,
    tenants: Slab<Tenant>,
    owners: Rows<TenantId>,
}

impl Tenants {
    pub(super) fn new(share: Option<u64>) -> Self {
        Self {
            share,
            numbers: HashMap::new(),
            tenants: Slab::new(),
            owners: Rows::new(1),
        }
    }

    pub(super) const fn is_counted(&self) -> bool {
        self.share.is_some()
    }

    /// Tenants that have slots.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The tenant of an entry that has slots.
    pub(super) fn owner(&self, id: EntryId) -> TenantId {
        let owner = self.owners.get(id.0 as usize);
        owner.copied().unwrap_or(TenantId::NONE)
    }

    fn of(&mut self, id: EntryId) -> Option<&mut Tenant> {
        let owner = self.owner(id);
        (owner != TenantId::NONE).then(|| self.tenants.get_mut(owner.0))
    }

    /// Notes that an entry of a tenant got slots, and is pinned.
    pub(super) fn enter(&mut self, id: EntryId, name: u64, size: u32) -> TenantId {
        let owner = *self.numbers.entry(name).or_insert_with(|| {
            TenantId(self.tenants.insert(Tenant {
                name,
                used: 0,
                evictable: 0,
            }))
        });
        self.tenants.get_mut(owner.0).used += u64::from(size);
        let at = id.0 as usize;
        self.owners.grow(at + 1, &TenantId::NONE);
        self.owners[at] = owner;
        owner
    }

    /// Notes that an entry is no longer evictable.
    #[inline]
    pub(super) fn pin(&mut self, id: EntryId, size: u32) {
        if let Some(tenant) = self.of(id) {
            tenant.evictable -= u64::from(size);
        }
    }

    /// Notes that an entry is evictable.
    #[inline]
    pub(super) fn unpin(&mut self, id: EntryId, size: u32) {
        if let Some(tenant) = self.of(id) {
            tenant.evictable += u64::from(size);
        }
    }

    /// Notes that the slots of an entry are free again.
    #[inline]
    pub(super) fn give(&mut self, id: EntryId, size: u32) {
        let owner = self.owner(id);
        if owner == TenantId::NONE {
            return;
        }
        self.owners[id.0 as usize] = TenantId::NONE;
        let tenant = self.tenants.get_mut(owner.0);
        tenant.used -= u64::from(size);
        if tenant.used == 0 {
            self.numbers.remove(&tenant.name);
            self.tenants.remove(owner.0);
        }
    }

    /// How many slots a tenant must give up before it gets `slots` more, and the tenant's number; `None` if it can't
    /// give up so many.
    pub(super) fn excess(&self, name: u64, slots: u64) -> Option<(u64, TenantId)> {
        let Some(share) = self.share else {
            return Some((0, TenantId::NONE));
        };
        if slots > share {
            return None;
        }
        let Some(&number) = self.numbers.get(&name) else {
            return Some((0, TenantId::NONE));
        };
        let tenant = self.tenants.get(number.0);
        let excess = (tenant.used + slots).saturating_sub(share);
        (excess <= tenant.evictable).then_some((excess, number))
    }

    /// The most slots that one tenant may have; `None` if slots are not counted.
    pub(super) const fn share(&self) -> Option<u64> {
        self.share
    }

    pub(super) fn number(&self, name: u64) -> Option<TenantId> {
        self.numbers.get(&name).copied()
    }

    pub(super) fn evictable(&self, tenant: TenantId) -> u64 {
        self.tenants.get(tenant.0).evictable
    }

    /// Slots that a tenant may have besides those that it can't give up.
    pub(super) fn obtainable(&self, name: u64) -> u64 {
        let Some(share) = self.share else {
            return u64::MAX;
        };
        let number = self.numbers.get(&name);
        number.map_or(share, |number| {
            let tenant = self.tenants.get(number.0);
            share - (tenant.used - tenant.evictable)
        })
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.numbers.allocation_size() + self.tenants.bytes() + self.owners.bytes()
    }

    /// Checks that the shares agree with the entries, and that no tenant has more than its own. `name_of`: the tenant
    /// of a known entry.
    pub(super) fn audit<'a>(
        &self,
        entries: impl Iterator<Item = (EntryId, &'a EntryRecord)>,
        name_of: impl Fn(NodeId) -> u64,
    ) -> Option<String> {
        let mut found: HashMap<TenantId, (u64, u64)> = HashMap::new();
        for (id, entry) in entries {
            let size = u64::from(entry.slots_len());
            let owner = self.owner(id);
            if (size > 0 && self.is_counted()) != (owner != TenantId::NONE) {
                return Some(format!(
                    "entry {} has slots of nobody, or an owner and none",
                    id.0
                ));
            }
            if let Some(node) = entry.home.filter(|_| owner != TenantId::NONE)
                && name_of(node) != self.tenants.get(owner.0).name
            {
                return Some(format!("entry {} counts against another tenant", id.0));
            }
            if size > 0 && self.is_counted() {
                let of = found.entry(owner).or_default();
                of.0 += size;
                of.1 += if entry.pins == 0 { size } else { 0 };
            }
        }
        if found.len() != self.numbers.len() {
            return Some("a tenant without slots is kept, or one with slots is not".into());
        }
        for (name, number) in &self.numbers {
            let tenant = self.tenants.get(number.0);
            let counted = (tenant.used, tenant.evictable);
            let has = found.get(number).copied().unwrap_or_default();
            if tenant.name != *name || has != counted {
                return Some(format!(
                    "(used, evictable) of tenant {} are {has:?}, {counted:?} are counted",
                    number.0
                ));
            }
            if self.share.is_some_and(|share| tenant.used > share) {
                return Some(format!("tenant {} has more than its share", number.0));
            }
        }
        None
    }
}
