//! Pages that are held instead of the prefixes that they end.
//!
//! The policy lets nothing of such a prefix leave before the page, so its slots are evictable, yet give no room.

use hashbrown::{HashMap, HashSet};

use super::state::State;
use crate::ids::{EntryId, TenantId};
use crate::slot::HOST;
use crate::tier::Tier;

/// Such a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tip {
    pub(super) page: EntryId,
    pub(super) block: usize,
    /// Slots of the prefix that it ends, at most.
    pub(super) slots: u64,
    /// Whose share they count against.
    pub(super) tenant: TenantId,
}

/// Such pages of the host.
#[derive(Debug, Default)]
pub(super) struct Tips {
    /// With the number of those who hold them so, and their tenant.
    pages: HashMap<EntryId, (u32, TenantId)>,
    /// Slots of their prefixes, at most: what several of them stand on counts for each.
    bound: u64,
    /// The same by tenant.
    of_tenants: HashMap<TenantId, u64>,
}

impl Tips {
    pub(super) fn hold(&mut self, tip: Option<Tip>) {
        let Some(tip) = tip else { return };
        self.pages.entry(tip.page).or_insert((0, tip.tenant)).0 += 1;
        self.bound += tip.slots;
        if tip.tenant != TenantId::NONE {
            *self.of_tenants.entry(tip.tenant).or_default() += tip.slots;
        }
    }

    pub(super) fn let_go(&mut self, tip: Option<Tip>) {
        let Some(tip) = tip else { return };
        self.bound -= tip.slots;
        if let Some((holders, _)) = self.pages.get_mut(&tip.page) {
            *holders -= 1;
            if *holders == 0 {
                self.pages.remove(&tip.page);
            }
        }
        if let Some(bound) = self.of_tenants.get_mut(&tip.tenant) {
            *bound -= tip.slots;
            if *bound == 0 {
                self.of_tenants.remove(&tip.tenant);
            }
        }
    }

    pub(super) fn any(&self) -> bool {
        !self.pages.is_empty()
    }

    pub(super) fn bound_of(&self, tenant: TenantId) -> u64 {
        self.of_tenants.get(&tenant).copied().unwrap_or_default()
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.allocation_size() + self.of_tenants.allocation_size()
    }
}

impl State {
    /// Whether so many slots of a tier are free, or would be if everything left that can.
    pub(super) fn can_hold(&self, tier: usize, slots: u64) -> bool {
        let room = self.room(tier);
        if slots <= room.free() {
            return true;
        }
        if tier == HOST {
            return self.can_surely_hold(slots) || room.can_hold(slots + self.stood_on(None));
        }
        let Some(tip) = self.below[tier - 1].tip else {
            return room.can_hold(slots);
        };
        room.can_hold(slots + tip.slots)
            || room.can_hold(slots + self.stood_on_by(tier, std::iter::once(tip.page)))
    }

    /// The same of the host, by a bound that takes no walk: false for some that it can hold.
    pub(super) fn can_surely_hold(&self, slots: u64) -> bool {
        let room = self.host.room();
        slots <= room.free() || room.can_hold(slots.saturating_add(self.tips.bound))
    }

    /// Of so many evictable slots of the host, those that can leave: at least so many as are wanted, or all of them.
    /// `tenant`: of one tenant alone.
    pub(super) fn leavable(&self, evictable: u64, wanted: u64, tenant: Option<TenantId>) -> u64 {
        let bound = tenant.map_or(self.tips.bound, |tenant| self.tips.bound_of(tenant));
        if wanted.saturating_add(bound) <= evictable {
            return evictable - bound;
        }
        evictable - self.stood_on(tenant).min(evictable)
    }

    /// Slots of the host that nobody holds, but can't leave as held pages stand on them; those of one tenant, or all.
    fn stood_on(&self, tenant: Option<TenantId>) -> u64 {
        let of_it = self.tips.pages.iter();
        let of_it = of_it.filter(|&(_, &(_, of))| tenant.is_none_or(|tenant| tenant == of));
        self.stood_on_by(HOST, of_it.map(|(&page, _)| page))
    }

    /// The same of any tier, besides the pages themselves.
    fn stood_on_by(&self, tier: usize, pages: impl Iterator<Item = EntryId>) -> u64 {
        let (mut met, mut slots) = (HashSet::new(), 0);
        for page in pages {
            let mut at = self.entries.get(page).home;
            while let Some(node) = at.filter(|&node| met.insert(node)) {
                for class in 0..self.classes.len() {
                    let Some(id) = self.index.cell(node, class).entry() else {
                        continue;
                    };
                    if id != page && self.is_evictable(tier, id) && self.room(tier).is_stood_on(id)
                    {
                        slots += u64::from(self.classes[class].slots);
                    }
                }
                at = self.index.parent(node);
            }
        }
        slots
    }

    /// Whether nobody holds a member of a tier.
    fn is_evictable(&self, tier: usize, id: EntryId) -> bool {
        let entry = self.entries.get(id);
        let held = if tier == HOST {
            entry.holds > 0
        } else {
            self.is_held_below(id, tier)
        };
        entry.members.has(tier) && !held
    }

    /// The page as a tip of a tier, `block` being its own.
    pub(super) fn tip_at(&self, page: EntryId, block: usize) -> Tip {
        Tip {
            page,
            block,
            slots: self.slots_of(block + 1),
            tenant: self.tenants.owner(page),
        }
    }
}
