//! The waves of a restore, one after another: what a wave reads, and when it can be loaded.

use super::super::lookup::ReadSet;
use super::super::prefix_pins::PinSet;
use super::super::queries::PORTION;
use super::super::state::CacheState;
use super::super::tier_pins::TierPin;
use super::promotion::{Obstacle, PromotionStep};
use super::task::{LocatedEntry, RestoreProgress, RestoreTask, Wave};
use crate::ids::EntryId;
use crate::prefix::IndexCell;
use crate::slot::HOST;

/// A wave of transient entries takes at most one in so many of the slots that a prompt may have, if that is enough for
/// one entry. While a restore goes in waves, first waves leave as much free for those that come later.
const PART: u64 = 4;

/// The outcome of beginning the next portion of a wave.
enum WaveStep {
    /// The whole wave has begun, or no wave is left.
    All,
    /// There is more to begin.
    More,
    NoRoom,
}

/// Something that a restore needs is gone, or has other bytes than were published.
struct Broken;

impl CacheState {
    /// Advances a restore and returns how far it has come; `None` if there is more to begin first.
    pub(super) fn advance(&mut self, task: &mut RestoreTask) -> Option<RestoreProgress> {
        self.poll();
        if task.failed {
            return Some(RestoreProgress::Failed);
        }
        let is_done = task.wave.is_none() && task.next == task.target.needs.len();
        if self.index.is_clearing() && !is_done {
            return Some(self.fail(task)); // Nothing of before a reset is found from its beginning on.
        }
        match self.begin_more(task) {
            Ok(WaveStep::All) => {}
            Ok(WaveStep::More) => return None,
            Ok(WaveStep::NoRoom) => return Some(RestoreProgress::Queued),
            Err(Broken) => return Some(self.fail(task)),
        }
        let Some(wave) = &task.wave else {
            return Some(RestoreProgress::Done);
        };
        Some(match self.is_ready(wave) {
            Ok(true) => RestoreProgress::Ready,
            Ok(false) => RestoreProgress::Waiting,
            Err(Broken) => self.fail(task),
        })
    }

    /// Hands out the wave that is ready; `None` if there is more to begin first.
    pub(super) fn take_wave(&mut self, task: &mut RestoreTask) -> Option<Option<(usize, ReadSet)>> {
        if self.advance(task)? != RestoreProgress::Ready {
            return Some(None);
        }
        let Some(wave) = task.wave.take() else {
            return Some(None);
        };
        task.started = true;
        self.restoring.stats.waves += 1;
        for &(id, _) in &wave.transients {
            self.restoring.transients.forget(id);
        }
        let blocks = |entry: Option<&(usize, EntryId)>| entry.map_or(0, |&(block, _)| block);
        let (first, last) = (blocks(wave.loads.first()), blocks(wave.loads.last()));
        let hold = self.read_set(last + 1, wave.loads, wave.pinned);
        Some(Some((first, hold)))
    }

    /// Gives up a wave that nobody has loaded.
    pub(super) fn drop_wave(&mut self, wave: Wave) {
        for &(id, _) in &wave.transients {
            self.restoring.transients.forget(id);
        }
        self.unpin_all(wave.pinned);
    }

    fn fail(&mut self, task: &mut RestoreTask) -> RestoreProgress {
        if let Some(wave) = task.wave.take() {
            self.drop_wave(wave);
        }
        task.failed = true;
        self.restoring.stats.failed += 1;
        RestoreProgress::Failed
    }

    /// Whether a wave can be loaded. A wave is not given up while entries that lookups see are still being read for it:
    /// bytes that are computed instead could not be stored in their place.
    fn is_ready(&self, wave: &Wave) -> Result<bool, Broken> {
        let (mut ready, mut broken, mut reading) = (true, false, false);
        for &(id, source) in &wave.transients {
            let whole = self.restoring.transients.is_whole(id);
            broken |= whole.is_none() || !self.restoring.pins.lasts(&source);
            ready &= whole == Some(true);
        }
        for &id in &wave.members {
            let entry = self.entries.get(id);
            let whole = entry.places.in_host();
            broken |= !entry.members.in_host();
            ready &= whole;
            reading |= !whole && !entry.copying.is_empty();
        }
        if broken && !reading {
            return Err(Broken);
        }
        Ok(ready && !broken)
    }

    /// Goes on with a wave, or finds room for the next one and starts its first reads.
    fn begin_more(&mut self, task: &mut RestoreTask) -> Result<WaveStep, Broken> {
        let now = self.signs_of_room();
        let begin = match &task.wave {
            Some(wave) if wave.rest.is_empty() => return Ok(WaveStep::All),
            Some(_) => self.read_on(task)?,
            None if task.next == task.target.needs.len() => return Ok(WaveStep::All),
            None if task.promotion.is_none() && task.no_room == Some(now) => {
                return Ok(WaveStep::NoRoom);
            }
            None if task.target.whole => self.begin_whole(task)?,
            None => self.begin_part(task)?,
        };
        task.no_room = matches!(begin, WaveStep::NoRoom).then_some(now);
        if matches!(begin, WaveStep::All) {
            // The reads may have ended already.
            self.poll();
        }
        Ok(begin)
    }

    /// Numbers that change whenever there may be more room, or less is needed.
    fn signs_of_room(&self) -> [u64; 6] {
        let host = self.tiers.room(HOST).usage();
        let copies = self.copies.started();
        let waves = self.restoring.stats.in_waves;
        let (free, evictable) = (host.free, host.evictable);
        [free, evictable, host.entries, host.evicted, copies, waves]
    }

    /// Begins to read all that is needed, as one wave that every lookup sees.
    fn begin_whole(&mut self, task: &mut RestoreTask) -> Result<WaveStep, Broken> {
        let mut promotion = match task.promotion.take() {
            Some(promotion) => promotion,
            None => {
                let path = self
                    .index
                    .path(task.target.namespace, &task.target.keys, None, 0);
                let path = path.map_err(|_| Broken)?;
                let needed = self.needed_for(&path);
                if needed.len() != task.target.needs.len() {
                    return Err(Broken);
                }
                let margin = if self.restoring.stats.in_waves > 0 {
                    self.most_slots() / PART
                } else {
                    0
                };
                match self.begin_promotion(task.target.namespace, needed, margin) {
                    Ok(promotion) => promotion,
                    Err(Obstacle::NoRoom { .. }) => return Ok(WaveStep::NoRoom),
                    Err(Obstacle::InTheWay | Obstacle::UnderWay) => return Err(Broken),
                }
            }
        };
        match self.promote_on(&mut promotion, &task.target.keys) {
            PromotionStep::More => {
                task.promotion = Some(promotion);
                return Ok(WaveStep::More);
            }
            PromotionStep::NoRoom => return Ok(WaveStep::NoRoom),
            PromotionStep::Lost => return Err(Broken),
            PromotionStep::Done => {}
        }
        let entries: Vec<EntryId> = promotion.needed.iter().map(|&(_, id)| id).collect();
        let whole = entries
            .iter()
            .all(|&id| self.entries.get(id).members.in_host());
        if whole {
            self.pin(&entries);
        }
        self.end_promotion(&promotion);
        if !whole {
            return Err(Broken);
        }
        task.next = task.target.needs.len();
        let loads = promotion.needed.into_iter().rev();
        task.wave = Some(Wave {
            rest: Vec::new(),
            loads: loads
                .filter(|&(block, _)| block >= task.target.first)
                .collect(),
            transients: Vec::new(),
            members: entries.clone(),
            pinned: PinSet::entries(entries),
        });
        Ok(WaveStep::All)
    }

    /// Begins a wave of as many needed entries as a part of the host holds.
    fn begin_part(&mut self, task: &mut RestoreTask) -> Result<WaveStep, Broken> {
        let most = self.most_slots() / PART;
        let (mut chosen, mut cost) = (Vec::<LocatedEntry>::new(), 0);
        for &at in &task.target.needs[task.next..] {
            let last = chosen.last().copied();
            let located = self.locate(task.target.namespace, &task.target.keys, last, at);
            let located = located.ok_or(Broken)?;
            let size = self.takes(located.cell, located.class);
            if cost > 0 && cost + size > most {
                break;
            }
            cost += size;
            chosen.push(located);
        }
        let pinned = self.pin_chosen(&chosen);
        let margin = if task.started { 0 } else { most };
        let room = self.obtainable(task.target.namespace, cost + margin);
        while cost > 0 && cost + margin.min(self.spare(cost)) > room {
            let Some(last) = chosen.pop() else {
                break;
            };
            cost -= self.takes(last.cell, last.class);
        }
        if chosen.is_empty() || self.can_make_room_for(task.target.namespace, cost).is_err() {
            self.unpin_all(pinned);
            return Ok(WaveStep::NoRoom);
        }
        task.next += chosen.len();
        chosen.reverse();
        task.wave = Some(Wave {
            loads: Vec::with_capacity(chosen.len()),
            rest: chosen,
            transients: Vec::new(),
            members: Vec::new(),
            pinned,
        });
        self.read_on(task)
    }

    /// Starts the next portion of a wave's reads. Where others have taken the room, the wave ends.
    fn read_on(&mut self, task: &mut RestoreTask) -> Result<WaveStep, Broken> {
        let Some(mut wave) = task.wave.take() else {
            return Ok(WaveStep::All);
        };
        let portion = wave.rest.len().saturating_sub(PORTION);
        let portion = wave.rest.split_off(portion);
        let cost = portion.iter().map(|it| self.takes(it.cell, it.class)).sum();
        if self.make_room_for(task.target.namespace, cost).is_err() {
            task.next -= portion.len() + wave.rest.len();
            if wave.loads.is_empty() {
                self.drop_wave(wave);
                return Ok(WaveStep::NoRoom);
            }
            wave.rest = Vec::new();
            task.wave = Some(wave);
            return Ok(WaveStep::All);
        }
        let mut last = None;
        for LocatedEntry {
            block,
            class,
            cell,
            mut id,
            ..
        } in portion.into_iter().rev()
        {
            if cell.is_in_host() {
                wave.members.push(id);
            } else {
                last = self.locate(
                    task.target.namespace,
                    &task.target.keys,
                    last,
                    (block, class),
                );
                let node = last.filter(|there| there.id == id).map(|there| there.node);
                let Some((source, node)) = self.own_pin(task, id).zip(node) else {
                    self.drop_wave(wave);
                    return Err(Broken);
                };
                let key = self.index.key(node, class);
                id = self.read_transient(task.target.namespace, source, &key);
                wave.transients.push((id, source));
                wave.pinned.entries.push(id);
            }
            wave.loads.push((block, id));
        }
        let begin = match wave.rest.is_empty() {
            true => WaveStep::All,
            false => WaveStep::More,
        };
        task.wave = Some(wave);
        Ok(begin)
    }

    /// The restore's own pin of an entry that it reads next, in a tier that has it still. Another restore's pin may end
    /// before this one has read it.
    fn own_pin(&self, task: &mut RestoreTask, id: EntryId) -> Option<TierPin> {
        let is_own = |pin: &&TierPin| pin.id == id;
        task.reading += task.pins[task.reading..]
            .iter()
            .position(|pin| is_own(&pin))?;
        let mut own = task.pins[task.reading..].iter().take_while(is_own);
        own.find(|pin| self.restoring.pins.lasts(pin)).copied()
    }

    /// Pins what the host has of these entries, which are in order, and the pages that they hang from.
    fn pin_chosen(&mut self, chosen: &[LocatedEntry]) -> PinSet {
        let attention = self.index.roles().attention;
        let mut pinned = PinSet::default();
        let mut last = None;
        for of_block in chosen.chunk_by(|a, b| a.block == b.block).rev() {
            let in_host = of_block.iter().rev().filter(|it| it.cell.is_in_host());
            let others = in_host.filter(|it| Some(it.class) != attention);
            let before = pinned.entries.len();
            pinned.entries.extend(others.map(|it| it.id));
            let any = pinned.entries.len() > before;
            let page = of_block
                .iter()
                .find(|it| Some(it.class) == attention && it.cell.is_in_host());
            let page = page.or(of_block.first().filter(|_| any));
            let page = page.zip(attention);
            let page = page.and_then(|(at, class)| self.index.cell(at.node, class).entry());
            if let Some(page) = page {
                pinned.entries.push(page);
                last = Some((page, of_block[0].block));
            }
        }
        if let Some((page, block)) = last {
            self.add_prefix(&mut pinned, page, block);
        }
        self.pin_all(&pinned);
        pinned
    }

    /// Slots that an entry needs to be loaded.
    fn takes(&self, cell: IndexCell, class: usize) -> u64 {
        if cell.is_in_host() {
            0
        } else {
            self.classes.slots(class).into()
        }
    }

    /// Slots that would be left if nothing but so many were taken.
    fn spare(&self, cost: u64) -> u64 {
        self.most_slots().saturating_sub(cost)
    }
}
