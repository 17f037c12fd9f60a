//! Ends of copies between the host and tiers below, and what they change.
//!
//! A copy belongs to a batch, which holds in the host what its copies read or fill, and the pages that
//! those hang from. In the tier below, an entry is held while it is copied.

use hashbrown::HashSet;

use super::copies::{Copy, Direction};
use super::state::State;
use crate::error::Result;
use crate::ids::EntryId;
use crate::slot::{HOST, Places};
use crate::tier::CopyEnd;

impl State {
    /// Takes note of the copies that ended.
    pub(super) fn poll(&mut self) {
        for tier in 1..=self.below.len() {
            let mut reported = Vec::new();
            self.below[tier - 1].tier.poll(&mut reported);
            let mut ended = Vec::with_capacity(reported.len());
            for CopyEnd { copy, result } in reported {
                let Some(copy) = self.copies.end(copy, tier) else {
                    continue;
                };
                match copy.direction {
                    Direction::Down => self.written(copy, result.is_ok()),
                    Direction::Up => self.read(copy, result),
                }
                ended.push(copy);
            }
            self.let_go_below(tier, &ended);
            for copy in ended {
                self.end_batch(copy.batch);
            }
        }
    }

    /// One copy fewer, or the batch has all its copies: with the last one it ends.
    pub(super) fn end_batch(&mut self, batch: u32) {
        if let Some(held) = self.copies.leave(batch) {
            self.release(&held);
        }
    }

    fn written(&mut self, Copy { id, tier, .. }: Copy, whole: bool) {
        let entry = self.entries.get(id);
        let wanted = entry.members.has(tier);
        let level = &mut self.below[tier - 1];
        level.queued -= u64::from(self.classes[entry.class].slots);
        if !whole {
            level.stats.failed_writes += 1;
            self.take_out(&[id], Places::of(tier));
        } else if wanted {
            level.stats.written += 1;
            self.add_place(id, tier);
        }
    }

    fn read(&mut self, Copy { id, tier, .. }: Copy, result: Result<Vec<u64>>) {
        let stats = &mut self.below[tier - 1].stats;
        let intact = match result {
            Ok(checksums) if self.entries.checksums(id) == Some(&checksums) => true,
            Ok(_) => {
                stats.corrupt_reads += 1;
                false
            }
            Err(_) => {
                stats.failed_reads += 1;
                false
            }
        };
        if !intact {
            let places = Places::HOST.with(Places::of(tier));
            self.reclaimed += self.take_out(&[id], places);
        } else if self.entries.get(id).members.in_host() {
            stats.read += 1;
            self.add_place(id, HOST);
        }
    }

    /// Ends the holds of copies in their tier, and counts the pages that they hang from as used there:
    /// what hangs from a page goes before it.
    fn let_go_below(&mut self, tier: usize, ended: &[Copy]) {
        let mut order = Vec::with_capacity(ended.len());
        let mut seen = HashSet::new();
        for copy in ended {
            let mut next = Some(copy.id);
            while let Some(id) = next.filter(|&id| seen.insert(id)) {
                let entry = self.entries.get(id);
                let page = self.index.roles().attention == Some(entry.class);
                let block = entry.home.map(|node| self.index.boundary(node).0);
                order.push((block, !page, id));
                next = entry
                    .home
                    .and_then(|node| self.index.support(node, entry.class));
            }
        }
        order.sort_unstable_by_key(|&key| std::cmp::Reverse(key));
        let over: HashSet<EntryId> = ended.iter().map(|copy| copy.id).collect();
        for (_, _, id) in order {
            let entry = self.entries.get_mut(id);
            let size = self.classes[entry.class].slots;
            let member = entry.members.has(tier);
            let room = self.below[tier - 1].tier.room_mut();
            if over.contains(&id) {
                entry.copying = entry.copying.without(Places::of(tier));
                if member {
                    room.release(id, size);
                } else {
                    room.give(size);
                }
            } else if member && !entry.copying.has(tier) {
                room.touch(id);
            }
        }
    }

    /// Counts entries as used in the tiers below, too: the deepest first.
    pub(super) fn touch_below(&mut self, ids: &[EntryId]) {
        for tier in 1..=self.below.len() {
            for &id in ids {
                let entry = self.entries.get(id);
                if entry.members.has(tier) && !entry.copying.has(tier) {
                    self.room_mut(tier).touch(id);
                }
            }
        }
    }

    /// Keeps members of a tier from eviction there, those that no copy keeps already; returns them in
    /// their order, for [`let_go_in`](Self::let_go_in).
    pub(super) fn keep_in(&mut self, tier: usize, ids: &[EntryId]) -> Vec<EntryId> {
        let free = |id: &&EntryId| {
            let entry = self.entries.get(**id);
            entry.members.has(tier) && !entry.copying.has(tier)
        };
        let kept: Vec<EntryId> = ids.iter().filter(free).copied().collect();
        for &id in &kept {
            let size = self.classes[self.entries.get(id).class].slots;
            self.room_mut(tier).hold(id, size);
        }
        kept
    }

    /// Ends [`keep_in`](Self::keep_in): the deepest first.
    pub(super) fn let_go_in(&mut self, tier: usize, kept: impl Iterator<Item = EntryId>) {
        for id in kept {
            let size = self.classes[self.entries.get(id).class].slots;
            self.room_mut(tier).release(id, size);
        }
    }
}
