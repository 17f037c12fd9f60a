//! How entries leave tiers: evicted, dropped, or because the page that they hang from leaves.

use smallvec::SmallVec;

use super::queries::PORTION;
use super::state::CacheState;
use crate::ids::{EntryId, EntryKey};
use crate::prefix::{Fate, IndexCell};
use crate::slot::Places;
use crate::tier::{Below, Tier};

/// An entry that left tiers, as far as the index and its record go.
struct Left {
    id: EntryId,
    tiers: Places,
    /// Whether its bytes were whole in the host, and the host is among the tiers.
    resident: bool,
}

impl CacheState {
    /// Drops entries that will not be written to the host after all.
    pub(super) fn abandon(&mut self, ids: &[EntryId]) {
        self.classes.end_writing(ids.len());
        let left = self.take_out(ids, Places::HOST);
        self.classes.count_reclaimed(left);
    }

    /// Drops a portion of these entries and of what hangs from them, from the end. Adds to `dropped` how many were
    /// resident; `None` if there is more.
    pub(super) fn invalidate(&mut self, ids: &mut Vec<EntryId>, dropped: &mut u64) -> Option<()> {
        let mut room = PORTION.div_ceil(2);
        while room > 0 {
            let Some(&id) = ids.last() else { break };
            let mut next = self.pages_behind(id, Places::ALL, room);
            let mut named = 0;
            if next.is_empty() {
                named = u64::from(self.entries.get(id).places.in_host());
                next.push(id);
                ids.pop();
            }
            room -= next.len();
            let left = self.take_out(&next, Places::ALL);
            self.classes.count_reclaimed(left - named);
            *dropped += left;
        }
        ids.is_empty().then_some(())
    }

    /// At most so many of the pages that hang from a page in these tiers: each after those that hang from it.
    pub(super) fn pages_behind(&self, id: EntryId, tiers: Places, most: usize) -> Vec<EntryId> {
        let (home, class) = (self.entries.get(id).home, self.entries.get(id).class);
        let is_page = self.index.roles().attention == Some(class);
        let Some(home) = home.filter(|_| is_page) else {
            return Vec::new();
        };
        let page = |node| self.index.cell(node, class).entry();
        let is_there = |id| !self.entries.get(id).members.and(tiers).is_empty();
        let has = |node| page(node).is_some_and(is_there);
        let ends = self.index.ends_below(home, has, most);
        ends.into_iter().filter_map(page).collect()
    }

    /// Takes a portion of these entries out of the tiers before this one, from the end. Adds to `left` how many left
    /// the host; `None` if there is more.
    pub(super) fn leave_to(
        &mut self,
        ids: &mut Vec<EntryId>,
        tier: usize,
        left: &mut u64,
    ) -> Option<()> {
        let has = |&id: &EntryId| self.entries.get(id).places.has(tier);
        if !self.tiers.below_host().contains(&tier) || !ids.iter().all(has) {
            return Some(());
        }
        let above = (0..tier).fold(Places::NONE, |above, tier| above.with(Places::of(tier)));
        let portion = ids.split_off(ids.len().saturating_sub(PORTION));
        let gone = self.take_out(&portion, above);
        self.classes.count_reclaimed(gone);
        *left += gone;
        ids.is_empty().then_some(())
    }

    /// Begins to forget everything: nothing of before is found from now on. [`clear_on`](Self::clear_on) ends it.
    pub(super) fn clear(&mut self) {
        self.index.clear(&mut self.announced);
        self.clears += 1;
        self.visits.clear();
        for lower in &mut self.tiers.below {
            lower.tier.clear();
        }
    }

    /// Lets a portion of what a clear has left go. When nothing is left, returns what is to be
    /// dropped when the lock is free.
    pub(super) fn clear_on(&mut self) -> Option<impl Sized + use<>> {
        let mut gone = Vec::new();
        let cleared = self
            .index
            .clear_on((PORTION / 4).max(1), &mut gone, &mut self.announced);
        let mut left = Vec::with_capacity(gone.len());
        for id in gone {
            let entry = self.entries.get_mut(id);
            entry.home = None;
            left.push(Left {
                id,
                tiers: std::mem::take(&mut entry.members),
                resident: std::mem::take(&mut entry.places).in_host(),
            });
        }
        self.dropped += self.give_up(&left);
        for lower in &mut self.tiers.below {
            lower.unread.clear();
            lower.queries.clear();
        }
        cleared
    }

    /// Takes entries out of the tiers in `from`, and with a page all that hangs from it there. The index forgets
    /// entries that no tier has any more, and the tiers below are told which entries left them. Returns how many were
    /// resident in the host and left it.
    pub(super) fn take_out(&mut self, ids: &[EntryId], from: Places) -> u64 {
        self.leave(ids, from, |tier, key| tier.remove(key))
    }

    /// Takes entries out of tiers after a read that failed. Tiers below may keep bytes that are good.
    pub(super) fn forget(&mut self, ids: &[EntryId], from: Places) -> u64 {
        self.leave(ids, from, |tier, key| tier.forget(key))
    }

    pub(super) fn leave(
        &mut self,
        ids: &[EntryId],
        from: Places,
        tell: impl Fn(&mut dyn Below, &EntryKey),
    ) -> u64 {
        let mut left: SmallVec<[Left; 2]> = SmallVec::new();
        let mut keys: Vec<(Places, EntryKey)> = Vec::new();
        let shared = self.tiers.shared();
        let Self {
            index,
            announced,
            entries,
            ..
        } = self;
        for &id in ids {
            let entry = entries.get(id);
            let (Some(home), class) = (entry.home, entry.class) else {
                continue;
            };
            index.take_out(home, class, announced, |index, node, id| {
                let entry = entries.get_mut(id);
                let tiers = entry.members.and(from);
                if tiers.is_empty() {
                    return Fate::Elsewhere;
                }
                if !tiers.and(Places::BELOW).is_empty() {
                    keys.push((tiers, index.key(node, entry.class)));
                }
                let resident = entry.places.and(tiers).in_host();
                left.push(Left {
                    id,
                    tiers,
                    resident,
                });
                let known = !entry.places.is_empty() || entry.again;
                entry.members = entry.members.without(tiers);
                entry.places = entry.places.without(tiers);
                if entry.members.is_empty() {
                    entry.home = None;
                    return Fate::Gone { known };
                }
                Fate::Stays(IndexCell::of(id, entry.places, shared))
            });
        }
        for (tiers, key) in keys.iter().rev() {
            for tier in tiers.and(Places::BELOW).tiers() {
                tell(&mut *self.tiers.lower_mut(tier).tier, key);
            }
        }
        self.give_up(&left)
    }

    /// Frees the slots of members that just left their tiers: at once, or when the last lease or copy of them ends.
    /// Returns how many were resident in the host.
    fn give_up(&mut self, left: &[Left]) -> u64 {
        let mut residents = 0;
        // Entries that hang from a page leave before it.
        for &Left {
            id,
            tiers,
            resident,
        } in left.iter().rev()
        {
            let entry = self.entries.get(id);
            let (class, copying, pinned) = (entry.class, entry.copying, entry.pins > 0);
            let size = self.classes.slots(class);
            if resident {
                residents += 1;
                self.classes.remove_resident(class);
            }
            for tier in tiers.and(Places::BELOW).tiers() {
                let for_restores = self.restoring.pins.forget(id, tier);
                let room = self.tiers.room_mut(tier);
                room.leave(id, size, copying.has(tier) || for_restores);
                if !copying.has(tier) {
                    room.give(size);
                }
            }
            if tiers.in_host() {
                self.tiers.host.room_mut().leave(id, size, pinned);
                if !pinned {
                    self.tenants.pin(id, size);
                }
            }
            let entry = self.entries.get_mut(id);
            if pinned || entry.members.in_host() {
                continue;
            }
            if let Some(slots) = entry.slots.take() {
                self.tenants.give(id, slots.len());
                self.tiers.host.give(slots);
            }
            if entry.home.is_none() {
                self.entries.remove(id);
            }
        }
        residents
    }
}
