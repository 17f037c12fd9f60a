//! The parts of a restore, one after another: what a part reads, and when it can be loaded.

use super::asked::PORTION;
use super::copies::Held;
use super::kept::Keep;
use super::restore::{Course, Progress};
use super::rise::{Obstacle, Step};
use super::state::{ReadHold, State};
use crate::ids::{EntryId, NamespaceId, NodeId, PrefixKey};
use crate::prefix::{Boundary, Cell};
use crate::slot::HOST;

/// A wave that only passes through takes this part of the slots at most that a prompt may have, if they are
/// enough for one entry; and while a restore goes in waves, first waves leave as much free for those that
/// come later.
const PART: u64 = 4;

/// Entries of consecutive blocks that are loaded together.
#[derive(Debug)]
pub(super) struct Wave {
    /// What is still to be begun: the deepest first.
    rest: Vec<Choice>,
    /// What the load reads, with its block: shallow first.
    loads: Vec<(usize, EntryId)>,
    /// Those of them that no lookup sees, and where they come from.
    passing: Vec<(EntryId, Keep)>,
    /// The others: members of the host.
    members: Vec<EntryId>,
    /// What is held until the load ends.
    held: Held,
}

/// An entry that a wave may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    block: usize,
    class: usize,
    node: NodeId,
    cell: Cell,
    pub(super) id: EntryId,
}

/// What became of the next wave.
enum Begin {
    /// There is one, or none is left.
    All,
    /// There is more to begin.
    More,
    NoRoom,
}

impl State {
    /// Brings a restore on and says where it is; `None` if there is more to begin first.
    pub(super) fn advance(&mut self, course: &mut Course) -> Option<Progress> {
        self.poll();
        if course.failed {
            return Some(Progress::Failed);
        }
        match self.begin_more(course) {
            Ok(Begin::All) => {}
            Ok(Begin::More) => return None,
            Ok(Begin::NoRoom) => return Some(Progress::Queued),
            Err(Broken) => return Some(self.fail(course)),
        }
        let Some(wave) = &course.wave else {
            return Some(Progress::Done);
        };
        Some(match self.is_ready(wave) {
            Ok(true) => Progress::Ready,
            Ok(false) => Progress::Waiting,
            Err(Broken) => self.fail(course),
        })
    }

    /// Hands out the wave that is ready; `None` if there is more to begin first.
    pub(super) fn take_wave(&mut self, course: &mut Course) -> Option<Option<(usize, ReadHold)>> {
        if self.advance(course)? != Progress::Ready {
            return Some(None);
        }
        let Some(wave) = course.wave.take() else {
            return Some(None);
        };
        course.started = true;
        self.restores.waves += 1;
        for &(id, _) in &wave.passing {
            self.passing.forget(id);
        }
        let blocks = |entry: Option<&(usize, EntryId)>| entry.map_or(0, |&(block, _)| block);
        let (first, last) = (blocks(wave.loads.first()), blocks(wave.loads.last()));
        let hold = self.read_hold(last + 1, wave.loads, wave.held);
        Some(Some((first, hold)))
    }

    /// Gives a wave up that nobody has loaded.
    pub(super) fn drop_wave(&mut self, wave: Wave) {
        for &(id, _) in &wave.passing {
            self.passing.forget(id);
        }
        self.let_go(wave.held);
    }

    fn fail(&mut self, course: &mut Course) -> Progress {
        if let Some(wave) = course.wave.take() {
            self.drop_wave(wave);
        }
        course.failed = true;
        self.restores.failed += 1;
        Progress::Failed
    }

    /// A wave is not given up while entries that lookups see are still being read for it: what is computed
    /// instead could not be stored in their place.
    fn is_ready(&self, wave: &Wave) -> Result<bool, Broken> {
        let (mut ready, mut broken, mut reading) = (true, false, false);
        for &(id, source) in &wave.passing {
            let whole = self.passing.is_whole(id);
            broken |= whole.is_none() || !self.kept.lasts(&source);
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
    fn begin_more(&mut self, course: &mut Course) -> Result<Begin, Broken> {
        let now = self.signs_of_room();
        let begin = match &course.wave {
            Some(wave) if wave.rest.is_empty() => return Ok(Begin::All),
            Some(_) => self.read_on(course)?,
            None if course.next == course.stands_on.len() => return Ok(Begin::All),
            None if course.rise.is_none() && course.no_room == Some(now) => {
                return Ok(Begin::NoRoom);
            }
            None if course.whole => self.begin_whole(course)?,
            None => self.begin_part(course)?,
        };
        course.no_room = matches!(begin, Begin::NoRoom).then_some(now);
        if matches!(begin, Begin::All) {
            // The reads may have ended already.
            self.poll();
        }
        Ok(begin)
    }

    /// While these stay as they are, there is no more room than before, and no less is needed.
    fn signs_of_room(&self) -> [u64; 6] {
        let host = self.room(HOST).usage();
        let copies = self.copies.started();
        let waves = self.restores.in_waves;
        let (free, evictable) = (host.free, host.evictable);
        [free, evictable, host.entries, host.evicted, copies, waves]
    }

    /// All that is needed, where every lookup sees it.
    fn begin_whole(&mut self, course: &mut Course) -> Result<Begin, Broken> {
        let mut rise = match course.rise.take() {
            Some(rise) => rise,
            None => {
                let path = self.index.path(course.namespace, &course.keys, None, 0);
                let path = path.map_err(|_| Broken)?.into_iter();
                let path: Vec<_> = path.map(Boundary::known).collect();
                let used = self.stands_on(&path);
                if used.len() != course.stands_on.len() {
                    return Err(Broken);
                }
                let margin = if self.restores.in_waves > 0 {
                    self.most_slots() / PART
                } else {
                    0
                };
                match self.rise(course.namespace, used, margin) {
                    Ok(rise) => rise,
                    Err(Obstacle::NoRoom { .. }) => return Ok(Begin::NoRoom),
                    Err(Obstacle::InTheWay | Obstacle::UnderWay) => return Err(Broken),
                }
            }
        };
        match self.rise_on(&mut rise, &course.keys) {
            Step::More => {
                course.rise = Some(rise);
                return Ok(Begin::More);
            }
            Step::NoRoom => return Ok(Begin::NoRoom),
            Step::Lost => return Err(Broken),
            Step::Done => {}
        }
        let held: Vec<EntryId> = rise.used.iter().map(|&(_, id)| id).collect();
        let whole = held
            .iter()
            .all(|&id| self.entries.get(id).members.in_host());
        if whole {
            self.hold(&held);
        }
        self.end_rise(&rise);
        if !whole {
            return Err(Broken);
        }
        course.next = course.stands_on.len();
        let loads = rise.used.into_iter().rev();
        course.wave = Some(Wave {
            rest: Vec::new(),
            loads: loads.filter(|&(block, _)| block >= course.first).collect(),
            passing: Vec::new(),
            members: held.clone(),
            held: Held {
                entries: held,
                tip: None,
            },
        });
        Ok(Begin::All)
    }

    /// As much of what is needed as a part of the host holds.
    fn begin_part(&mut self, course: &mut Course) -> Result<Begin, Broken> {
        let most = self.most_slots() / PART;
        let (mut chosen, mut cost) = (Vec::<Choice>::new(), 0);
        for &at in &course.stands_on[course.next..] {
            let last = chosen.last().copied();
            let choice = self.choice(course.namespace, &course.keys, last, at);
            let choice = choice.ok_or(Broken)?;
            let size = self.takes(choice.cell, choice.class);
            if cost > 0 && cost + size > most {
                break;
            }
            cost += size;
            chosen.push(choice);
        }
        let held = self.hold_chosen(&chosen);
        let margin = if course.started { 0 } else { most };
        let room = self.obtainable(course.namespace, cost + margin);
        while cost > 0 && cost + margin.min(self.spare(cost)) > room {
            let Some(choice) = chosen.pop() else {
                break;
            };
            cost -= self.takes(choice.cell, choice.class);
        }
        if chosen.is_empty() || self.can_make_room_for(course.namespace, cost).is_err() {
            self.let_go(held);
            return Ok(Begin::NoRoom);
        }
        course.next += chosen.len();
        chosen.reverse();
        course.wave = Some(Wave {
            loads: Vec::with_capacity(chosen.len()),
            rest: chosen,
            passing: Vec::new(),
            members: Vec::new(),
            held,
        });
        self.read_on(course)
    }

    /// Starts the next portion of a wave's reads. Where others have taken the room, the wave ends.
    fn read_on(&mut self, course: &mut Course) -> Result<Begin, Broken> {
        let Some(mut wave) = course.wave.take() else {
            return Ok(Begin::All);
        };
        let portion = wave.rest.len().saturating_sub(PORTION);
        let portion = wave.rest.split_off(portion);
        let cost = portion.iter().map(|it| self.takes(it.cell, it.class)).sum();
        if self.make_room_for(course.namespace, cost).is_err() {
            course.next -= portion.len() + wave.rest.len();
            if wave.loads.is_empty() {
                self.drop_wave(wave);
                return Ok(Begin::NoRoom);
            }
            wave.rest = Vec::new();
            course.wave = Some(wave);
            return Ok(Begin::All);
        }
        let mut last = None;
        for Choice {
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
                last = self.choice(course.namespace, &course.keys, last, (block, class));
                let there = last.filter(|there| there.id == id);
                let Some((source, node)) = there.and_then(|there| self.kept_below(&there)) else {
                    self.drop_wave(wave);
                    return Err(Broken);
                };
                let key = self.index.key(node, class);
                id = self.pass(course.namespace, source, &key);
                wave.passing.push((id, source));
                wave.held.entries.push(id);
            }
            wave.loads.push((block, id));
        }
        let begin = match wave.rest.is_empty() {
            true => Begin::All,
            false => Begin::More,
        };
        course.wave = Some(wave);
        Ok(begin)
    }

    /// Where an entry is read from that a restore keeps.
    fn kept_below(&self, choice: &Choice) -> Option<(Keep, NodeId)> {
        let places = self.entries.get(choice.id).places;
        let tier = places.tiers().find(|&tier| tier != HOST)?;
        Some((self.kept.find(choice.id, tier)?, choice.node))
    }

    /// An entry of a restore, if its bytes are whole somewhere. `last`: one of the same block or the one before, if that
    /// is known to be there.
    pub(super) fn choice(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        last: Option<Choice>,
        (block, class): (usize, usize),
    ) -> Option<Choice> {
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
        Some(Choice {
            block,
            class,
            node,
            cell,
            id,
        })
    }

    /// Holds what the host has of them, which are in order, and the pages that this hangs from.
    fn hold_chosen(&mut self, chosen: &[Choice]) -> Held {
        let attention = self.index.roles().attention;
        let mut held = Held::default();
        let mut last = None;
        for of_block in chosen.chunk_by(|a, b| a.block == b.block).rev() {
            let in_host = of_block.iter().rev().filter(|it| it.cell.is_in_host());
            let others = in_host.filter(|it| Some(it.class) != attention);
            let before = held.entries.len();
            held.entries.extend(others.map(|it| it.id));
            let any = held.entries.len() > before;
            let page = of_block
                .iter()
                .find(|it| Some(it.class) == attention && it.cell.is_in_host());
            let page = page.or(of_block.first().filter(|_| any));
            let page = page.zip(attention);
            let page = page.and_then(|(at, class)| self.index.cell(at.node, class).entry());
            if let Some(page) = page {
                held.entries.push(page);
                last = Some((page, of_block[0].block));
            }
        }
        if let Some((page, block)) = last {
            if self.protects(HOST, page) {
                held.tip = Some(self.tip_at(page, block));
            } else {
                let above = std::iter::successors(self.support(page), |&page| self.support(page));
                held.entries.extend(above);
            }
        }
        self.tips.hold(held.tip);
        self.hold(&held.entries);
        held
    }

    /// Slots that an entry needs to be loaded.
    fn takes(&self, cell: Cell, class: usize) -> u64 {
        if cell.is_in_host() {
            0
        } else {
            self.classes[class].slots.into()
        }
    }

    /// Slots that would be left if nothing but so many were taken.
    fn spare(&self, cost: u64) -> u64 {
        self.most_slots().saturating_sub(cost)
    }
}

/// Something that a restore needs is gone, or was not what it was published as.
struct Broken;
