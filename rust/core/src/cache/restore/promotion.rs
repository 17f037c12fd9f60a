//! Promotions: entries that a hit needs and only tiers below have are read into the host, where every lookup sees them.
//!
//! They are read in portions, between which the lock is free. From the beginning, a batch pins those that the host has,
//! and those whose reads have begun. In between the others may leave, and calls that drop entries take also those that
//! are pinned, so all are looked up again. A promotion never waits for room: it ends where there is none.

use hashbrown::HashSet;

use super::super::copies::CopyDirection;
use super::super::discover::Discovery;
use super::super::prefix_pins::PinSet;
use super::super::queries::PORTION;
use super::super::state::CacheState;
use crate::error;
use crate::ids::{EntryId, NamespaceId, PrefixKey};
use crate::prefix::IndexCell;
use crate::slot::Places;

/// Reads into the host that are begun one portion after another.
#[derive(Debug)]
pub(crate) struct Promotion {
    namespace: NamespaceId,
    /// All entries that the hit needs, each with its block: the deepest first.
    pub(super) needed: Vec<(usize, EntryId)>,
    /// Block, class and id of each needed entry that the host lacks: shallow first.
    missing: Vec<(usize, usize, EntryId)>,
    /// How many of these were begun.
    begun: usize,
    /// Whether others have begun to read some of them.
    under_way: bool,
    /// The batch that pins all that is there or begun, until no more reads begin and all have ended; `None` if nothing
    /// is missing.
    batch: Option<u32>,
}

impl Promotion {
    /// Whether anything is read, or will be.
    pub(super) const fn is_reading(&self) -> bool {
        self.under_way || !self.missing.is_empty()
    }

    /// Whether this promotion has begun any reads itself.
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
    /// There is only so much room for all that the hit needs.
    NoRoom {
        room: u64,
        needed: Vec<(usize, EntryId)>,
    },
}

/// The outcome of a portion of a promotion. Without room, and where something is lost, the batch ends.
pub(super) enum PromotionStep {
    More,
    /// All were begun: the batch goes on until [`end_promotion`](CacheState::end_promotion).
    Done,
    NoRoom,
    Lost,
}

impl CacheState {
    /// Starts to read what the joint hit needs and the host lacks, in portions; without room for that, what a shallower
    /// boundary needs. Returns whether reads are under way; `None` if there is more to ask or to read first: then
    /// `promotion` has what was begun.
    pub(crate) fn promote(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
        discovery: &mut Discovery,
        promotion: &mut Option<Promotion>,
    ) -> error::Result<Option<bool>> {
        if let Some(begun) = promotion.take() {
            return Ok(self.promote_begun(begun, keys, promotion));
        }
        if !self.discover_on(namespace, keys, discovery)? {
            return Ok(None);
        }
        if !self.tiers.has_lower() {
            return Ok(Some(false));
        }
        // The reads for a boundary reach back to the start of the prompt.
        let most = self.affordable_blocks(namespace, keys, first, 0);
        let mut limit = most;
        loop {
            let mut path = Vec::new();
            let hit =
                self.index
                    .joint_hit(namespace, &keys[..limit], IndexCell::is_whole, |node| {
                        path.push(node);
                    });
            if hit.blocks <= first {
                return Ok(Some(false));
            }
            let needed = self.needed_for(&path[..hit.blocks]);
            match self.begin_promotion(namespace, needed, 0) {
                Ok(begun) => {
                    let under_way = begun.is_reading();
                    self.restoring.stats.shallower += u64::from(under_way && limit < most);
                    return Ok(match under_way {
                        true if keys.len() > PORTION => {
                            *promotion = Some(begun);
                            None
                        }
                        true => self.promote_begun(begun, keys, promotion),
                        false => Some(false),
                    });
                }
                Err(Obstacle::InTheWay) => return Ok(Some(false)),
                Err(Obstacle::UnderWay) => {
                    self.restoring.stats.shallower += u64::from(limit < most);
                    return Ok(Some(true));
                }
                Err(Obstacle::NoRoom { room, needed }) => {
                    limit = self.reach(&needed, room).min(hit.blocks - 1);
                }
            }
        }
    }

    fn promote_begun(
        &mut self,
        mut begun: Promotion,
        keys: &[PrefixKey],
        promotion: &mut Option<Promotion>,
    ) -> Option<bool> {
        match self.promote_on(&mut begun, keys) {
            PromotionStep::More => {
                *promotion = Some(begun);
                None
            }
            PromotionStep::Done => {
                self.end_promotion(&begun);
                Some(true)
            }
            // Reads that have begun go on.
            PromotionStep::NoRoom | PromotionStep::Lost => Some(begun.has_begun()),
        }
    }

    /// How many leading blocks have all the pages that every later block needs, or would have with so much room.
    fn reach(&self, needed: &[(usize, EntryId)], mut room: u64) -> usize {
        let attention = self.index.roles().attention;
        let mut reach = usize::MAX;
        for &(block, id) in needed.iter().rev() {
            let entry = self.entries.get(id);
            if Some(entry.class) != attention || entry.slots.is_some() {
                continue;
            }
            let size = u64::from(self.classes.slots(entry.class));
            if size > room {
                reach = block;
                break;
            }
            room -= size;
        }
        reach
    }

    /// Whether an entry can't be read into the host: the engine writes it, or its slots are not free yet.
    pub(super) fn is_in_the_way(&self, id: EntryId) -> bool {
        let entry = self.entries.get(id);
        let read = entry.members.in_host() && !entry.copying.is_empty();
        entry.slots.is_some() && !entry.places.in_host() && !read
    }

    /// Prepares to read into the host what it lacks of the entries `needed`, the deepest first, if there is room for it
    /// and `margin` slots besides. Reads begin with [`promote_on`](Self::promote_on).
    pub(super) fn begin_promotion(
        &mut self,
        namespace: NamespaceId,
        needed: Vec<(usize, EntryId)>,
        margin: u64,
    ) -> Result<Promotion, Obstacle> {
        let mut missing = Vec::new();
        let (mut slots, mut under_way) = (0, false);
        for &(block, id) in needed.iter().rev() {
            if self.is_in_the_way(id) {
                return Err(Obstacle::InTheWay);
            }
            let entry = self.entries.get(id);
            if entry.slots.is_none() {
                slots += u64::from(self.classes.slots(entry.class));
                missing.push((block, entry.class, id));
            } else {
                under_way |= !entry.places.in_host();
            }
        }
        let mut batch = None;
        if !missing.is_empty() {
            let in_host = |id: &EntryId| self.entries.get(*id).members.in_host();
            let there = needed.iter().map(|&(_, id)| id).filter(in_host);
            let there: Vec<EntryId> = there.collect();
            self.pin(&there);
            let room = self.obtainable(namespace, slots + margin);
            if slots + margin > room || self.can_make_room_for(namespace, slots).is_err() {
                self.unpin(&there);
                return Err(if under_way {
                    Obstacle::UnderWay
                } else {
                    Obstacle::NoRoom { room, needed }
                });
            }
            batch = Some(self.copies.open(PinSet::entries(there)));
        }
        Ok(Promotion {
            namespace,
            needed,
            missing,
            begun: 0,
            under_way,
            batch,
        })
    }

    /// Begins the next portion of reads. `keys` are the keys of the prompt.
    pub(super) fn promote_on(
        &mut self,
        promotion: &mut Promotion,
        keys: &[PrefixKey],
    ) -> PromotionStep {
        let Some(batch) = promotion.batch else {
            return PromotionStep::Done;
        };
        let rest = &promotion.missing[promotion.begun..];
        let portion = &rest[..rest.len().min(PORTION)];
        let of_portion: HashSet<EntryId> = portion.iter().map(|&(_, _, id)| id).collect();
        // A page that is held may leave the host all the same: then nothing can hang from it there.
        let is_in_host =
            |page: EntryId| of_portion.contains(&page) || self.entries.get(page).members.in_host();
        let is_there = |&(block, class, id): &(usize, usize, EntryId)| {
            let Some(node) = self.index.at(promotion.namespace, keys, block) else {
                return false;
            };
            let cell = self.index.cell(node, class);
            let page = self.index.support(node, class);
            cell.is_whole()
                && cell.entry() == Some(id)
                && !self.is_in_the_way(id)
                && page.is_none_or(is_in_host)
        };
        if !portion.iter().all(is_there) {
            self.end_promotion(promotion);
            return PromotionStep::Lost;
        }
        let ids = portion.iter().map(|&(_, _, id)| id);
        let (there, lacking): (Vec<EntryId>, Vec<EntryId>) =
            ids.partition(|&id| self.entries.get(id).members.in_host());
        self.pin(&there);
        let size = |&id: &EntryId| u64::from(self.size(id));
        let slots = lacking.iter().map(size).sum();
        if self.make_room_for(promotion.namespace, slots).is_err() {
            self.unpin(&there);
            self.end_promotion(promotion);
            return PromotionStep::NoRoom;
        }
        for id in lacking {
            self.read_from_below(id, batch);
        }
        let deepest_first = portion.iter().rev().map(|&(_, _, id)| id);
        self.copies.pin_deeper(batch, deepest_first);
        promotion.begun += portion.len();
        if promotion.begun < promotion.missing.len() {
            PromotionStep::More
        } else {
            PromotionStep::Done
        }
    }

    /// Ends a promotion: entries whose reads have begun are held until the reads end.
    pub(super) fn end_promotion(&mut self, promotion: &Promotion) {
        if let Some(batch) = promotion.batch {
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
        let copy = self.copies.start(id, tier, CopyDirection::Up, batch);
        let key = self.index.key(node, class);
        let slots = self.slots(id);
        let size = self.classes.slots(class);
        let pinned = self.restoring.pins.has(id, tier);
        let lower = self.tiers.lower_mut(tier);
        if !pinned {
            lower.tier.room_mut().hold(id, size);
        }
        lower.tier.read(copy, &key, &slots);
    }
}
