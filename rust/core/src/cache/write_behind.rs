//! Entries go to tiers below when they are published: an eviction never waits for a copy then.

use super::copies::Direction;
use super::state::State;
use crate::ids::EntryId;
use crate::slot::Places;

impl State {
    /// Offers what was just published, and the prefix that it extends, to every tier below. `held`: all of
    /// it, held once by the caller and the deepest first; the holds end with the copies.
    pub(super) fn write_behind(&mut self, held: Vec<EntryId>) {
        if self.below.is_empty() {
            self.release(&held);
            return;
        }
        self.poll();
        self.offer_all(held, Places::BELOW);
    }

    /// Offers what the host has of a prefix to some tiers below, without waiting for anything. `held`: as above.
    pub(super) fn offer_all(&mut self, held: Vec<EntryId>, tiers: Places) {
        let batch = self.copies.open(held.clone());
        for tier in (1..=self.below.len()).filter(|&tier| tiers.has(tier)) {
            let kept = self.keep_in(tier, &held);
            for &id in held.iter().rev() {
                self.offer(tier, id, batch);
            }
            self.let_go_in(tier, kept.into_iter());
        }
        self.end_batch(batch);
    }

    /// Starts to copy an entry to a tier, unless it is there, is not whole, could not be reached there or is
    /// declined.
    fn offer(&mut self, tier: usize, id: EntryId, batch: u32) {
        let entry = self.entries.get(id);
        let (Some(node), class) = (entry.home, entry.class) else {
            return;
        };
        let there = entry.members.with(entry.copying).has(tier);
        if there || !entry.places.in_host() {
            return;
        }
        // A cache with tiers publishes nothing without checksums.
        let Some(checksums) = self.entries.checksums(id).map(<[u64]>::to_vec) else {
            return;
        };
        let page = self.index.support(node, class);
        if page.is_some_and(|page| !self.entries.get(page).members.has(tier)) {
            return;
        }
        let new = self.as_new(id, node, self.index.boundary(node));
        let size = u64::from(new.size);
        let level = &mut self.below[tier - 1];
        let queued = level.queued + size <= level.tier.queue_slots();
        if !queued || !level.tier.accepts(&new) || !self.make_room(tier, size) {
            self.below[tier - 1].stats.declined += 1;
            return;
        }
        let key = self.index.key(node, class);
        let slots = self.slots(id);
        let entry = self.entries.get_mut(id);
        entry.members = entry.members.with(Places::of(tier));
        entry.copying = entry.copying.with(Places::of(tier));
        let copy = self.copies.start(id, tier, Direction::Down, batch);
        let level = &mut self.below[tier - 1];
        level.queued += size;
        level.tier.room_mut().enter(&new);
        level.tier.write(copy, &key, &slots, &checksums);
    }
}
