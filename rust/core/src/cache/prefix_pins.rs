//! Pins on the last page of a prefix that stand for pins on all of it.
//!
//! Where a policy evicts no page before what hangs from it, a pin on the last page of a prefix keeps all of it. The
//! slots of the pages before it count as evictable, yet give no room.

use hashbrown::HashMap;

use crate::ids::{EntryId, TenantId};

/// The last page of a prefix, which is pinned instead of the whole prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefixPin {
    pub(super) page: EntryId,
    pub(super) block: usize,
    /// At most so many slots hold the pages of the prefix.
    pub(super) slots: u64,
    /// The tenant against whose share these slots count.
    pub(super) tenant: TenantId,
}

/// The entries of the host that one owner pins.
#[derive(Debug, Default)]
pub(super) struct PinSet {
    /// In the order in which pins end: the deepest first.
    pub(super) entries: Vec<EntryId>,
    /// The page among them that is pinned instead of the prefix that it ends.
    pub(super) prefix: Option<PrefixPin>,
}

impl PinSet {
    /// Pins on entries, none of which stands for a prefix.
    pub(super) const fn entries(entries: Vec<EntryId>) -> Self {
        Self {
            entries,
            prefix: None,
        }
    }
}

/// The prefix pins of the host.
#[derive(Debug, Default)]
pub(super) struct PrefixPins {
    /// The pinned pages. Each has the number of pins that stand for its prefix, and its tenant.
    pages: HashMap<EntryId, (u32, TenantId)>,
    /// Slots of all pinned prefixes, at most: a slot counts once for each prefix that it is in.
    bound: u64,
    /// The part of `bound` that counts against each tenant.
    of_tenants: HashMap<TenantId, u64>,
}

impl PrefixPins {
    pub(super) fn pin(&mut self, prefix: Option<PrefixPin>) {
        let Some(pin) = prefix else { return };
        self.pages.entry(pin.page).or_insert((0, pin.tenant)).0 += 1;
        self.bound += pin.slots;
        if pin.tenant != TenantId::NONE {
            *self.of_tenants.entry(pin.tenant).or_default() += pin.slots;
        }
    }

    pub(super) fn unpin(&mut self, prefix: Option<PrefixPin>) {
        let Some(pin) = prefix else { return };
        self.bound -= pin.slots;
        if let Some((holders, _)) = self.pages.get_mut(&pin.page) {
            *holders -= 1;
            if *holders == 0 {
                self.pages.remove(&pin.page);
            }
        }
        if let Some(bound) = self.of_tenants.get_mut(&pin.tenant) {
            *bound -= pin.slots;
            if *bound == 0 {
                self.of_tenants.remove(&pin.tenant);
            }
        }
    }

    pub(super) fn any(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Slots of pinned prefixes, at most: of one tenant, or of all.
    pub(super) fn bound(&self, tenant: Option<TenantId>) -> u64 {
        tenant.map_or(self.bound, |tenant| {
            self.of_tenants.get(&tenant).copied().unwrap_or_default()
        })
    }

    /// The pinned pages of one tenant, or of all.
    pub(super) fn pages(&self, tenant: Option<TenantId>) -> impl Iterator<Item = EntryId> {
        let of_it = self
            .pages
            .iter()
            .filter(move |&(_, &(_, of))| tenant.is_none_or(|tenant| tenant == of));
        of_it.map(|(&page, _)| page)
    }

    /// Whether the slots that count for all prefixes include those that count for tenants, and are none without pins.
    pub(super) fn are_counted(&self) -> bool {
        let of_tenants: u64 = self.of_tenants.values().sum();
        of_tenants <= self.bound && (self.any() || self.bound == 0)
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.pages.allocation_size() + self.of_tenants.allocation_size()
    }
}
