//! Publishing, and writing behind: entries go to tiers below when they are published, so that no eviction waits for a
//! copy.
//!
//! A store offers its new entries, and those of the prefix before them that a tier lacks. The search for these goes
//! from the end of the prefix upwards, since a tier has a prefix from its start. Entries that a tier has passed over,
//! and those that stand on them, are not offered to it again before a request [passes](CacheState::reconsider) them. A
//! tier that waits for proof is offered an entry again when the proof comes.

use hashbrown::HashSet;

use super::copies::CopyDirection;
use super::prefix_pins::PinSet;
use super::queries::PORTION;
use super::reserve::Reservation;
use super::state::CacheState;
use crate::ids::{EntryId, NamespaceId, NodeId, PrefixKey};
use crate::slot::{HOST, Places};

/// Blocks that are proven, and not yet offered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unoffered {
    pub(super) from: usize,
    pub(super) to: usize,
}

/// The part of a prefix that a tier lacks.
enum Lack {
    /// The tier has the prefix up to this page (`None`: nothing of it), and lacks these entries behind it: the deepest
    /// first.
    Behind(Option<EntryId>, Vec<EntryId>),
    /// The tier has passed over an entry before these.
    PassedOver(Vec<EntryId>),
    /// The tier can't take anything deeper now.
    Never,
}

/// Entries of a write lease that are published in portions.
pub(super) struct Publication {
    /// The entries to publish: shallow first.
    written: Vec<EntryId>,
    /// How many of these were gone through, and how many of them are published.
    at: usize,
    published: usize,
    /// All that the lease pins, until a batch does.
    pinned: PinSet,
    /// The pinned entries that were not gone through: the deepest first.
    rest: Vec<EntryId>,
    /// Whether no tier lacks more of the prefix before these than goes with them. If all of the prefix is among them, it
    /// goes with them.
    caught_up: bool,
    /// The batch of the copies to tiers below.
    batch: Option<u32>,
}

impl Publication {
    pub(super) fn new(reservation: &mut Reservation) -> Self {
        let pinned = std::mem::take(&mut reservation.pinned);
        Self {
            written: reservation.ids(),
            at: 0,
            published: 0,
            rest: pinned.entries.clone(),
            caught_up: pinned.prefix.is_none(),
            pinned,
            batch: None,
        }
    }
}

impl CacheState {
    /// Publishes a portion of what was reserved, and offers it, with the prefix that it extends, to every tier below.
    /// After the last one, lets go of all that is pinned for it, when the copies have ended, and returns how many
    /// entries were published.
    pub(super) fn publish<'a>(
        &mut self,
        publication: &mut Publication,
        checksums: &impl Fn(usize) -> Option<&'a [u64]>,
    ) -> Option<usize> {
        if !publication.caught_up {
            let rest = &publication.rest;
            let first = &rest[rest.len().saturating_sub(PORTION)..];
            let base = self.base(first, &publication.written);
            for tier in self.tiers.below_host() {
                if self.catch_up(tier, base) {
                    return None;
                }
            }
            publication.caught_up = true;
        }
        let rest = &mut publication.rest;
        let portion = rest.split_off(rest.len().saturating_sub(PORTION));
        let from = publication.at;
        for &id in portion.iter().rev() {
            if publication.written.get(publication.at) == Some(&id) {
                publication.published +=
                    usize::from(self.publish_one(id, checksums(publication.at)));
                publication.at += 1;
            }
        }
        if self.tiers.has_lower() {
            let batch = publication.batch.unwrap_or_else(|| {
                self.poll();
                self.copies.open(std::mem::take(&mut publication.pinned))
            });
            publication.batch = Some(batch);
            let written = &publication.written[from..publication.at];
            let base = self.base(&portion, written);
            for tier in self.tiers.below_host() {
                self.offer_new(tier, &portion, written, base, batch);
            }
        }
        if !publication.rest.is_empty() {
            return None;
        }
        match publication.batch {
            Some(batch) => self.end_batch(batch),
            None => self.unpin_all(std::mem::take(&mut publication.pinned)),
        }
        Some(publication.published)
    }

    /// Lets lookups see an entry that was being written, unless it left meanwhile.
    fn publish_one(&mut self, id: EntryId, checksums: Option<&[u64]>) -> bool {
        self.classes.end_writing(1);
        let entry = self.entries.get(id);
        if !entry.members.in_host() {
            return false;
        }
        let class = entry.class;
        let same = checksums.is_some() && self.entries.checksums(id) == checksums;
        if !entry.places.is_empty() && !same {
            // The bytes were computed again and may differ, but an entry has the same bytes in every tier.
            self.take_out(&[id], Places::BELOW);
        }
        self.entries.set_checksums(id, checksums);
        self.classes.count_stored(class);
        self.add_place(id, HOST);
        true
    }

    /// The last page of the prefix that a store extends.
    fn base(&self, pinned: &[EntryId], written: &[EntryId]) -> Option<EntryId> {
        let known = |id: &&EntryId| self.entries.get(**id).home.is_some();
        if let Some(&first) = written.iter().find(known) {
            return self.support(first);
        }
        let page = self.index.roles().attention?;
        // A portion may begin behind the page of its first block.
        let deepest = *pinned.iter().find(known)?;
        if self.entries.get(deepest).class == page {
            Some(deepest)
        } else {
            self.support(deepest)
        }
    }

    /// Offers to a tier the next portion of a prefix that it lacks. False if less than that is left, or the tier did not
    /// take all of it.
    fn catch_up(&mut self, tier: usize, base: Option<EntryId>) -> bool {
        let Lack::Behind(_, mut lacking) = self.lack(tier, base) else {
            return false;
        };
        if lacking.len() <= PORTION || !self.queue_takes_a_page(tier) {
            return false;
        }
        let next = lacking.split_off(lacking.len() - PORTION);
        let (deepest, top) = (next[0], next[PORTION - 1]);
        let home = self.entries.get(top).home;
        let block = home.map_or(0, |home| self.index.boundary_block(home));
        let mut pinned = PinSet::entries(next);
        self.add_prefix(&mut pinned, top, block);
        self.pin_all(&pinned);
        self.offer_all(pinned, Places::of(tier));
        !self.lacks(tier, deepest)
    }

    /// Offers to a tier the new entries, and those before them that it lacks.
    fn offer_new(
        &mut self,
        tier: usize,
        pinned: &[EntryId],
        written: &[EntryId],
        base: Option<EntryId>,
        batch: u32,
    ) {
        if base.is_some_and(|page| self.lacks(tier, page)) && !self.queue_takes_a_page(tier) {
            self.tiers.lower_mut(tier).stats.declined += written.len() as u64;
            return;
        }
        let (last, lacking) = match self.lack(tier, base) {
            Lack::Behind(_, lacking) if lacking.len() > PORTION => {
                self.tiers.lower_mut(tier).stats.declined += written.len() as u64;
                return;
            }
            Lack::Behind(last, lacking) => (last, lacking),
            Lack::PassedOver(pages) => {
                for &id in pages.iter().chain(written) {
                    self.entries.pass_over(id, tier);
                }
                return;
            }
            Lack::Never => return,
        };
        let mut members = pinned.to_vec();
        let mut more = Vec::new();
        if !lacking.is_empty() || last.is_some() {
            let of_caller: HashSet<EntryId> = pinned.iter().copied().collect();
            more.extend(lacking.iter().filter(|&id| !of_caller.contains(id)));
            // Entries stay in the host while they are copied.
            self.pin(&more);
            self.copies.pin_more(batch, &more);
            // The deepest page that the tier has above the entries that the caller pins.
            let above = match last {
                Some(page) if of_caller.contains(&page) => self.support_of_all(pinned),
                last => last,
            };
            if let Some(page) = above.filter(|page| !of_caller.contains(page)) {
                self.pin_prefix_in(tier, page, &mut members);
            }
        }
        let pinned_there = self.pin_in(tier, &members);
        for &id in pinned.iter().chain(&more).rev() {
            self.offer(tier, id, batch);
        }
        self.unpin_in(tier, pinned_there.into_iter());
        self.tiers.lower_mut(tier).prefix_pin = None;
    }

    /// The page that the shallowest of these pages hangs from.
    fn support_of_all(&self, pinned: &[EntryId]) -> Option<EntryId> {
        let page = self.index.roles().attention?;
        let mut pages = pinned.iter().rev().copied();
        let top = pages.find(|&id| self.entries.get(id).class == page)?;
        self.support(top)
    }

    fn queue_takes_a_page(&self, tier: usize) -> bool {
        let page = self.index.roles().attention;
        let size = page.map_or(0, |class| u64::from(self.classes.slots(class)));
        let lower = self.tiers.lower(tier);
        lower.queued + size <= lower.tier.queue_slots()
    }

    /// Finds what a tier lacks of the prefix that a page of the host ends.
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

    /// Lets every tier judge again what it has passed over at these boundaries: a request passes them, or is stored
    /// from its start.
    pub(super) fn reconsider(&mut self, path: &[Option<NodeId>]) {
        if !self.tiers.has_lower() {
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

    /// Offers a portion of the host's entries at blocks that are proven to tiers that wait for that, from one block on.
    /// Returns the blocks that are left.
    pub(super) fn prove_on(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        from: usize,
    ) -> Option<Unoffered> {
        let tiers = self.visits.waiting()?;
        let classes: Vec<usize> = self.index.roles().pages_first().collect();
        let attention = self.index.roles().attention;
        let before = from.checked_sub(1);
        let mut node = before.and_then(|block| self.index.at(namespace, keys, block));
        let mut found: Vec<EntryId> = Vec::new();
        let (mut block, mut first) = (from, None);
        // Without a policy that protects prefixes, each portion would pin all that comes before it.
        while block < keys.len()
            && (block - from < PORTION || first.is_some_and(|page| !self.protects(HOST, page)))
        {
            let parent = node.filter(|_| attention.is_some());
            let here = self.index.child(parent, block, namespace, &keys[block]);
            let cell = |class| here.map(|node| self.index.cell(node, class));
            let whole = |class| cell(class).filter(|cell| cell.is_in_host());
            if attention.is_some_and(|page| whole(page).is_none()) {
                break;
            }
            found.extend(classes.iter().filter_map(|&class| whole(class)?.entry()));
            first = first.or(found.first().copied().filter(|_| attention.is_some()));
            node = here;
            block += 1;
        }
        // The deepest first, a block's page last.
        found.reverse();
        let lacks = |&id: &EntryId| {
            let entry = self.entries.get(id);
            !tiers.without(entry.members.with(entry.copying)).is_empty()
        };
        if found.iter().any(lacks) {
            let mut pinned = PinSet::entries(found);
            if let Some(page) = first.filter(|_| from > 0) {
                self.add_prefix(&mut pinned, page, from);
            }
            self.pin_all(&pinned);
            self.offer_all(pinned, tiers);
        }
        let more = block - from >= PORTION && block < keys.len();
        more.then_some(Unoffered {
            from: block,
            to: keys.len(),
        })
    }

    /// Offers entries of consecutive blocks to some tiers below, without waiting for anything. `pinned`: the entries,
    /// which the caller has pinned once; the pins end with the copies.
    fn offer_all(&mut self, pinned: PinSet, tiers: Places) {
        let entries = pinned.entries.clone();
        let batch = self.copies.open(pinned);
        for tier in self.tiers.below_host().filter(|&tier| tiers.has(tier)) {
            let mut members = entries.clone();
            let above = entries.last().and_then(|&page| self.support(page));
            if let Some(page) = above.filter(|&page| !self.lacks(tier, page)) {
                self.pin_prefix_in(tier, page, &mut members);
            }
            let pinned_there = self.pin_in(tier, &members);
            for &id in entries.iter().rev() {
                self.offer(tier, id, batch);
            }
            self.unpin_in(tier, pinned_there.into_iter());
            self.tiers.lower_mut(tier).prefix_pin = None;
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
        let lower = self.tiers.lower_mut(tier);
        if lower.queued + size > lower.tier.queue_slots() {
            lower.stats.declined += 1;
            return;
        }
        if !lower.tier.accepts(&new) || !self.make_room(tier, size) {
            self.tiers.lower_mut(tier).stats.declined += 1;
            self.entries.pass_over(id, tier);
            return;
        }
        let key = self.index.key(node, class);
        let slots = self.slots(id);
        let entry = self.entries.get_mut(id);
        entry.members = entry.members.with(Places::of(tier));
        entry.copying = entry.copying.with(Places::of(tier));
        let copy = self.copies.start(id, tier, CopyDirection::Down, batch);
        let lower = self.tiers.lower_mut(tier);
        lower.queued += size;
        lower.tier.room_mut().enter(&new);
        lower.tier.write(copy, &key, &slots, &checksums);
    }
}
