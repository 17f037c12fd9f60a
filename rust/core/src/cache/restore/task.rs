//! Plans a restore, pins what it needs, and ends it.

use super::super::prefix_pins::PinSet;
use super::super::queries::PORTION;
use super::super::state::CacheState;
use super::super::tier_pins::TierPin;
use super::promotion::Promotion;
use crate::error::Result;
use crate::ids::{EntryId, NamespaceId, NodeId, PrefixKey};
use crate::prefix::IndexCell;
use crate::slot::Places;

/// A hit that takes more than this share of the slots goes in waves.
const LARGEST: (u64, u64) = (3, 4);

/// How far a restore has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreProgress {
    /// There is no room for the next wave yet: ask again.
    Queued,
    /// The next wave is being read: ask again.
    Waiting,
    /// The next wave can be loaded: `Restore::take` takes it.
    Ready,
    /// Every wave was taken.
    Done,
    /// Something that is needed is gone or damaged: the restore will never be complete. Waves that were taken are
    /// right, and a new lookup finds what is left.
    Failed,
}

/// Entries of consecutive blocks that come to the host and are loaded together.
#[derive(Debug)]
pub(super) struct Wave {
    /// The entries whose reads are still to begin: the deepest first.
    pub(super) rest: Vec<LocatedEntry>,
    /// The entries to load, each with its block: shallow first.
    pub(super) loads: Vec<(usize, EntryId)>,
    /// The transient entries among them, each with the pin of the entry that it is read from.
    pub(super) transients: Vec<(EntryId, TierPin)>,
    /// The members of the host among them.
    pub(super) members: Vec<EntryId>,
    /// The entries that are pinned in the host until the load ends.
    pub(super) pinned: PinSet,
}

/// An entry that a restore needs, and where the index has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocatedEntry {
    pub(super) block: usize,
    pub(super) class: usize,
    pub(super) node: NodeId,
    pub(super) cell: IndexCell,
    pub(super) id: EntryId,
}

/// The entries that a restore brings, and where to.
#[derive(Debug)]
pub(super) struct RestoreTarget {
    pub(super) namespace: NamespaceId,
    /// Keys of the blocks up to the hit, copied when the lock is free.
    pub(super) keys: Vec<PrefixKey>,
    /// The joint hit.
    pub(super) blocks: usize,
    /// Blocks before this one need no load.
    pub(super) first: usize,
    /// Whether the restore is one wave that every lookup sees.
    pub(super) whole: bool,
    /// Slots that all of what the hit needs takes in the host.
    pub(super) slots: u64,
    /// Block and class of all that the hit needs: shallow first, the checkpoint last.
    pub(super) needs: Vec<(usize, usize)>,
    /// The hit of the host alone, and with one more tier each.
    pub(super) depths: Vec<(String, usize)>,
}

/// The state of a restore: what it has done and has to do.
#[derive(Debug)]
pub(super) struct RestoreTask {
    pub(super) target: RestoreTarget,
    /// How many of the needs are pinned in the tiers below.
    pinned: usize,
    /// Pins in tiers below, in the order of the needs.
    pub(super) pins: Vec<TierPin>,
    /// The first pin that may be one of what is read next.
    pub(super) reading: usize,
    /// How many of the needs need no more waves: those that the engine has, and those that waves were begun for.
    pub(super) next: usize,
    /// The promotion that is being begun for a wave that every lookup sees.
    pub(super) promotion: Option<Promotion>,
    /// The wave that is being read, or ready.
    pub(super) wave: Option<Wave>,
    /// Whether a wave was taken.
    pub(super) started: bool,
    pub(super) failed: bool,
    /// The signs of how much room there was when there was too little.
    pub(super) no_room: Option<[u64; 6]>,
}

impl RestoreTask {
    /// Whether all that the hit needs is pinned.
    pub(super) const fn is_pinned(&self) -> bool {
        self.pinned == self.target.needs.len()
    }
}

impl CacheState {
    /// Plans how the joint hit comes to the engine, if a tier below has to be read for it.
    pub(super) fn plan_restore(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<Option<RestoreTask>> {
        self.index.namespaces.check(namespace)?;
        if !self.tiers.has_lower() {
            return Ok(None);
        }
        let keys = &keys[..self.affordable_blocks(namespace, keys, first, first)];
        let mut path = Vec::new();
        let hit = self
            .index
            .joint_hit(namespace, keys, IndexCell::is_whole, |node| path.push(node));
        if hit.blocks <= first {
            return Ok(None);
        }
        let needed = self.needed_for(&path[..hit.blocks]);
        let mut needs = Vec::with_capacity(needed.len());
        let (mut total, mut lacking, mut hangs, mut free) = (0, false, true, true);
        for &(block, id) in needed.iter().rev() {
            let entry = self.entries.get(id);
            let in_host = entry.places.in_host();
            needs.push((block, entry.class));
            total += u64::from(self.classes.slots(entry.class));
            lacking |= !in_host;
            // The engine needs nothing before `first`, but what the host keeps hangs from there.
            hangs &= block >= first || in_host;
            free &= !self.is_in_the_way(id);
        }
        if !lacking {
            return Ok(None);
        }
        let fits = total * LARGEST.1 <= self.most_slots() * LARGEST.0;
        let whole = hangs && fits && free;
        let task = RestoreTask {
            pinned: 0,
            pins: Vec::new(),
            reading: 0,
            next: needs.partition_point(|&(block, _)| block < first),
            promotion: None,
            wave: None,
            started: false,
            failed: false,
            no_room: None,
            target: RestoreTarget {
                namespace,
                keys: Vec::new(),
                blocks: hit.blocks,
                first,
                whole,
                slots: total,
                needs,
                depths: Vec::with_capacity(self.tiers.below.len() + 1),
            },
        };
        self.index.namespaces.hold(namespace);
        self.restoring.stats.in_waves += u64::from(!whole);
        Ok(Some(task))
    }

    /// Pins the next `portion` of a restore's needs in tiers below. False if one of them has left meanwhile; `None` if
    /// there is more to pin.
    pub(super) fn pin_on(
        &mut self,
        task: &mut RestoreTask,
        keys: &[PrefixKey],
        portion: usize,
    ) -> Option<bool> {
        let mut last = None;
        let needs = task.target.needs.len();
        let end = needs.min(task.pinned.saturating_add(portion));
        for at in task.pinned..end {
            let (block, class) = task.target.needs[at];
            let Some(located) = self.locate(task.target.namespace, keys, last, (block, class))
            else {
                return Some(false);
            };
            last = Some(located);
            self.pin_below(located.id, &mut task.pins);
            task.pinned = at + 1;
        }
        task.is_pinned().then(|| {
            self.restoring.stats.begun += 1;
            true
        })
    }

    /// Finds the next of a restore's depths; `None` if there are more.
    pub(super) fn find_depth(&self, task: &mut RestoreTask) -> Option<()> {
        let target = &mut task.target;
        let tier = target.depths.len();
        let tiers = (0..=tier).fold(Places::NONE, |tiers, it| tiers.with(Places::of(it)));
        let counts = |cell: IndexCell| {
            let id = cell.entry().filter(|_| cell.is_whole());
            id.is_some_and(|id| !self.entries.get(id).places.and(tiers).is_empty())
        };
        let hit = self
            .index
            .joint_hit(target.namespace, &target.keys, counts, |_| ());
        target.depths.push((self.tiers.name(tier), hit.blocks));
        (tier == self.tiers.below.len()).then_some(())
    }

    /// Gives up a portion of what a restore has; `None` if there is more.
    pub(super) fn end_restore(&mut self, task: &mut RestoreTask) -> Option<()> {
        if let Some(promotion) = task.promotion.take() {
            self.end_promotion(&promotion);
        }
        if let Some(wave) = task.wave.take() {
            self.drop_wave(wave);
        }
        let left = task.pins.len().saturating_sub(PORTION);
        for pin in task.pins.drain(left..).rev() {
            self.unpin_below(pin);
        }
        task.pins.is_empty().then(|| {
            self.index.namespaces.let_go(task.target.namespace);
            self.restoring.stats.in_waves -= u64::from(!task.target.whole);
        })
    }

    /// An entry that a restore needs, if its bytes are whole somewhere. `last`: an entry of the same block or the one
    /// before, if one is known to be there.
    pub(super) fn locate(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        last: Option<LocatedEntry>,
        (block, class): (usize, usize),
    ) -> Option<LocatedEntry> {
        let linked = self.index.roles().attention.is_some();
        let node = match last {
            Some(last) if last.block == block => last.node,
            Some(last) if last.block + 1 == block && linked => {
                self.index
                    .child(Some(last.node), block, namespace, &keys[block])?
            }
            _ => self.index.at(namespace, keys, block)?,
        };
        let cell = self.index.cell(node, class);
        let id = cell.entry().filter(|_| cell.is_whole())?;
        Some(LocatedEntry {
            block,
            class,
            node,
            cell,
            id,
        })
    }
}
