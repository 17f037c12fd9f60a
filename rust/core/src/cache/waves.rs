//! The parts of a restore, one after another: what a part reads, and when it can be loaded.

use super::copies::Held;
use super::entry::LeaseEntry;
use super::kept::Keep;
use super::promote::Reading;
use super::restore::{Course, Progress};
use super::state::{ReadHold, State};
use crate::ids::{EntryId, NodeId};
use crate::prefix::{Boundary, Cell};
use crate::slot::HOST;

/// A wave that only passes through takes this part of the slots at most that a prompt may have, if they are
/// enough for one entry; and while a restore goes in waves, first waves leave as much free for those that
/// come later.
const PART: u64 = 4;

/// Entries of consecutive blocks that are loaded together.
#[derive(Debug)]
pub(super) struct Wave {
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
struct Choice {
    block: usize,
    class: usize,
    node: NodeId,
    cell: Cell,
    id: EntryId,
}

impl State {
    /// Brings a restore on and says where it is.
    pub(super) fn advance(&mut self, course: &mut Course) -> Progress {
        self.poll();
        if course.failed {
            return Progress::Failed;
        }
        if course.wave.is_none() && course.next < course.needed.len() {
            course.wave = match self.begin_wave(course) {
                Ok(Some(wave)) => Some(wave),
                Ok(None) => return Progress::Queued,
                Err(Broken) => return self.fail(course),
            };
            // The reads may have ended already.
            self.poll();
        }
        let Some(wave) = &course.wave else {
            return Progress::Done;
        };
        match self.is_ready(wave) {
            Ok(true) => Progress::Ready,
            Ok(false) => Progress::Waiting,
            Err(Broken) => self.fail(course),
        }
    }

    /// Hands out the wave that is ready.
    pub(super) fn take_wave(&mut self, course: &mut Course) -> Option<(usize, ReadHold)> {
        if self.advance(course) != Progress::Ready {
            return None;
        }
        let wave = course.wave.take()?;
        course.started = true;
        self.restores.waves += 1;
        for &(id, _) in &wave.passing {
            self.passing.forget(id);
        }
        let mut entries = Vec::with_capacity(wave.loads.len());
        for &(block, id) in &wave.loads {
            let checksums = self.entries.checksums(id);
            let checksums = checksums.map(<[u64]>::to_vec).unwrap_or_default();
            entries.push(LeaseEntry {
                checksums,
                ..self.describe(block, id)
            });
        }
        let blocks = |entry: Option<&(usize, EntryId)>| entry.map_or(0, |&(block, _)| block);
        let hold = ReadHold {
            blocks: blocks(wave.loads.last()) + 1,
            entries,
            ids: wave.loads.iter().map(|&(_, id)| id).collect(),
            held: wave.held,
        };
        Some((blocks(wave.loads.first()), hold))
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

    /// Finds room for the next wave and starts its reads; `None` while there is no room.
    fn begin_wave(&mut self, course: &mut Course) -> Result<Option<Wave>, Broken> {
        let now = self.signs_of_room();
        if course.no_room == Some(now) {
            return Ok(None);
        }
        let wave = if course.whole {
            self.begin_whole(course)?
        } else {
            self.begin_part(course)?
        };
        course.no_room = wave.is_none().then_some(now);
        Ok(wave)
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
    fn begin_whole(&mut self, course: &mut Course) -> Result<Option<Wave>, Broken> {
        let path = self.index.path(course.namespace, &course.keys, None, 0);
        let path = path.map_err(|_| Broken)?.into_iter();
        let path: Vec<_> = path.map(Boundary::known).collect();
        let used = self.stands_on(&path);
        if used.len() != course.stands_on {
            return Err(Broken);
        }
        let margin = if self.restores.in_waves > 0 {
            self.most_slots() / PART
        } else {
            0
        };
        match self.bring_up(course.namespace, &used, margin) {
            Reading::NoRoom(_) => return Ok(None),
            Reading::InTheWay => return Err(Broken),
            Reading::UnderWay | Reading::Nothing => {}
        }
        let held: Vec<EntryId> = used.iter().map(|&(_, id)| id).collect();
        if !held
            .iter()
            .all(|&id| self.entries.get(id).members.in_host())
        {
            return Err(Broken);
        }
        self.hold(&held);
        course.next = course.needed.len();
        let loads = used.into_iter().rev();
        Ok(Some(Wave {
            loads: loads.filter(|&(block, _)| block >= course.first).collect(),
            passing: Vec::new(),
            members: held.clone(),
            held: Held {
                entries: held,
                tip: None,
            },
        }))
    }

    /// As much of what is needed as a part of the host holds.
    fn begin_part(&mut self, course: &mut Course) -> Result<Option<Wave>, Broken> {
        let most = self.most_slots() / PART;
        let (mut chosen, mut cost) = (Vec::new(), 0);
        for &(block, class) in &course.needed[course.next..] {
            let choice = self.choice(course, block, class).ok_or(Broken)?;
            let size = self.takes(choice.cell, class);
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
        if chosen.is_empty() || self.make_room_for(course.namespace, cost).is_err() {
            self.let_go(held);
            return Ok(None);
        }
        course.next += chosen.len();
        let mut wave = Wave {
            loads: Vec::with_capacity(chosen.len()),
            passing: Vec::new(),
            members: Vec::new(),
            held,
        };
        for Choice {
            block,
            class,
            node,
            cell,
            mut id,
        } in chosen
        {
            if cell.is_in_host() {
                wave.members.push(id);
            } else {
                let tier = self
                    .entries
                    .get(id)
                    .places
                    .tiers()
                    .find(|&tier| tier != HOST);
                let source = tier.and_then(|tier| self.kept.find(id, tier));
                let Some(source) = source else {
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
        Ok(Some(wave))
    }

    /// An entry of a restore, if its bytes are whole somewhere.
    fn choice(&self, course: &Course, block: usize, class: usize) -> Option<Choice> {
        let node = self.index.at(course.namespace, &course.keys, block)?;
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
