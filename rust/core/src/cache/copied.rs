//! Ends of copies between the host and tiers below, and what they change.
//!
//! A copy belongs to a batch, which holds in the host what its copies read or fill, and the pages that
//! those hang from. In the tier below, an entry is held while it is copied.

use hashbrown::HashSet;

use super::copies::{Copy, Direction, Held};
use super::kept::Keep;
use super::state::State;
use crate::error::Result;
use crate::ids::{EntryId, NodeId};
use crate::slot::{HOST, Places};
use crate::tier::CopyEnd;

/// Failed reads of a tier that are remembered: each lookup looks at them. Beyond that those go that nobody can look for
/// any more, or all.
const MOST_UNREAD: usize = 1024;

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
                    Direction::Through(keep) => self.passed(copy, keep, result),
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
            self.let_go(held);
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

    fn read(&mut self, copy: Copy, result: Result<Vec<u64>>) {
        let Copy { id, tier, .. } = copy;
        let failed = result.is_err();
        if !self.is_intact(copy, result) {
            let places = Places::HOST.with(Places::of(tier));
            self.reclaimed += self.unread(id, places, failed);
        } else if self.entries.get(id).members.in_host() {
            self.below[tier - 1].stats.read += 1;
            self.add_place(id, HOST);
        }
    }

    /// A read ended into an entry that only a restore knows.
    fn passed(&mut self, copy: Copy, source: Keep, result: Result<Vec<u64>>) {
        let failed = result.is_err();
        let intact = self.is_intact(copy, result);
        self.passing.end(copy.id, intact);
        if intact {
            self.below[copy.tier - 1].stats.read += 1;
        } else if self.kept.lasts(&source) {
            self.reclaimed += self.unread(source.id, Places::of(copy.tier), failed);
        }
    }

    /// Takes out an entry that could not be read, or whose bytes were others. Returns how many left the host.
    fn unread(&mut self, id: EntryId, from: Places, failed: bool) -> u64 {
        if !failed {
            return self.take_out(&[id], from);
        }
        let entry = self.entries.get(id);
        let (home, class) = (entry.home, entry.class);
        let left = self.forget(&[id], from);
        // A boundary that is no longer known is asked about anew.
        if let Some(node) = home.filter(|&node| self.index.knows(node)) {
            for tier in from.and(Places::BELOW).tiers() {
                self.note_unread(tier, node, class);
            }
        }
        left
    }

    fn note_unread(&mut self, tier: usize, node: NodeId, class: usize) {
        let block = self.index.boundary_block(node);
        let Self {
            index,
            entries,
            below,
            ..
        } = self;
        let unread = &mut below[tier - 1].unread;
        if unread.len() >= MOST_UNREAD {
            unread.retain(|&(node, class), _| {
                let there = |id| entries.get(id).members.has(tier);
                index.knows(node) && !index.cell(node, class).entry().is_some_and(there)
            });
            if unread.len() >= MOST_UNREAD {
                unread.clear();
            }
        }
        unread.insert((node, class), block);
    }

    /// Whether a read has given the bytes that the entry was published with; counts those that have not.
    fn is_intact(&mut self, Copy { id, tier, .. }: Copy, result: Result<Vec<u64>>) -> bool {
        let stats = &mut self.below[tier - 1].stats;
        match result {
            Ok(checksums) if self.entries.checksums(id) == Some(&checksums) => return true,
            Ok(_) => stats.corrupt_reads += 1,
            Err(_) => stats.failed_reads += 1,
        }
        false
    }

    /// Ends what copies held in the host.
    pub(super) fn let_go(&mut self, held: Held) {
        self.tips.let_go(held.tip);
        self.release(&held.entries);
    }

    /// Ends the holds of copies in their tier, and counts the pages that they hang from as used there:
    /// what hangs from a page goes before it. Of pages that the tier's policy protects, the last one counts for all
    /// before it.
    fn let_go_below(&mut self, tier: usize, ended: &[Copy]) {
        let is_member = |copy: &&Copy| !matches!(copy.direction, Direction::Through(_));
        let members = ended.iter().filter(is_member);
        let over: HashSet<EntryId> = members.map(|copy| copy.id).collect();
        let mut order = Vec::with_capacity(over.len() + 1);
        let mut met = HashSet::new();
        for &id in &over {
            order.push(self.depth_of(id));
            let mut next = self.support(id);
            while let Some(page) = next.filter(|&page| !over.contains(&page) && met.insert(page)) {
                order.push(self.depth_of(page));
                if self.protects(tier, page) {
                    break;
                }
                next = self.support(page);
            }
        }
        order.sort_unstable_by_key(|&key| std::cmp::Reverse(key));
        for (_, _, id) in order {
            let entry = self.entries.get_mut(id);
            let size = self.classes[entry.class].slots;
            let member = entry.members.has(tier);
            let room = self.below[tier - 1].tier.room_mut();
            if over.contains(&id) {
                entry.copying = entry.copying.without(Places::of(tier));
                if !member {
                    room.give(size);
                } else if !self.kept.has(id, tier) {
                    room.release(id, size);
                }
            } else if member && !entry.copying.has(tier) && !self.kept.has(id, tier) {
                room.touch(id);
            }
        }
    }

    /// Orders entries so that what hangs from a page comes behind it.
    fn depth_of(&self, id: EntryId) -> (Option<usize>, bool, EntryId) {
        let entry = self.entries.get(id);
        let page = self.index.roles().attention == Some(entry.class);
        let block = entry.home.map(|node| self.index.boundary_block(node));
        (block, !page, id)
    }

    /// The page without which an entry can't be reached.
    pub(super) fn support(&self, id: EntryId) -> Option<EntryId> {
        let entry = self.entries.get(id);
        self.index.support(entry.home?, entry.class)
    }

    /// Whether a tier has a page, and evicts nothing that it stands on before it.
    pub(super) fn protects(&self, tier: usize, page: EntryId) -> bool {
        self.entries.get(page).members.has(tier) && self.room(tier).protects(page)
    }

    /// Counts entries as used in the tiers below, too: the deepest first.
    pub(super) fn touch_below(&mut self, ids: &[EntryId]) {
        for tier in 1..=self.below.len() {
            for &id in ids {
                let entry = self.entries.get(id);
                if entry.members.has(tier) && !self.is_held_below(id, tier) {
                    self.room_mut(tier).touch(id);
                }
            }
        }
    }

    /// Keeps members of a tier from eviction there, those that nothing keeps already; returns them in
    /// their order, for [`let_go_in`](Self::let_go_in).
    pub(super) fn keep_in(&mut self, tier: usize, ids: &[EntryId]) -> Vec<EntryId> {
        let free = |id: &&EntryId| {
            let member = self.entries.get(**id).members.has(tier);
            member && !self.is_held_below(**id, tier)
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
