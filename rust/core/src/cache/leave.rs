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
        // Boundaries from a page that is to go down to the end of something that hangs from it.
        let mut path = Vec::new();
        for _ in 0..PORTION.div_ceil(2) {
            let Some(&id) = ids.last() else { break };
            let entry = self.entries.get(id);
            let mut named = u64::from(entry.places.in_host());
            let is_page = self.index.roles().attention == Some(entry.class);
            let mut next = Some(id);
            if let Some(home) = entry.home.filter(|_| is_page) {
                let class = entry.class;
                let mut node = path.pop().unwrap_or(home);
                while let Some(child) = self.index.children(node).next() {
                    path.push(node);
                    node = child;
                }
                next = self.index.cell(node, class).entry();
                named *= u64::from(next == Some(id));
            }
            let left = self.take_out(next.as_slice(), Places::ALL);
            self.classes.count_reclaimed(left - named);
            *dropped += left;
            if next == Some(id) {
                ids.pop();
            }
        }
        ids.is_empty().then_some(())
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
