//! Finding room for new entries.
//!
//! Stores of many entries do so in portions, between which the lock is free: a store surveys its prefix and pins what
//! is there, then finds room for the rest, then shows it. What it has pinned keeps its number, so that it notices what
//! has left in between: behind a page that left, nothing is written.

use std::cmp::Reverse;

use super::entry::{LeaseEntry, Skipped};
use super::prefix_pins::{PinSet, PrefixPin};
use super::queries::PORTION;
use super::state::CacheState;
use super::tenants::Full;
use super::write_order::{Wanted, units, write_order};
use crate::error::{Error, Result};
use crate::ids::{EntryId, NamespaceId, NodeId, PrefixKey};
use crate::policy::Hints;
use crate::prefix::{Roles, boundary_name, check_chain, is_tail_at};
use crate::slot::HOST;

/// Entries of a prefix, each with its class and block.
type PlacedEntries = Vec<(Wanted, EntryId)>;

/// The entries that a write lease writes and pins.
#[derive(Default)]
pub(super) struct Reservation {
    /// The entries to write: from [`settle`](Self::settle) on in the order in which the lease shows them.
    pub(super) written: PlacedEntries,
    /// The written entries as the lease shows them.
    pub(super) entries: Vec<LeaseEntry>,
    /// The written entries and the prefix that they extend, until `settle`: a page before what hangs from it.
    placed: PlacedEntries,
    /// The same, from `settle` on.
    pub(super) pinned: PinSet,
    pub(super) skipped: Skipped,
}

impl Reservation {
    /// The written entries, in their order.
    pub(super) fn ids(&self) -> Vec<EntryId> {
        self.written.iter().map(|&(_, id)| id).collect()
    }

    /// Puts all that was found and placed into the orders in which it is shown, and in which its pins end.
    pub(super) fn settle(&mut self, roles: &Roles) {
        // The order of writing reversed, so that an entry comes before the page that it hangs from.
        let mut placed = std::mem::take(&mut self.placed);
        placed.reverse();
        sort(&mut placed, |&(at, _)| Reverse(write_order(roles, at)));
        let placed = placed.into_iter().map(|(_, id)| id);
        self.pinned.entries.extend(placed);
        sort(&mut self.written, |&(at, _)| write_order(roles, at));
    }
}

#[cold]
fn not_below(entry: usize, what: &str, limit: usize, why: &str, found: usize) -> Error {
    Error::InvalidArgument(format!(
        "entry {entry}: expected a {what} below {limit}{why}, found {found}"
    ))
}

/// What a store does next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Survey,
    Place,
    Show,
}

/// Why a store places nothing more.
#[derive(Clone, Copy)]
enum Unplaced {
    Full(Full),
    /// What the rest stands on has left.
    Gone,
}

/// A store that is under way.
pub(super) struct Store<'a> {
    namespace: NamespaceId,
    roles: &'a Roles,
    /// The keys up to the last block that is wanted.
    keys: &'a [PrefixKey],
    hints: &'a Hints,
    /// The wanted entries, in the order of writing.
    wanted: Vec<Wanted>,
    /// Whether the last block is a tail.
    tail: bool,
    phase: Phase,
    /// The number of clears before this store.
    clears: u64,
    /// The first block that is surveyed, and the next one.
    first: usize,
    next: usize,
    /// How many of `wanted` were looked at.
    looked: usize,
    /// The first block whose page is neither there nor wanted, as far as was surveyed.
    reach: usize,
    /// Whether a page was not there. Others may put it there, and more behind it, before the next portion.
    hole: bool,
    /// Whether tiers may judge again what they have passed over.
    from_start: bool,
    /// The pages from block `first` on that this store has pinned.
    pages: Vec<Option<EntryId>>,
    /// The entries that are not there, in the order in which they get room, and where each unit ends.
    missing: Vec<Wanted>,
    units: Vec<usize>,
    /// How many of `missing` have room.
    at: usize,
    /// `at`, the number of placed entries, and what was skipped, when the unit at hand began.
    before: (usize, usize, Skipped),
    unplaced: Option<Unplaced>,
    /// How many written entries were shown.
    shown: usize,
}

/// The point from which a store looks at its prefix.
struct Start {
    /// The boundary at that point, if it is known.
    node: Option<NodeId>,
    first: usize,
    /// The pin that stands for all that comes before, if there is one.
    prefix: Option<PrefixPin>,
}

impl Start {
    /// The start of the prefix.
    const AT_ONCE: Self = Self {
        node: None,
        first: 0,
        prefix: None,
    };
}

/// Sorts items, unless they are in order, as most often: then the code of the sort need not be fetched.
fn sort<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    if !items.is_sorted_by_key(&key) {
        items.sort_unstable_by_key(key);
    }
}

impl<'a> Store<'a> {
    pub(super) fn new(
        roles: &'a Roles,
        namespace: NamespaceId,
        keys: &'a [PrefixKey],
        entries: &[(usize, usize)],
        hints: &'a Hints,
    ) -> Result<Self> {
        for (at, &(class, block)) in entries.iter().enumerate() {
            if class >= roles.count {
                return Err(not_below(at, "class", roles.count, "", class));
            }
            if block >= keys.len() {
                let why = ", the number of keys";
                return Err(not_below(at, "block", keys.len(), why, block));
            }
        }
        let wanted = entries.iter();
        let wanted = wanted.map(|&(class, block)| Wanted { block, class });
        let mut wanted: Vec<Wanted> = wanted.collect();
        sort(&mut wanted, |&at| write_order(roles, at));
        let keys = &keys[..wanted.last().map_or(0, |at| at.block + 1)];
        Ok(Self {
            namespace,
            roles,
            keys,
            hints,
            tail: is_tail_at(keys, keys.len().wrapping_sub(1)),
            missing: Vec::with_capacity(wanted.len()),
            phase: Phase::Survey,
            clears: 0,
            first: 0,
            next: 0,
            looked: 0,
            reach: 0,
            hole: false,
            from_start: false,
            pages: Vec::with_capacity(keys.len().min(wanted.len())),
            wanted,
            units: Vec::new(),
            at: 0,
            before: Default::default(),
            unplaced: None,
            shown: 0,
        })
    }

    /// Goes to the next phase. A long store does so without the lock, so memory is taken here.
    pub(super) fn advance(&mut self, reservation: &mut Reservation) {
        self.phase = match self.phase {
            Phase::Survey => {
                reservation.placed.reserve(self.missing.len());
                reservation.written.reserve(self.missing.len());
                let tail = self.tail.then(|| self.keys.len() - 1);
                let mut end = 0;
                for unit in units(self.roles, &mut self.missing, tail) {
                    end += unit.len();
                    self.units.push(end);
                }
                Phase::Place
            }
            Phase::Place | Phase::Show => {
                reservation.settle(self.roles);
                Phase::Show
            }
        };
    }

    /// The page of a block, if this store has pinned it.
    fn page(&self, block: usize) -> Option<EntryId> {
        let at = block.checked_sub(self.first)?;
        self.pages.get(at).copied().flatten()
    }
}

impl CacheState {
    /// Goes on with a store by a portion. Shows entries that are to be written at the end. Returns whether a phase has
    /// ended, and whether it was the last.
    pub(super) fn reserve_on(
        &mut self,
        store: &mut Store<'_>,
        reservation: &mut Reservation,
        show: &mut impl FnMut(&Self, Wanted, EntryId, &mut Vec<LeaseEntry>),
    ) -> Result<(bool, bool)> {
        Ok(match store.phase {
            Phase::Survey => (self.survey(store, reservation)?, false),
            Phase::Place => (self.place(store, reservation)?, false),
            Phase::Show => {
                let rest = reservation.written.iter().skip(store.shown);
                for &(at, id) in rest.take(PORTION) {
                    show(self, at, id, &mut reservation.entries);
                    store.shown += 1;
                }
                let ended = store.shown == reservation.written.len();
                (ended, ended)
            }
        })
    }

    /// Finds the point from which to look at the prefix of a store, and pins what comes before. Returns the boundary at
    /// that point.
    fn begin(
        &mut self,
        store: &mut Store<'_>,
        reservation: &mut Reservation,
    ) -> Result<Option<NodeId>> {
        let Some(first) = store.wanted.first().map(|at| at.block) else {
            return Ok(None);
        };
        let chained = store.roles.attention.is_some();
        // The first block that has one of the entries, or one that a resumption needs beside its page.
        let first = first.min(store.roles.seen_from(store.keys.len() - 1, store.tail));
        let start = match first {
            1.. if chained && !store.hints.keep() => {
                self.start(store.namespace, &store.keys[..first], &store.wanted)
            }
            _ if chained => Start::AT_ONCE,
            _ => Start {
                first,
                ..Start::AT_ONCE
            },
        };
        check_chain(store.keys, start.first.saturating_sub(1))?;
        store.clears = self.clears;
        store.from_start = first == 0;
        store.first = start.first;
        store.next = start.first;
        // Behind a page that is not there nothing is reached.
        let nowhere = start.first > 0 && start.node.is_none();
        store.reach = if nowhere { 0 } else { start.first };
        reservation.pinned.prefix = start.prefix;
        Ok(start.node)
    }

    /// Looks at a portion of the prefix of a store, and pins what is there. Returns whether that was the last one.
    fn survey(&mut self, store: &mut Store<'_>, reservation: &mut Reservation) -> Result<bool> {
        let seed = self.index.namespaces.seed(store.namespace)?;
        let begins = store.pages.is_empty();
        let tip = match begins {
            true => self.begin(store, reservation)?,
            false if store.roles.attention.is_none() => None,
            false => self.index.end(store.namespace, &store.keys[..store.next]),
        };
        let from = store.next;
        if let Some(page) = store.roles.attention.filter(|_| !begins) {
            // What was pinned may have left, and others may have put the same pages there anew.
            let there = tip.and_then(|node| self.member(node, page));
            store.hole |= there != store.page(from - 1);
        }
        let end = store.keys.len().min(from + PORTION);
        let path = self
            .index
            .path(store.namespace, &store.keys[..end], tip, from);
        let path = path.inspect_err(|_| {
            if begins {
                reservation.pinned.prefix = None; // It was not pinned yet.
            }
        })?;
        // Of this portion, nothing fails from here on.
        if store.from_start {
            self.reconsider(&path);
        }
        let mut placed = PlacedEntries::new();
        if begins && let Some(pin) = reservation.pinned.prefix {
            self.prefix_pins.pin(Some(pin));
            let (block, class) = (pin.block, store.roles.attention.unwrap_or_default());
            placed.push((Wanted { block, class }, pin.page));
        }
        let path = path.into_iter().skip(usize::from(tip.is_some() && !begins));
        for (block, node) in (from..end).zip(path) {
            self.survey_block(store, (block, node), &mut placed, &mut reservation.skipped);
        }
        placed.sort_unstable_by_key(|&(_, id)| id);
        placed.dedup();
        let ids: Vec<EntryId> = placed.iter().map(|&(_, id)| id).collect();
        self.pin(&ids);
        self.pass_hints(&ids, store.hints);
        // A page comes before what hangs from it.
        sort(&mut placed, |&(at, _)| write_order(store.roles, at));
        reservation.placed.extend(placed);
        if store.hints.retain > 0 {
            self.vouch(seed, &store.keys[from..end]);
        }
        store.next = end;
        Ok(end == store.keys.len())
    }

    /// Finds what is there of a block, or on its way: what is wanted, and what a resumption at the end of the store
    /// needs. Of the wanted entries that are not there, those that could never be reached are left out.
    fn survey_block(
        &self,
        store: &mut Store<'_>,
        (block, node): (usize, Option<NodeId>),
        placed: &mut PlacedEntries,
        skipped: &mut Skipped,
    ) {
        let roles = store.roles;
        // Behind a page that is not pinned nothing is: what is there by now is found when room is given.
        let node = node.filter(|_| !store.hole);
        let member = |class: usize| node.and_then(|node| self.member(node, class));
        let page = roles.attention.and_then(member);
        store.reach += usize::from(page.is_some() && block == store.reach);
        store.pages.push(page);
        store.hole |= roles.attention.is_some() && page.is_none();
        let windows = roles.windows_over(block, store.keys.len() - 1, store.tail);
        for class in roles.attention.into_iter().chain(windows) {
            placed.extend(member(class).map(|id| (Wanted { block, class }, id)));
        }
        let mut last = None;
        while let Some(&at) = store
            .wanted
            .get(store.looked)
            .filter(|at| at.block == block)
        {
            store.looked += 1;
            let there = node.and_then(|node| self.index.cell(node, at.class).entry());
            if let Some(id) = there.filter(|&id| self.is_coming(id, skipped)) {
                placed.extend(member(at.class).map(|_| (at, id)));
                continue;
            }
            if last.replace(at) == Some(at) {
                skipped.in_writing += 1;
                continue;
            }
            let is_page = Some(at.class) == roles.attention;
            store.reach += usize::from(is_page && block == store.reach);
            if roles.attention.is_some() && block >= store.reach {
                skipped.orphan += 1;
            } else {
                store.missing.push(at);
            }
        }
    }

    /// Whether an entry has slots of the host, so that it need not be written; counts it then.
    fn is_coming(&self, id: EntryId, skipped: &mut Skipped) -> bool {
        let entry = self.entries.get(id);
        let whole = entry.places.in_host();
        let coming = !whole && entry.slots.is_some();
        skipped.resident += usize::from(whole);
        skipped.in_writing += usize::from(coming);
        whole || coming
    }

    /// Gives room to a portion of the missing entries, in order of use, and makes them known as in writing. Returns
    /// whether there is nothing more to do.
    fn place(&mut self, store: &mut Store<'_>, reservation: &mut Reservation) -> Result<bool> {
        if store.unplaced.is_some() {
            return Ok(self.give_back(store, reservation));
        }
        let seed = self.index.namespaces.seed(store.namespace)?;
        let from = reservation.written.len();
        // Making room may take the last boundary of a namespace that nobody holds.
        self.index.namespaces.hold(store.namespace);
        let placed = self.place_portion(store, seed, reservation);
        self.index.namespaces.let_go(store.namespace);
        let new: Vec<EntryId> = reservation.written[from..].iter().map(|it| it.1).collect();
        self.classes.begin_writing(new.len());
        self.pass_hints(&new, store.hints);
        store.unplaced = placed?;
        Ok(match store.unplaced {
            Some(_) => self.give_back(store, reservation),
            None => store.at == store.missing.len(),
        })
    }

    fn place_portion(
        &mut self,
        store: &mut Store<'_>,
        seed: u64,
        reservation: &mut Reservation,
    ) -> Result<Option<Unplaced>> {
        let mut left = PORTION;
        while left > 0 && store.at < store.missing.len() {
            let unit = store.units.partition_point(|&end| end <= store.at);
            let end = store.units[unit];
            let begins = unit.checked_sub(1).map_or(0, |unit| store.units[unit]) == store.at;
            let slots = |of: &[Wanted]| {
                of.iter()
                    .map(|at| u64::from(self.classes.slots(at.class)))
                    .sum()
            };
            let to = end.min(store.at + left);
            let mut room = Ok(());
            if begins {
                store.before = (store.at, reservation.placed.len(), reservation.skipped);
                // A unit gets room whole, or not at all.
                if to < end {
                    room = self
                        .can_make_room_for(store.namespace, slots(&store.missing[store.at..end]));
                }
            }
            let needed = slots(&store.missing[store.at..to]);
            if let Err(full) = room.and_then(|()| self.make_room_for(store.namespace, needed)) {
                return Ok(Some(Unplaced::Full(full)));
            }
            left -= to - store.at;
            while store.at < to {
                let at = store.missing[store.at];
                if self.clears != store.clears || !self.place_one(store, seed, at, reservation)? {
                    return Ok(Some(Unplaced::Gone));
                }
                store.at += 1;
            }
        }
        Ok(None)
    }

    /// Makes one entry known as in writing; room was made. Returns whether what it stands on is there.
    fn place_one(
        &mut self,
        store: &mut Store<'_>,
        seed: u64,
        at: Wanted,
        reservation: &mut Reservation,
    ) -> Result<bool> {
        let Wanted { block, class } = at;
        let key = &store.keys[block];
        let is_page = Some(class) == store.roles.attention;
        // The page that the entry stands on; none for those of the first block, or where blocks stand alone.
        let below = match store.roles.attention {
            Some(_) if is_page => block.checked_sub(1),
            Some(_) => Some(block),
            None => None,
        };
        let page = below.map(|block| store.page(block).map(|id| self.entries.get(id)));
        let parent = page.map(|page| page.filter(|page| page.members.in_host())?.home);
        if parent == Some(None) {
            return Ok(false);
        }
        let node = match parent.flatten() {
            Some(node) if !is_page => node,
            parent => {
                let (index, announced) = (&mut self.index, &mut self.announced);
                index.child_or_new(parent, block, store.namespace, key, announced)?
            }
        };
        let known = self.index.cell(node, class).entry();
        // Others may have come first.
        if let Some(id) = known.filter(|&id| self.is_coming(id, &mut reservation.skipped)) {
            let there = self.entries.get(id).members.in_host();
            if there {
                self.pin(&[id]);
                reservation.placed.push((at, id));
            }
            if is_page {
                store.pages[block - store.first] = Some(id).filter(|_| there);
            }
            return Ok(true);
        }
        // An entry that is known by now is only below.
        let id = known.unwrap_or_else(|| self.introduce(node, class));
        self.enter_host(id, node, (block, boundary_name(seed, key)));
        if is_page {
            store.pages[block - store.first] = Some(id);
        }
        reservation.placed.push((at, id));
        reservation.written.push((at, id));
        Ok(true)
    }

    /// Gives back a portion of the unit that has no room, and counts what is left out. Returns whether that was all.
    fn give_back(&mut self, store: &mut Store<'_>, reservation: &mut Reservation) -> bool {
        let (at, placed, skipped) = store.before;
        let from = placed.max(reservation.placed.len().saturating_sub(PORTION));
        let ids: Vec<EntryId> = reservation.placed.drain(from..).map(|it| it.1).collect();
        let mut gone = Vec::new();
        for &id in ids.iter().rev() {
            let is_it = |it: &mut (Wanted, EntryId)| it.1 == id;
            gone.extend(reservation.written.pop_if(is_it).map(|it| it.1));
        }
        gone.reverse();
        self.abandon(&gone);
        self.unpin(&ids.into_iter().rev().collect::<Vec<_>>());
        if from > placed {
            return false;
        }
        reservation.skipped = skipped;
        let left_out = store.missing.len() - at;
        let ready = self.tiers.host.ready() < self.tiers.host.slots();
        match store.unplaced {
            Some(Unplaced::Gone) => reservation.skipped.orphan += left_out,
            Some(Unplaced::Full(Full::Share)) => reservation.skipped.tenant_share = left_out,
            _ if ready => reservation.skipped.not_ready = left_out,
            _ => reservation.skipped.no_room = left_out,
        }
        true
    }

    /// The point from which to look at a prefix. `keys` are those before all entries that are wanted, or needed with
    /// these. Behind a page that the host lacks nothing can be written, and only what comes before counts as used.
    fn start(&self, namespace: NamespaceId, keys: &[PrefixKey], entries: &[Wanted]) -> Start {
        let node = self.index.end(namespace, keys);
        let last = keys.last();
        if node.is_none() && last.is_some_and(|key| self.index.has(namespace, key)) {
            return Start::AT_ONCE; // Of another prefix: it is refused where all of it is looked at.
        }
        let reach = self.pages_in(HOST, namespace, keys);
        let first = keys.len() - usize::from(node.is_some());
        if reach == 0 {
            return Start {
                node,
                first,
                prefix: None,
            };
        }
        let pin = self.pin_for_prefix(namespace, &keys[..reach], entries);
        pin.map_or(Start::AT_ONCE, |pin| Start {
            node,
            first,
            prefix: Some(pin),
        })
    }

    /// A pin on the last page of a prefix that the host has, if it alone keeps the whole prefix: then the cost of a
    /// store behind it does not grow with the prompt.
    fn pin_for_prefix(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        entries: &[Wanted],
    ) -> Option<PrefixPin> {
        let page = self.index.roles().attention?;
        let page = self.member(self.index.end(namespace, keys)?, page)?;
        let pin = self.prefix_pin(page, keys.len() - 1);
        let wanted = entries
            .iter()
            .map(|at| u64::from(self.classes.slots(at.class)));
        let needed = pin.slots.saturating_add(wanted.sum());
        let holds = self.protects(HOST, page)
            && self.can_surely_hold(needed)
            && self.share_surely_holds(namespace, needed, pin.tenant);
        holds.then_some(pin)
    }

    /// The entry of a class that is in the host, or on its way there.
    fn member(&self, node: NodeId, class: usize) -> Option<EntryId> {
        let cell = self.index.cell(node, class);
        let there = |id: &EntryId| cell.is_in_host() || self.entries.get(*id).members.in_host();
        cell.entry().filter(there)
    }
}

#[cfg(test)]
#[path = "../../../../tests/rust/core/inside/reserve.rs"]
mod tests;
