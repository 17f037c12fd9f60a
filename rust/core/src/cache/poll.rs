//! Ends copies between the host and tiers below.
//!
//! Each copy belongs to a batch. The batch pins in the host the entries that its copies read or fill, and the pages
//! that these hang from. In the tier below, an entry is pinned while it is copied.

use hashbrown::HashSet;

use super::copies::{CopyDirection, RunningCopy};
use super::queries::PORTION;
use super::state::CacheState;
use super::tier_pins::TierPin;
use super::tiers::LowerTier;
use crate::error::Result;
use crate::ids::{EntryId, NodeId};
use crate::slot::{HOST, Places};
use crate::tier::CopyEnd;

/// The most failed reads of a tier that are remembered: each lookup looks at them. Beyond that, those that nobody can
/// look for any more are forgotten, or all.
const MOST_UNREAD: usize = 1024;

/// Copies of a tier that are ended while the lock is held once.
const ENDS: usize = 256;

impl CacheState {
    /// Takes note of copies that ended. Returns whether there are more: a later call takes note of them.
    pub(super) fn poll(&mut self) -> bool {
        let mut more = false;
        for tier in self.tiers.below_host() {
            let LowerTier {
                tier: below,
                reported,
                ..
            } = self.tiers.lower_mut(tier);
            if reported.len() < ENDS {
                let mut ends = Vec::new();
                below.poll(&mut ends);
                match reported.is_empty() {
                    true => *reported = ends.into(),
                    false => reported.extend(ends),
                }
            }
            let mut ended = Vec::with_capacity(reported.len().min(ENDS));
            for _ in 0..ENDS {
                let Some(end) = self.tiers.lower_mut(tier).reported.pop_front() else {
                    break;
                };
                if !self.empty_behind(&end, tier) {
                    self.tiers.lower_mut(tier).reported.push_front(end);
                    break;
                }
                let CopyEnd { copy, result } = end;
                let Some(copy) = self.copies.end(copy, tier) else {
                    continue;
                };
                match copy.direction {
                    CopyDirection::Down => self.end_write(copy, result.is_ok()),
                    CopyDirection::Up => self.end_read(copy, result),
                    CopyDirection::Through(pin) => self.end_transient(copy, pin, result),
                }
                ended.push(copy);
            }
            more |= !self.tiers.lower_mut(tier).reported.is_empty();
            self.unpin_copied(tier, &ended);
            for copy in ended {
                self.end_batch(copy.batch);
            }
        }
        more
    }

    /// Takes out a portion of what hangs from a page that was not copied, from the end: its copy ends when less is left,
    /// which goes with it. False if there is more.
    fn empty_behind(&mut self, end: &CopyEnd, tier: usize) -> bool {
        let Some(copy) = self.copies.find(end.copy, tier) else {
            return true;
        };
        let (mut id, mut from) = (copy.id, Places::of(tier));
        let failed = match copy.direction {
            CopyDirection::Down => end.result.is_err(),
            CopyDirection::Up => {
                from = from.with(Places::HOST);
                !self.is_same(copy.id, &end.result)
            }
            CopyDirection::Through(source) => {
                id = source.id;
                !self.is_same(copy.id, &end.result) && self.restoring.pins.lasts(&source)
            }
        };
        if !failed {
            return true; // Nobody may know the entry any more.
        }
        let ids = self.pages_behind(id, from, PORTION);
        if ids.len() < PORTION {
            return true;
        }
        let left = if end.result.is_err() && copy.direction != CopyDirection::Down {
            self.forget(&ids, from)
        } else {
            self.take_out(&ids, from)
        };
        self.classes.count_reclaimed(left);
        false
    }

    /// Counts a copy of a batch as ended, or all its copies as started. The batch ends with the last copy.
    pub(super) fn end_batch(&mut self, batch: u32) {
        if let Some(pinned) = self.copies.leave(batch) {
            self.unpin_all(pinned);
        }
    }

    fn end_write(&mut self, RunningCopy { id, tier, .. }: RunningCopy, whole: bool) {
        let size = u64::from(self.size(id));
        let wanted = self.entries.get(id).members.has(tier);
        let lower = self.tiers.lower_mut(tier);
        lower.queued -= size;
        if !whole {
            lower.stats.failed_writes += 1;
            self.take_out(&[id], Places::of(tier));
        } else if wanted {
            lower.stats.written += 1;
            self.add_place(id, tier);
        }
    }

    fn end_read(&mut self, copy: RunningCopy, result: Result<Vec<u64>>) {
        let RunningCopy { id, tier, .. } = copy;
        let failed = result.is_err();
        if !self.is_intact(copy, result) {
            let places = Places::HOST.with(Places::of(tier));
            let left = self.unread(id, places, failed);
            self.classes.count_reclaimed(left);
        } else if self.entries.get(id).members.in_host() {
            self.tiers.lower_mut(tier).stats.read += 1;
            self.add_place(id, HOST);
        }
    }

    /// Ends a read into an entry that only a restore knows.
    fn end_transient(&mut self, copy: RunningCopy, source: TierPin, result: Result<Vec<u64>>) {
        let failed = result.is_err();
        let intact = self.is_intact(copy, result);
        self.restoring.transients.end(copy.id, intact);
        if intact {
            self.tiers.lower_mut(copy.tier).stats.read += 1;
        } else if self.restoring.pins.lasts(&source) {
            let left = self.unread(source.id, Places::of(copy.tier), failed);
            self.classes.count_reclaimed(left);
        }
    }

    /// Takes out an entry that could not be read, or that had other bytes. Returns how many entries left the host.
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
            tiers,
            ..
        } = self;
        let unread = &mut tiers.lower_mut(tier).unread;
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
    fn is_intact(
        &mut self,
        RunningCopy { id, tier, .. }: RunningCopy,
        result: Result<Vec<u64>>,
    ) -> bool {
        let same = self.is_same(id, &result);
        let stats = &mut self.tiers.lower_mut(tier).stats;
        match result {
            Ok(_) => stats.corrupt_reads += u64::from(!same),
            Err(_) => stats.failed_reads += 1,
        }
        same
    }

    fn is_same(&self, id: EntryId, read: &Result<Vec<u64>>) -> bool {
        read.as_ref()
            .is_ok_and(|checksums| self.entries.checksums(id) == Some(checksums))
    }

    /// Ends the pins of copies in their tier, and counts the pages that they hang from as used there:
    /// what hangs from a page goes before it. Of pages that the tier's policy protects, the last one counts for all
    /// before it.
    fn unpin_copied(&mut self, tier: usize, ended: &[RunningCopy]) {
        let is_member = |copy: &&RunningCopy| !matches!(copy.direction, CopyDirection::Through(_));
        let members = ended.iter().filter(is_member);
        let over: HashSet<EntryId> = members.map(|copy| copy.id).collect();
        let mut order = Vec::with_capacity(over.len() + 1);
        let mut met = HashSet::new();
        for &id in &over {
            order.push(self.depth_of(id));
            let mut next = self.support(id);
            while let Some(page) = next.filter(|&page| {
                let member = self.entries.get(page).members.has(tier);
                member && !over.contains(&page) && met.insert(page)
            }) {
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
            let size = self.classes.slots(entry.class);
            let member = entry.members.has(tier);
            let room = self.tiers.room_mut(tier);
            if over.contains(&id) {
                entry.copying = entry.copying.without(Places::of(tier));
                if !member {
                    room.give(size);
                } else if !self.restoring.pins.has(id, tier) {
                    room.release(id, size);
                }
            } else if member && !entry.copying.has(tier) && !self.restoring.pins.has(id, tier) {
                room.touch(id);
            }
        }
    }

    /// A sort key that puts entries behind the page that they hang from.
    fn depth_of(&self, id: EntryId) -> (Option<usize>, bool, EntryId) {
        let entry = self.entries.get(id);
        let page = self.index.roles().attention == Some(entry.class);
        let block = entry.home.map(|node| self.index.boundary_block(node));
        (block, !page, id)
    }

    /// Counts entries as used in the tiers below, too: the deepest first.
    pub(super) fn touch_below(&mut self, ids: &[EntryId]) {
        for tier in self.tiers.below_host() {
            for &id in ids {
                let entry = self.entries.get(id);
                if entry.members.has(tier) && !self.is_pinned_below(id, tier) {
                    self.tiers.room_mut(tier).touch(id);
                }
            }
        }
    }
}
