//! Entries go to tiers below when they are published: an eviction never waits for a copy then.
//!
//! A store offers what is new, and what a tier lacks of the prefix that it extends: that is found from its end
//! upwards, since what a tier has of a prefix it has from the start. What a tier has passed over, and what stands on that,
//! is not offered to it again before a request [passes](State::reconsider).

use hashbrown::HashSet;

use super::copies::{Direction, Held};
use super::state::State;
use super::tips::Tip;
use crate::ids::{EntryId, NodeId};
use crate::slot::Places;

/// How a tier stands to a prefix.
enum Lack {
    /// It has the prefix up to this page, if any of it, and lacks these behind that: the deepest first.
    Behind(Option<EntryId>, Vec<EntryId>),
    /// It has passed over what comes before these.
    PassedOver(Vec<EntryId>),
    /// It can't have what is deeper now.
    Never,
}

impl State {
    /// Offers what was just published, and the prefix that it extends, to every tier below. `held`: what the caller
    /// holds of it, once; the holds end with the copies. `written`: what is new, shallow first.
    pub(super) fn write_behind(&mut self, held: Held, written: &[EntryId]) {
        if self.below.is_empty() {
            self.let_go(held);
            return;
        }
        self.poll();
        let entries = held.entries.clone();
        let base = self.base(&entries, written);
        let batch = self.copies.open(held);
        for tier in 1..=self.below.len() {
            self.offer_new(tier, &entries, written, base, batch);
        }
        self.end_batch(batch);
    }

    /// The last page of the prefix that a store extends.
    fn base(&self, held: &[EntryId], written: &[EntryId]) -> Option<EntryId> {
        let known = |id: &&EntryId| self.entries.get(**id).home.is_some();
        if let Some(&first) = written.iter().find(known) {
            return self.support(first);
        }
        let page = self.index.roles().attention?;
        let is_page = |id: &&EntryId| self.entries.get(**id).class == page;
        held.iter().filter(known).find(is_page).copied()
    }

    /// Offers to a tier what is new, and what it lacks before that.
    fn offer_new(
        &mut self,
        tier: usize,
        held: &[EntryId],
        written: &[EntryId],
        base: Option<EntryId>,
        batch: u32,
    ) {
        if base.is_some_and(|page| self.lacks(tier, page)) && !self.queue_takes_a_page(tier) {
            self.below[tier - 1].stats.declined += written.len() as u64;
            return;
        }
        let (last, lacking) = match self.lack(tier, base) {
            Lack::Behind(last, lacking) => (last, lacking),
            Lack::PassedOver(pages) => {
                for &id in pages.iter().chain(written) {
                    self.entries.pass_over(id, tier);
                }
                return;
            }
            Lack::Never => return,
        };
        let mut members = held.to_vec();
        let mut more = Vec::new();
        if !lacking.is_empty() || last.is_some() {
            let of_caller: HashSet<EntryId> = held.iter().copied().collect();
            more.extend(lacking.iter().filter(|&id| !of_caller.contains(id)));
            // The host holds what is copied.
            self.hold(&more);
            self.copies.hold_more(batch, &more);
            // What the tier has above what the caller holds.
            let above = match last {
                Some(page) if of_caller.contains(&page) => self.support_of_all(held),
                last => last,
            };
            if let Some(page) = above.filter(|page| !of_caller.contains(page)) {
                self.below[tier - 1].tip = self.chain_below(tier, page, &mut members);
            }
        }
        let kept = self.keep_in(tier, &members);
        for &id in held.iter().chain(&more).rev() {
            self.offer(tier, id, batch);
        }
        self.let_go_in(tier, kept.into_iter());
        self.below[tier - 1].tip = None;
    }

    /// The page that the shallowest page of these hangs from.
    fn support_of_all(&self, held: &[EntryId]) -> Option<EntryId> {
        let page = self.index.roles().attention?;
        let mut pages = held.iter().rev().copied();
        let top = pages.find(|&id| self.entries.get(id).class == page)?;
        self.support(top)
    }

    /// Adds to `members` what is to be held of the prefix that a page of a tier ends: the page alone, which is the
    /// tip then, if the tier's policy protects what it stands on.
    pub(super) fn chain_below(
        &self,
        tier: usize,
        page: EntryId,
        members: &mut Vec<EntryId>,
    ) -> Option<Tip> {
        members.push(page);
        if self.protects(tier, page) {
            let home = self.entries.get(page).home?;
            return Some(self.tip_at(page, self.index.boundary_block(home)));
        }
        let mut next = self.support(page);
        while let Some(page) = next {
            members.push(page);
            next = self.support(page);
        }
        None
    }

    /// Whether a tier neither has an entry nor copies it.
    fn lacks(&self, tier: usize, id: EntryId) -> bool {
        let entry = self.entries.get(id);
        !entry.members.with(entry.copying).has(tier)
    }

    fn queue_takes_a_page(&self, tier: usize) -> bool {
        let page = self.index.roles().attention;
        let size = page.map_or(0, |class| u64::from(self.classes[class].slots));
        let level = &self.below[tier - 1];
        level.queued + size <= level.tier.queue_slots()
    }

    /// What a tier lacks of the prefix that a page of the host ends.
    fn lack(&self, tier: usize, end: Option<EntryId>) -> Lack {
        let mut lacking = Vec::new();
        let mut next = end;
        while let Some(page) = next {
            let entry = self.entries.get(page);
            if entry.members.has(tier) {
                break;
            }
            if self.entries.passed_over(page).has(tier) {
                return Lack::PassedOver(lacking);
            }
            if entry.copying.has(tier) || !entry.places.in_host() {
                return Lack::Never;
            }
            lacking.push(page);
            next = self.support(page);
        }
        Lack::Behind(next, lacking)
    }

    /// A request passes these boundaries, or is stored from its start: every tier judges again what it has passed over
    /// of them.
    pub(super) fn reconsider(&mut self, path: &[Option<NodeId>]) {
        if self.below.is_empty() {
            return;
        }
        for &node in path.iter().flatten() {
            for class in 0..self.classes.len() {
                if let Some(id) = self.index.cell(node, class).entry() {
                    self.entries.reconsider(id);
                }
            }
        }
    }

    /// Offers entries of consecutive blocks to some tiers below, without waiting for anything. `held`: those, held once
    /// by the caller; the holds end with the copies.
    pub(super) fn offer_all(&mut self, held: Held, tiers: Places) {
        let entries = held.entries.clone();
        let batch = self.copies.open(held);
        for tier in (1..=self.below.len()).filter(|&tier| tiers.has(tier)) {
            let mut members = entries.clone();
            let above = entries.last().and_then(|&page| self.support(page));
            if let Some(page) = above.filter(|&page| !self.lacks(tier, page)) {
                self.below[tier - 1].tip = self.chain_below(tier, page, &mut members);
            }
            let kept = self.keep_in(tier, &members);
            for &id in entries.iter().rev() {
                self.offer(tier, id, batch);
            }
            self.let_go_in(tier, kept.into_iter());
            self.below[tier - 1].tip = None;
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
        if there || !entry.places.in_host() || self.entries.passed_over(id).has(tier) {
            return;
        }
        // A cache with tiers publishes nothing without checksums.
        let Some(checksums) = self.entries.checksums(id).map(<[u64]>::to_vec) else {
            return;
        };
        let page = self.index.support(node, class);
        if let Some(page) = page.filter(|&page| !self.entries.get(page).members.has(tier)) {
            if self.entries.passed_over(page).has(tier) {
                self.entries.pass_over(id, tier);
            }
            return;
        }
        let new = self.as_new(id, node, self.index.boundary(node));
        let size = u64::from(new.size);
        let level = &mut self.below[tier - 1];
        if level.queued + size > level.tier.queue_slots() {
            level.stats.declined += 1;
            return;
        }
        if !level.tier.accepts(&new) || !self.make_room(tier, size) {
            self.below[tier - 1].stats.declined += 1;
            self.entries.pass_over(id, tier);
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
