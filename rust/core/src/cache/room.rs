//! How much room there is, and making more of it.

use hashbrown::HashSet;

use super::state::CacheState;
use super::tenants::Full;
use crate::ids::{EntryId, NamespaceId, TenantId};
use crate::slot::{HOST, Places};
use crate::tier::Tier;

impl CacheState {
    /// Whether so many slots of a tier are free, or would be if everything left that can.
    pub(super) fn can_hold(&self, tier: usize, slots: u64) -> bool {
        let room = self.tiers.room(tier);
        if slots <= room.free() {
            return true;
        }
        if tier == HOST {
            return self.can_surely_hold(slots) || room.can_hold(slots + self.stood_on(None));
        }
        let Some(pin) = self.tiers.lower(tier).prefix_pin else {
            return room.can_hold(slots);
        };
        room.can_hold(slots + pin.slots)
            || room.can_hold(slots + self.stood_on_by(tier, std::iter::once(pin.page)))
    }

    /// Whether so many slots of the host are free or could be, by a bound that takes no walk: false for some that it
    /// can hold.
    pub(super) fn can_surely_hold(&self, slots: u64) -> bool {
        let room = self.tiers.host.room();
        slots <= room.free() || room.can_hold(slots.saturating_add(self.prefix_pins.bound(None)))
    }

    /// How many of the host's `evictable` slots can leave: a lower bound if that covers the `wanted` ones. `tenant`: of
    /// one tenant alone.
    pub(super) fn leavable(&self, evictable: u64, wanted: u64, tenant: Option<TenantId>) -> u64 {
        let bound = self.prefix_pins.bound(tenant);
        if wanted.saturating_add(bound) <= evictable {
            return evictable - bound;
        }
        evictable - self.stood_on(tenant).min(evictable)
    }

    /// Slots of the host that nobody pins, but that can't leave as pinned pages stand on them; those of one tenant, or
    /// all.
    fn stood_on(&self, tenant: Option<TenantId>) -> u64 {
        self.stood_on_by(HOST, self.prefix_pins.pages(tenant))
    }

    /// Slots of a tier that nobody pins, but that can't leave as these pages stand on them.
    fn stood_on_by(&self, tier: usize, pages: impl Iterator<Item = EntryId>) -> u64 {
        let (mut met, mut slots) = (HashSet::new(), 0);
        for page in pages {
            let mut at = self.entries.get(page).home;
            while let Some(node) = at.filter(|&node| met.insert(node)) {
                for class in 0..self.classes.len() {
                    let Some(id) = self.index.cell(node, class).entry() else {
                        continue;
                    };
                    if id != page
                        && self.is_evictable(tier, id)
                        && self.tiers.room(tier).is_stood_on(id)
                    {
                        slots += u64::from(self.classes.slots(class));
                    }
                }
                at = self.index.parent(node);
            }
        }
        slots
    }

    /// Whether an entry is a member of a tier, and nobody pins it there.
    fn is_evictable(&self, tier: usize, id: EntryId) -> bool {
        let entry = self.entries.get(id);
        let pinned = if tier == HOST {
            entry.pins > 0
        } else {
            self.is_pinned_below(id, tier)
        };
        entry.members.has(tier) && !pinned
    }

    /// Evicts from the host until so many slots are free there for a namespace, within the share of its
    /// tenant. If that can't be, nothing was evicted, or only of that tenant.
    pub(super) fn make_room_for(&mut self, namespace: NamespaceId, slots: u64) -> Result<(), Full> {
        self.can_make_room_for(namespace, slots)?;
        if self.tenants.is_counted() {
            let name = self.index.namespaces.known_tenant(namespace);
            loop {
                let (excess, tenant) = self.tenants.excess(name, slots).ok_or(Full::Share)?;
                if excess == 0 {
                    break;
                }
                let victim = self.tiers.room_mut(HOST).victim_of(tenant);
                self.evict(HOST, victim.ok_or(Full::Share)?);
            }
        }
        self.make_room(HOST, slots).then_some(()).ok_or(Full::Host)
    }

    /// Whether [`make_room_for`](Self::make_room_for) would find so many slots.
    pub(super) fn can_make_room_for(&self, namespace: NamespaceId, slots: u64) -> Result<(), Full> {
        if !self.can_hold(HOST, slots) {
            return Err(Full::Host);
        }
        if self.tenants.is_counted() {
            let name = self.index.namespaces.known_tenant(namespace);
            let (excess, tenant) = self.tenants.excess(name, slots).ok_or(Full::Share)?;
            if excess > 0 {
                let evictable = self.tenants.evictable(tenant);
                if excess > self.leavable(evictable, excess, Some(tenant)) {
                    return Err(Full::Share);
                }
            }
        }
        Ok(())
    }

    /// Slots that a prompt may have at most.
    pub(super) fn most_slots(&self) -> u64 {
        let ready = self.tiers.host.ready() as u64;
        self.tenants.share().map_or(ready, |share| ready.min(share))
    }

    /// Whether a tenant's share surely holds so many slots, one page's prefix among them, beside what cannot leave.
    pub(super) fn share_surely_holds(
        &self,
        namespace: NamespaceId,
        slots: u64,
        tenant: TenantId,
    ) -> bool {
        if !self.tenants.is_counted() {
            return true;
        }
        let name = self.index.namespaces.known_tenant(namespace);
        self.tenants.obtainable(name) >= slots.saturating_add(self.prefix_pins.bound(Some(tenant)))
    }

    /// Slots that [`make_room_for`](Self::make_room_for) can make free for a namespace, or nearly so; if it can make
    /// those that are wanted, perhaps more than this.
    pub(super) fn obtainable(&self, namespace: NamespaceId, wanted: u64) -> u64 {
        let room = self.tiers.room(HOST).usage();
        let free = room.free;
        let all = free + self.leavable(room.evictable, wanted.saturating_sub(free), None);
        if !self.tenants.is_counted() {
            return all;
        }
        let name = self.index.namespaces.known_tenant(namespace);
        let (of_it, tenant) = (self.tenants.obtainable(name), self.tenants.number(name));
        let Some(tenant) = tenant else {
            return all.min(of_it);
        };
        all.min(self.leavable(of_it, wanted, Some(tenant)))
    }

    /// Evicts from a tier until so many slots are free there; changes nothing if that can't be.
    pub(super) fn make_room(&mut self, tier: usize, slots: u64) -> bool {
        if !self.can_hold(tier, slots) {
            return false;
        }
        while self.tiers.room(tier).free() < slots {
            let Some(victim) = self.tiers.room_mut(tier).victim() else {
                return false;
            };
            self.evict(tier, victim);
        }
        true
    }

    fn evict(&mut self, tier: usize, victim: EntryId) {
        let class = self.entries.get(victim).class;
        let before = self.tiers.room(tier).entries();
        let resident = self.leave(&[victim], Places::of(tier), |tier, key| tier.evict(key));
        if tier == HOST {
            self.classes.count_evicted(class);
            self.classes.count_reclaimed(resident - 1);
        }
        let room = self.tiers.room_mut(tier);
        room.count_evicted(before - room.entries());
    }

    /// Whether a tier neither has an entry nor copies it.
    pub(super) fn lacks(&self, tier: usize, id: EntryId) -> bool {
        let entry = self.entries.get(id);
        !entry.members.with(entry.copying).has(tier)
    }

    /// Whether a tier below may not evict this member: a copy is under way, or a restore needs it.
    pub(super) fn is_pinned_below(&self, id: EntryId, tier: usize) -> bool {
        self.entries.get(id).copying.has(tier) || self.restoring.pins.has(id, tier)
    }

    /// Keeps members of a tier below from eviction there, those that nothing pins already; returns them in
    /// their order, for [`unpin_in`](Self::unpin_in).
    pub(super) fn pin_in(&mut self, tier: usize, ids: &[EntryId]) -> Vec<EntryId> {
        let free = |id: &&EntryId| {
            let member = self.entries.get(**id).members.has(tier);
            member && !self.is_pinned_below(**id, tier)
        };
        let pinned: Vec<EntryId> = ids.iter().filter(free).copied().collect();
        for &id in &pinned {
            let size = self.size(id);
            self.tiers.room_mut(tier).hold(id, size);
        }
        pinned
    }

    /// Ends [`pin_in`](Self::pin_in): the deepest first.
    pub(super) fn unpin_in(&mut self, tier: usize, pinned: impl Iterator<Item = EntryId>) {
        for id in pinned {
            let size = self.size(id);
            self.tiers.room_mut(tier).release(id, size);
        }
    }

    /// Adds to `members` what is to be pinned of the prefix that a page of a tier ends: the page alone, as a prefix
    /// pin, if the tier's policy protects what it stands on.
    pub(super) fn pin_prefix_in(&mut self, tier: usize, page: EntryId, members: &mut Vec<EntryId>) {
        members.push(page);
        let home = self.entries.get(page).home;
        if self.protects(tier, page) {
            let pin = home.map(|home| self.prefix_pin(page, self.index.boundary_block(home)));
            self.tiers.lower_mut(tier).prefix_pin = pin;
        } else {
            let above = std::iter::successors(self.support(page), |&page| self.support(page));
            members.extend(above);
        }
    }
}
