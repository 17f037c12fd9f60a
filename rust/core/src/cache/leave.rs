//! How entries leave tiers: evicted to make room, dropped, or because the page that they hang from
//! leaves.

use smallvec::SmallVec;

use super::proven::Proven;
use super::state::State;
use crate::ids::{EntryId, EntryKey};
use crate::prefix::{Cell, Fate};
use crate::slot::{HOST, Places};
use crate::tier::{Below, Tier};

/// An entry that left tiers, as far as the index and its record go.
struct Left {
    id: EntryId,
    tiers: Places,
    /// Whether its bytes were whole in the host, and the host is among the tiers.
    resident: bool,
}

impl State {
    /// Evicts from a tier until so many slots are free there; changes nothing if that can't be.
    pub(super) fn make_room(&mut self, tier: usize, slots: u64) -> bool {
        if !self.can_hold(tier, slots) {
            return false;
        }
        while self.room(tier).free() < slots {
            let Some(victim) = self.room_mut(tier).victim() else {
                return false;
            };
            self.evict(tier, victim);
        }
        true
    }

    pub(super) fn evict(&mut self, tier: usize, victim: EntryId) {
        let class = self.entries.get(victim).class;
        let before = self.room(tier).entries();
        let resident = self.leave(&[victim], Places::of(tier), |tier, key| tier.evict(key));
        if tier == HOST {
            self.classes[class].evicted += 1;
            self.reclaimed += resident - 1;
        }
        let room = self.room_mut(tier);
        room.count_evicted(before - room.entries());
    }

    /// Drops entries that will not be written to the host after all.
    pub(super) fn abandon(&mut self, ids: &[EntryId]) {
        self.writing -= ids.len() as u64;
        self.reclaimed += self.take_out(ids, Places::HOST);
    }

    pub(super) fn invalidate(&mut self, ids: &[EntryId]) -> usize {
        let known = |id: &&EntryId| self.entries.get(**id).home.is_some();
        let named = ids.iter().filter(known).count() as u64;
        let dropped = self.take_out(ids, Places::ALL);
        self.reclaimed += dropped - named;
        dropped as usize
    }

    pub(super) fn clear(&mut self) -> usize {
        let mut gone = Vec::new();
        self.index.clear(&mut gone);
        self.seen.clear();
        self.proven.iter_mut().for_each(Proven::clear);
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
        let dropped = self.give_up(&left);
        for level in &mut self.below {
            level.unread.clear();
            level.asked.clear();
            level.tier.clear();
        }
        dropped as usize
    }

    /// Takes entries out of the tiers in `from`, and with a page what hangs from it there. The index
    /// forgets those that no tier has any more, and the tiers below are told who left them. Returns how many
    /// were resident in the host and left it.
    pub(super) fn take_out(&mut self, ids: &[EntryId], from: Places) -> u64 {
        self.leave(ids, from, |tier, key| tier.remove(key))
    }

    /// The same after a read that failed: tiers below may keep what is good.
    pub(super) fn forget(&mut self, ids: &[EntryId], from: Places) -> u64 {
        self.leave(ids, from, |tier, key| tier.forget(key))
    }

    fn leave(
        &mut self,
        ids: &[EntryId],
        from: Places,
        tell: impl Fn(&mut dyn Below, &EntryKey),
    ) -> u64 {
        let mut left: SmallVec<[Left; 2]> = SmallVec::new();
        let mut keys: Vec<(Places, EntryKey)> = Vec::new();
        let Self {
            index,
            entries,
            shared,
            ..
        } = self;
        for &id in ids {
            let entry = entries.get(id);
            let (Some(home), class) = (entry.home, entry.class) else {
                continue;
            };
            index.take_out(home, class, |index, node, id| {
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
                Fate::Stays(Cell::of(id, entry.places, *shared))
            });
        }
        for (tiers, key) in keys.iter().rev() {
            for tier in tiers.and(Places::BELOW).tiers() {
                tell(&mut *self.below[tier - 1].tier, key);
            }
        }
        self.give_up(&left)
    }

    /// Gives up what the members that just left took in their tiers: at once, or when the last lease or
    /// the copy ends. Returns how many were resident in the host.
    fn give_up(&mut self, left: &[Left]) -> u64 {
        let mut residents = 0;
        // What hangs from a page leaves before it.
        for &Left {
            id,
            tiers,
            resident,
        } in left.iter().rev()
        {
            let entry = self.entries.get(id);
            let (class, copying, held) = (entry.class, entry.copying, entry.holds > 0);
            let size = self.classes[class].slots;
            if resident {
                residents += 1;
                self.classes[class].resident -= 1;
            }
            for tier in tiers.and(Places::BELOW).tiers() {
                let kept = self.kept.forget(id, tier);
                let room = self.room_mut(tier);
                room.leave(id, size, copying.has(tier) || kept);
                if !copying.has(tier) {
                    room.give(size);
                }
            }
            if tiers.in_host() {
                self.host.room_mut().leave(id, size, held);
                if !held {
                    self.tenants.hold(id, size);
                }
            }
            let entry = self.entries.get_mut(id);
            if held || entry.members.in_host() {
                continue;
            }
            if let Some(slots) = entry.slots.take() {
                self.tenants.give(id, slots.len());
                self.host.give(slots);
            }
            if entry.home.is_none() {
                self.entries.remove(id);
            }
        }
        residents
    }
}
