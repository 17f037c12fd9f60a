//! Pages that write leases hold instead of the prefixes that they end.
//!
//! The policy lets nothing of such a prefix leave before the page, so its slots are evictable, yet give no room.

use hashbrown::{HashMap, HashSet};

use super::state::State;
use crate::ids::{ClassKind, EntryId};
use crate::slot::HOST;
use crate::tier::Tier;

/// Such pages, with the number of leases that hold them so.
#[derive(Debug, Default)]
pub(super) struct Tips {
    pages: HashMap<EntryId, u32>,
    /// Slots of their prefixes, at most: what several of them stand on counts for each.
    bound: u64,
}

impl Tips {
    pub(super) fn hold(&mut self, tip: Option<(EntryId, u64)>) {
        let Some((page, slots)) = tip else { return };
        *self.pages.entry(page).or_default() += 1;
        self.bound += slots;
    }

    pub(super) fn let_go(&mut self, tip: Option<(EntryId, u64)>) {
        let Some((page, slots)) = tip else { return };
        self.bound -= slots;
        if let Some(leases) = self.pages.get_mut(&page) {
            *leases -= 1;
            if *leases == 0 {
                self.pages.remove(&page);
            }
        }
    }

    pub(super) fn any(&self) -> bool {
        !self.pages.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.allocation_size()
    }
}

impl State {
    /// Whether so many slots of a tier are free, or would be if everything left that can.
    pub(super) fn can_hold(&self, tier: usize, slots: u64) -> bool {
        if tier != HOST || !self.tips.any() {
            return self.room(tier).can_hold(slots);
        }
        self.can_surely_hold(slots) || self.host.room().can_hold(slots + self.stood_on())
    }

    /// The same of the host, by a bound that takes no walk: false for some that it can hold.
    pub(super) fn can_surely_hold(&self, slots: u64) -> bool {
        let room = self.host.room();
        slots <= room.free() || room.can_hold(slots.saturating_add(self.tips.bound))
    }

    /// Slots that nobody holds, but can't leave as held pages stand on them.
    fn stood_on(&self) -> u64 {
        let (mut met, mut slots) = (HashSet::new(), 0);
        for &page in self.tips.pages.keys() {
            let mut at = self.entries.get(page).home;
            while let Some(node) = at.filter(|&node| met.insert(node)) {
                for (class, kind) in self.classes.iter().map(|class| class.kind).enumerate() {
                    let entry = self.index.cell(node, class).entry();
                    let entry = entry.map(|id| self.entries.get(id));
                    let pinned = entry.filter(|entry| {
                        kind != ClassKind::Recurrent && entry.members.in_host() && entry.holds == 0
                    });
                    slots += pinned.map_or(0, |entry| u64::from(entry.slots_len()));
                }
                at = self.index.parent(node);
            }
        }
        slots
    }
}
