//! Lookups, and the entries that a read lease pins.

use super::discover::Discovery;
use super::entry::LeaseEntry;
use super::prefix_pins::PinSet;
use super::queries::PORTION;
use super::state::CacheState;
use crate::error::Result;
use crate::ids::{EntryId, NamespaceId, PrefixKey};
use crate::prefix::{Hit, IndexCell};
use crate::slot::HOST;

/// The entries that a read lease loads, and those that it pins for that.
pub(super) struct ReadSet {
    pub(super) blocks: usize,
    /// The entries to load, each with its block: shallow first.
    pub(super) loads: Vec<(usize, EntryId)>,
    /// The first of these, as far as they were [described](CacheState::describe_more).
    pub(super) entries: Vec<LeaseEntry>,
    /// Everything that the hit needs.
    pub(super) pinned: PinSet,
}

/// How many of the leading blocks have a page. A page is there only with those before it, and most often all are there.
fn leading(blocks: usize, has: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, blocks + 1);
    let mut middle = blocks;
    while low + 1 < high {
        if has(middle) {
            low = middle;
        } else {
            high = middle;
        }
        middle = low.midpoint(high);
    }
    low
}

impl CacheState {
    /// The joint hit; `None` if tiers below are to be asked more first, in the next call.
    pub(super) fn lookup(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        discovery: &mut Discovery,
    ) -> Result<Option<Hit>> {
        let discovered = self.discover(namespace, keys, discovery)?;
        let mut hit = discovered.hit;
        hit.asking = discovered.asking && hit.blocks < keys.len();
        if self.classes.is_writing() && hit.blocks < keys.len() {
            let known = |cell: IndexCell| cell.entry().is_some();
            let coming = self.index.joint_hit(namespace, keys, known, |_| ());
            hit.coming = coming.blocks;
        }
        Ok(discovery.done.then_some(hit))
    }

    /// Pins what a load of the host's joint hit needs; `None` if the hit is no deeper than `first`.
    pub(super) fn acquire(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<Option<ReadSet>> {
        self.index.namespaces.check(namespace)?;
        let mut path = Vec::new();
        let (index, walked) = (&self.index, |node| path.push(node));
        let hit = index.joint_hit(namespace, keys, IndexCell::is_in_host, walked);
        if hit.blocks <= first {
            return Ok(None);
        }
        let needed = self.needed_for(&path[..hit.blocks]);
        let loads = needed.iter().rev().filter(|&&(block, _)| block >= first);
        let loads = loads.copied().collect();
        let needed: Vec<EntryId> = needed.into_iter().map(|(_, id)| id).collect();
        self.pin(&needed);
        self.touch_below(&needed);
        let pinned = PinSet::entries(needed);
        Ok(Some(self.read_set(hit.blocks, loads, pinned)))
    }

    /// The entries of a read lease of so many blocks. A first portion of them is described.
    pub(super) fn read_set(
        &self,
        blocks: usize,
        loads: Vec<(usize, EntryId)>,
        pinned: PinSet,
    ) -> ReadSet {
        let mut read = ReadSet {
            blocks,
            loads,
            entries: Vec::new(),
            pinned,
        };
        self.describe_more(&mut read);
        read
    }

    /// Describes a portion of the entries to load. The slots and checksums of pinned entries stay the same, whatever
    /// tiers the entries leave.
    pub(super) fn describe_more(&self, read: &mut ReadSet) {
        for &(block, id) in read.loads.iter().skip(read.entries.len()).take(PORTION) {
            let checksums = self.entries.checksums(id);
            read.entries.push(LeaseEntry {
                class_index: self.entries.get(id).class,
                block_index: block,
                slots: self.slots(id),
                checksums: checksums.map(<[u64]>::to_vec).unwrap_or_default(),
            });
        }
    }

    /// The joint hit over all tiers, as far as it is known.
    pub(super) fn hit_anywhere(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Hit {
        self.index
            .joint_hit(namespace, keys, IndexCell::is_whole, |_| ())
    }

    /// How many leading blocks have their page in a tier, or on its way there.
    pub(super) fn pages_in(
        &self,
        tier: usize,
        namespace: NamespaceId,
        keys: &[PrefixKey],
    ) -> usize {
        let Some(class) = self.index.roles().attention else {
            return 0;
        };
        let has = |blocks: usize| {
            let node = self.index.end(namespace, &keys[..blocks]);
            let page = node.and_then(|node| self.index.cell(node, class).entry());
            page.is_some_and(|page| self.entries.get(page).members.has(tier))
        };
        leading(keys.len(), has)
    }

    /// The last block from `first` on of which the host has the whole page, if the blocks before it need not be looked
    /// at; otherwise `first`.
    pub(super) fn unwritten(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<usize> {
        self.index.namespaces.check(namespace)?;
        let roles = self.index.roles();
        // Windows leave holes.
        let skips = roles.windows.is_empty();
        let Some(page) = roles.attention.filter(|_| skips) else {
            return Ok(first);
        };
        // A page is in the host only with those before it, whole or in writing.
        let has = |block: usize| {
            let node = self.index.end(namespace, &keys[..=block])?;
            let cell = self.index.cell(node, page);
            cell.entry().filter(|_| cell.is_in_host())
        };
        let (mut low, mut high) = (first, keys.len());
        if low >= high || has(low).is_none() {
            return Ok(first);
        }
        let mut middle = high - 1; // Most often the host has all of them, or none.
        while low + 1 < high {
            match has(middle) {
                Some(_) => low = middle,
                None => high = middle,
            }
            middle = low.midpoint(high);
        }
        let protected = has(low).is_some_and(|id| self.tiers.room(HOST).protects(id));
        Ok(if protected { low } else { first })
    }
}
