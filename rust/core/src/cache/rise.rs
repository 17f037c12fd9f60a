//! What a hit stands on and the host lacks comes up in portions, between which the lock is free.
//!
//! A batch holds what the host has of it from the beginning, and what was begun. What is left to begin may leave in
//! between, so it is looked up again. Nothing of this waits for room: it ends where there is none.

use super::asked::PORTION;
use super::copies::{Direction, Held};
use super::state::State;
use crate::ids::{EntryId, NamespaceId, PrefixKey};
use crate::slot::Places;

/// Reads into the host that are begun one portion after another.
#[derive(Debug)]
pub(super) struct Rise {
    namespace: NamespaceId,
    /// All that the hit stands on, with its block: the deepest first.
    pub(super) used: Vec<(usize, EntryId)>,
    /// Block and class of what the host lacks of it: shallow first.
    missing: Vec<(usize, usize, EntryId)>,
    /// How many of these were begun.
    begun: usize,
    /// Whether others have begun to read some.
    under_way: bool,
    /// Holds all that is there or begun, until nobody begins more and all reads have ended; `None` if nothing is missing.
    batch: Option<u32>,
}

impl Rise {
    /// Whether anything is read, or will be.
    pub(super) const fn is_reading(&self) -> bool {
        self.under_way || !self.missing.is_empty()
    }

    /// Whether it has begun to read anything itself.
    pub(super) const fn has_begun(&self) -> bool {
        self.begun > 0
    }
}

/// Why reads can't begin.
pub(super) enum Obstacle {
    /// The engine writes an entry at this moment, or the slots of one are not free yet.
    InTheWay,
    /// There is no room for the rest of what others read.
    UnderWay,
    /// There is only so much room for all that the hit stands on.
    NoRoom {
        room: u64,
        used: Vec<(usize, EntryId)>,
    },
}

/// What became of a portion. Without room, and where something is lost, the batch ends.
pub(super) enum Step {
    More,
    /// All were begun: the batch goes on until [`end_rise`](State::end_rise).
    Done,
    NoRoom,
    Lost,
}

impl State {
    /// Whether an entry can't be read into the host: the engine writes it, or its slots are not free yet.
    pub(super) fn is_in_the_way(&self, id: EntryId) -> bool {
        let entry = self.entries.get(id);
        let read = entry.members.in_host() && !entry.copying.is_empty();
        entry.slots.is_some() && !entry.places.in_host() && !read
    }

    /// Prepares to read into the host what it lacks of the entries `used`, the deepest first, if there is room for it
    /// and `margin` slots besides. Reads begin with [`rise_on`](Self::rise_on).
    pub(super) fn rise(
        &mut self,
        namespace: NamespaceId,
        used: Vec<(usize, EntryId)>,
        margin: u64,
    ) -> Result<Rise, Obstacle> {
        let mut missing = Vec::new();
        let (mut needed, mut under_way) = (0, false);
        for &(block, id) in used.iter().rev() {
            if self.is_in_the_way(id) {
                return Err(Obstacle::InTheWay);
            }
            let entry = self.entries.get(id);
            if entry.slots.is_none() {
                needed += u64::from(self.classes[entry.class].slots);
                missing.push((block, entry.class, id));
            } else {
                under_way |= !entry.places.in_host();
            }
        }
        let mut batch = None;
        if !missing.is_empty() {
            let in_host = |id: &EntryId| self.entries.get(*id).members.in_host();
            let there = used.iter().map(|&(_, id)| id).filter(in_host);
            let there: Vec<EntryId> = there.collect();
            self.hold(&there);
            let room = self.obtainable(namespace, needed + margin);
            if needed + margin > room || self.can_make_room_for(namespace, needed).is_err() {
                self.release(&there);
                return Err(if under_way {
                    Obstacle::UnderWay
                } else {
                    Obstacle::NoRoom { room, used }
                });
            }
            batch = Some(self.copies.open(Held {
                entries: there,
                tip: None,
            }));
        }
        Ok(Rise {
            namespace,
            used,
            missing,
            begun: 0,
            under_way,
            batch,
        })
    }

    /// Begins the next portion of reads. `keys`: of the prompt.
    pub(super) fn rise_on(&mut self, rise: &mut Rise, keys: &[PrefixKey]) -> Step {
        let Some(batch) = rise.batch else {
            return Step::Done;
        };
        let rest = &rise.missing[rise.begun..];
        let portion = &rest[..rest.len().min(PORTION)];
        let is_there = |&(block, class, id): &(usize, usize, EntryId)| {
            let node = self.index.at(rise.namespace, keys, block);
            let cell = node.map(|node| self.index.cell(node, class));
            let whole = cell.filter(|cell| cell.is_whole());
            whole.and_then(|cell| cell.entry()) == Some(id) && !self.is_in_the_way(id)
        };
        if !portion.iter().all(is_there) {
            self.end_rise(rise);
            return Step::Lost;
        }
        let ids = portion.iter().map(|&(_, _, id)| id);
        let (there, lacking): (Vec<EntryId>, Vec<EntryId>) =
            ids.partition(|&id| self.entries.get(id).members.in_host());
        self.hold(&there);
        let size = |&id: &EntryId| u64::from(self.classes[self.entries.get(id).class].slots);
        let needed = lacking.iter().map(size).sum();
        if self.make_room_for(rise.namespace, needed).is_err() {
            self.release(&there);
            self.end_rise(rise);
            return Step::NoRoom;
        }
        for id in lacking {
            self.read_from_below(id, batch);
        }
        let deepest_first = portion.iter().rev().map(|&(_, _, id)| id);
        self.copies.hold_deeper(batch, deepest_first);
        rise.begun += portion.len();
        if rise.begun < rise.missing.len() {
            Step::More
        } else {
            Step::Done
        }
    }

    /// Begins no more: what was begun is held until it is there.
    pub(super) fn end_rise(&mut self, rise: &Rise) {
        if let Some(batch) = rise.batch {
            self.end_batch(batch);
        }
    }

    /// Starts to read an entry that is only below; room for it was made.
    fn read_from_below(&mut self, id: EntryId, batch: u32) {
        let entry = self.entries.get(id);
        let class = entry.class;
        let source = entry.places.tiers().next();
        let (Some(node), Some(tier)) = (entry.home, source) else {
            unreachable!("an entry that a hit stands on is known and whole somewhere");
        };
        self.enter_host(id, node, self.index.boundary(node));
        let entry = self.entries.get_mut(id);
        entry.copying = entry.copying.with(Places::of(tier));
        let copy = self.copies.start(id, tier, Direction::Up, batch);
        let key = self.index.key(node, class);
        let slots = self.slots(id);
        let size = self.classes[class].slots;
        let kept = self.kept.has(id, tier);
        let level = &mut self.below[tier - 1];
        if !kept {
            level.tier.room_mut().hold(id, size);
        }
        level.tier.read(copy, &key, &slots);
    }
}
