//! Finding room for new entries.

use std::cmp::Reverse;

use super::entry::{LeaseEntry, Skipped};
use super::prefix_pins::{PinSet, PrefixPin};
use super::state::CacheState;
use super::tenants::Full;
use super::write_order::{Wanted, units, write_order};
use crate::error::{Error, Result};
use crate::ids::{EntryId, NamespaceId, NodeId, PrefixKey};
use crate::policy::Hints;
use crate::prefix::{IndexBoundary, IndexCell, boundary_name, is_tail_at};
use crate::slot::HOST;

/// Entries of a prefix, each with its class and block.
type PlacedEntries = Vec<(Wanted, EntryId)>;

/// The entries that a write lease writes and pins.
#[derive(Default)]
pub(super) struct Reservation {
    /// The entries to write, in the order in which the lease shows them.
    pub(super) written: PlacedEntries,
    /// The written entries as the lease shows them.
    pub(super) entries: Vec<LeaseEntry>,
    /// The written entries and the prefix that they extend.
    pub(super) pinned: PinSet,
    pub(super) skipped: Skipped,
}

impl Reservation {
    /// The written entries, in their order.
    pub(super) fn ids(&self) -> Vec<EntryId> {
        self.written.iter().map(|&(_, id)| id).collect()
    }
}

#[cold]
fn not_below(entry: usize, what: &str, limit: usize, why: &str, found: usize) -> Error {
    Error::InvalidArgument(format!(
        "entry {entry}: expected a {what} below {limit}{why}, found {found}"
    ))
}

/// The end of a prefix: its boundaries from `first` on.
struct PrefixPath {
    first: usize,
    boundaries: Vec<IndexBoundary>,
}

impl PrefixPath {
    fn at(&self, block: usize) -> IndexBoundary {
        self.boundaries[block - self.first]
    }

    fn set(&mut self, block: usize, node: NodeId) {
        self.boundaries[block - self.first] = IndexBoundary::Known(node);
    }

    fn iter(&self) -> impl Iterator<Item = (usize, Option<NodeId>)> {
        let nodes = self.boundaries.iter().map(|boundary| boundary.known());
        (self.first..).zip(nodes)
    }
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

impl CacheState {
    pub(super) fn reserve(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        entries: &[(usize, usize)],
        hints: &Hints,
    ) -> Result<Reservation> {
        let seed = self.index.namespaces.seed(namespace)?;
        self.check_wanted(keys.len(), entries)?;
        let Some(last) = entries.iter().map(|&(_, block)| block).max() else {
            return Ok(Reservation::default());
        };
        let keys = &keys[..=last];
        let chained = self.index.roles().attention.is_some();
        let tail = is_tail_at(keys, last);
        // The first block that has one of the entries, or one that a resumption needs beside its page.
        let seen = self.index.roles().seen_from(last, tail);
        let wanted = entries.iter().map(|&(_, block)| block);
        let first = wanted.fold(seen, usize::min);
        let from_start = first == 0;
        let Start {
            node,
            first,
            prefix,
        } = match first {
            1.. if chained && !hints.keep() => self.start(namespace, &keys[..first], entries),
            _ if chained => Start::AT_ONCE,
            _ => Start {
                first,
                ..Start::AT_ONCE
            },
        };
        let path = PrefixPath {
            first,
            boundaries: self.index.path(namespace, keys, node, first)?,
        };
        // Nothing fails from here on.
        if from_start {
            let known = path.iter().map(|(_, node)| node);
            self.reconsider(&known.collect::<Vec<_>>());
        }
        self.prefix_pins.pin(prefix);
        let mut skipped = Skipped::default();
        let (mut wanted, mut placed) = self.sort_out(&path, entries, &mut skipped);
        placed.extend(self.chain(&path, tail));
        if let (Some(pin), Some(class)) = (prefix, self.index.roles().attention) {
            let block = pin.block;
            placed.push((Wanted { block, class }, pin.page));
        }
        placed.sort_unstable_by_key(|&(_, id)| id);
        placed.dedup();
        self.pin(&placed.iter().map(|&(_, id)| id).collect::<Vec<_>>());

        // Making room may take the last boundary of a namespace that nobody holds.
        self.index.namespaces.hold(namespace);
        let (mut written, full) = self.place(namespace, seed, keys, path, &mut wanted);
        self.index.namespaces.let_go(namespace);
        let left_out = wanted.len() - written.len();
        match full {
            Some(Full::Share) => skipped.tenant_share = left_out,
            _ if self.tiers.host.ready() < self.tiers.host.slots() => skipped.not_ready = left_out,
            _ => skipped.no_room = left_out,
        }
        self.classes.begin_writing(written.len());
        let mut all = Vec::with_capacity(placed.len() + written.len());
        all.extend(placed.iter().chain(&written).rev());
        // The order of writing reversed, so that an entry comes before the page that it hangs from.
        let roles = self.index.roles();
        sort(&mut all, |&(at, _)| Reverse(write_order(roles, at)));
        sort(&mut written, |&(at, _)| write_order(roles, at));
        let entries: Vec<EntryId> = all.iter().map(|&(_, id)| id).collect();
        self.pass_hints(&entries, hints);
        if hints.retain > 0 {
            self.vouch(seed, &keys[first..]);
        }
        Ok(Reservation {
            written,
            entries: Vec::new(),
            pinned: PinSet { entries, prefix },
            skipped,
        })
    }

    /// The point from which to look at a prefix. `keys` are those before all entries that are wanted, or needed with
    /// these. Behind a page that the host lacks nothing can be written, and only what comes before counts as used.
    fn start(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        entries: &[(usize, usize)],
    ) -> Start {
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
        entries: &[(usize, usize)],
    ) -> Option<PrefixPin> {
        let page = self.index.roles().attention?;
        let page = self.member(self.index.end(namespace, keys)?, page)?;
        let pin = self.prefix_pin(page, keys.len() - 1);
        let wanted = entries
            .iter()
            .map(|&(class, _)| u64::from(self.classes.slots(class)));
        let needed = pin.slots.saturating_add(wanted.sum());
        let holds = self.protects(HOST, page)
            && self.can_surely_hold(needed)
            && self.share_surely_holds(namespace, needed, pin.tenant);
        holds.then_some(pin)
    }

    fn check_wanted(&self, keys: usize, entries: &[(usize, usize)]) -> Result<()> {
        let classes = self.classes.len();
        for (at, &(class, block)) in entries.iter().enumerate() {
            if class >= classes {
                return Err(not_below(at, "class", classes, "", class));
            }
            if block >= keys {
                let why = ", the number of keys";
                return Err(not_below(at, "block", keys, why, block));
            }
        }
        Ok(())
    }

    /// Separates entries that can be written to the host from those that are there or on their way (returned with their
    /// ids) and from those that could never be reached. Counts the last two.
    fn sort_out(
        &self,
        path: &PrefixPath,
        entries: &[(usize, usize)],
        skipped: &mut Skipped,
    ) -> (Vec<Wanted>, PlacedEntries) {
        let mut wanted = Vec::with_capacity(entries.len());
        let mut present = Vec::new();
        for &(class, block) in entries {
            let at = Wanted { block, class };
            let node = path.at(block).known();
            let cell = node.map(|node| self.index.cell(node, class));
            let Some(id) = cell.and_then(IndexCell::entry) else {
                wanted.push(at);
                continue;
            };
            let entry = self.entries.get(id);
            if entry.places.in_host() {
                skipped.resident += 1;
            } else if entry.slots.is_some() {
                skipped.in_writing += 1;
            } else {
                wanted.push(at); // Only below.
                continue;
            }
            if entry.members.in_host() {
                present.push((at, id));
            }
        }
        sort(&mut wanted, |&at| write_order(self.index.roles(), at));
        let offered = wanted.len();
        wanted.dedup();
        skipped.in_writing += offered - wanted.len();
        if let Some(page) = self.index.roles().attention {
            let there = |&(_, node): &(usize, Option<NodeId>)| {
                node.is_some_and(|node| self.member(node, page).is_some())
            };
            let run = path.iter().take_while(there).count();
            let mut reach = if run == 0 { 0 } else { path.first + run };
            for at in wanted.iter().filter(|at| at.class == page) {
                reach += usize::from(at.block == reach);
            }
            let offered = wanted.len();
            wanted.retain(|at| at.block < reach);
            skipped.orphan = offered - wanted.len();
        }
        (wanted, present)
    }

    /// The entry of a class that is in the host, or on its way there.
    fn member(&self, node: NodeId, class: usize) -> Option<EntryId> {
        let cell = self.index.cell(node, class);
        let there = |id: &EntryId| cell.is_in_host() || self.entries.get(*id).members.in_host();
        cell.entry().filter(there)
    }

    /// The entries of this path that a resumption at its end needs, as far as the host has them or will have them.
    fn chain(&self, path: &PrefixPath, tail: bool) -> PlacedEntries {
        let roles = self.index.roles();
        let last = path.first + path.boundaries.len() - 1;
        let mut chain = Vec::new();
        for (block, node) in path.iter() {
            let Some(node) = node else { continue };
            let windows = roles.windows_over(block, last, tail);
            for class in roles.attention.into_iter().chain(windows) {
                let entry = self.member(node, class);
                chain.extend(entry.map(|id| (Wanted { block, class }, id)));
            }
        }
        chain
    }

    /// Gives room to entries in order of use, and makes them known as in writing. Returns why it ended early.
    fn place(
        &mut self,
        namespace: NamespaceId,
        seed: u64,
        keys: &[PrefixKey],
        mut path: PrefixPath,
        wanted: &mut [Wanted],
    ) -> (PlacedEntries, Option<Full>) {
        let roles = self.index.roles().clone();
        let mut written = Vec::with_capacity(wanted.len());
        let tail = is_tail_at(keys, keys.len() - 1).then(|| keys.len() - 1);
        for unit in units(&roles, wanted, tail) {
            let slots = |at: &Wanted| u64::from(self.classes.slots(at.class));
            let needed = unit.iter().map(slots).sum();
            if let Err(full) = self.make_room_for(namespace, needed) {
                return (written, Some(full));
            }
            for &at in unit {
                // Without an attention class, making room may have dropped a boundary of this very
                // prefix; with one, all of them are pinned and the one before is there by now.
                let before = at
                    .block
                    .checked_sub(1)
                    .filter(|_| roles.attention.is_some());
                let parent = before.and_then(|block| path.at(block).known());
                let key = &keys[at.block];
                let node = match path.at(at.block) {
                    IndexBoundary::Unknown(hash) => self.index.add_hashed(
                        parent,
                        at.block,
                        namespace,
                        key,
                        hash,
                        &mut self.announced,
                    ),
                    IndexBoundary::Known(_) => self.known_or_new(parent, at.block, namespace, key),
                };
                path.set(at.block, node);
                let id = match self.index.cell(node, at.class).entry() {
                    Some(id) => id, // Only below.
                    None => self.introduce(node, at.class),
                };
                self.enter_host(id, node, (at.block, boundary_name(seed, key)));
                written.push((at, id));
            }
        }
        (written, None)
    }

    fn known_or_new(
        &mut self,
        parent: Option<NodeId>,
        block: usize,
        namespace: NamespaceId,
        key: &PrefixKey,
    ) -> NodeId {
        let known = self.index.child(parent, block, namespace, key);
        known.unwrap_or_else(|| {
            self.index
                .add(parent, block, namespace, key, &mut self.announced)
        })
    }
}
