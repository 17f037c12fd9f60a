//! A hit's way back to the engine, also of one that is larger than the host.
//!
//! What fits goes into the host as one wave, where every lookup sees it. What does not, or hangs from pages that
//! only the engine has, passes through in waves of consecutive blocks: each is read into free slots, loaded,
//! and gone. Nothing is held while a wave waits for room, and first waves leave room for later ones, so
//! that restores never wait for each other for ever.

use std::sync::Arc;

use super::Shared;
use super::asked::PORTION;
use super::kept::Keep;
use super::lease::ReadLease;
use super::rise::Rise;
use super::state::State;
use super::waves::Wave;
use crate::error::Result;
use crate::ids::{EntryId, NamespaceId, PrefixKey};
use crate::prefix::Cell;
use crate::slot::Places;

/// How often a plan is made anew because something left while it was made; then it is made under the lock at once.
const TRIES: usize = 3;
/// A hit that takes more than this share of the slots goes in waves.
const LARGEST: (u64, u64) = (3, 4);

/// Where a restore is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There is no room for the next wave yet: ask again.
    Queued,
    /// The next wave is being read: ask again.
    Waiting,
    /// The next wave can be loaded: [`take`](Restore::take) it.
    Ready,
    /// Every wave was taken.
    Done,
    /// Something that is needed is gone or damaged; it will never be complete. What was taken is right, and a
    /// new lookup says what is left to find.
    Failed,
}

impl Progress {
    /// Name in Python.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// Brings a hit to the host wave by wave. What it needs stays in the tiers below until it ends, which it does
/// when dropped; waves that were taken are leases of their own.
pub struct Restore {
    shared: Arc<Shared>,
    course: Course,
    ended: bool,
}

/// What a restore has done and has to do.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) namespace: NamespaceId,
    /// Of the blocks up to the hit, copied when the lock is free.
    pub(super) keys: Vec<PrefixKey>,
    blocks: usize,
    pub(super) first: usize,
    /// Whether it is one wave that every lookup sees.
    pub(super) whole: bool,
    /// Block and class of all that the hit stands on: shallow first, the checkpoint last.
    pub(super) stands_on: Vec<(usize, usize)>,
    /// How many of these are kept in the tiers below.
    kept: usize,
    /// How many of these need no more waves: those that the engine has, and those that waves were begun for.
    pub(super) next: usize,
    /// What is being begun for a wave that every lookup sees.
    pub(super) rise: Option<Rise>,
    /// The wave that is being read, or ready.
    pub(super) wave: Option<Wave>,
    /// Whether a wave was taken.
    pub(super) started: bool,
    pub(super) failed: bool,
    /// Signs of how much room there was when there was too little.
    pub(super) no_room: Option<[u64; 6]>,
    depths: Vec<(String, usize)>,
    /// In the order of `stands_on`.
    keeps: Vec<Keep>,
}

impl Course {
    const fn is_kept(&self) -> bool {
        self.kept == self.stands_on.len()
    }
}

impl Restore {
    /// Begins one if a tier below has to be read.
    pub(super) fn plan(
        shared: &Arc<Shared>,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<Option<Self>> {
        for portion in std::iter::repeat_n(PORTION, TRIES).chain([usize::MAX]) {
            let plan = |state: &mut State| state.plan_restore(namespace, keys, first, portion);
            let Some(course) = shared.in_portions(plan)?.flatten() else {
                return Ok(None);
            };
            let mut restore = Self {
                shared: Arc::clone(shared),
                course,
                ended: false,
            };
            let course = &mut restore.course;
            let keys = &keys[..course.blocks];
            course.keys = keys.to_vec();
            course.keeps.reserve(course.stands_on.len());
            if course.is_kept()
                || shared.in_portions(|state| Ok(state.keep_on(course, keys, portion)))?
                    == Some(true)
            {
                return Ok(Some(restore));
            }
        }
        Ok(None)
    }

    /// First block that it covers.
    #[must_use]
    pub const fn first(&self) -> usize {
        self.course.first
    }

    /// The joint hit: the block after the last that it covers.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.course.blocks
    }

    /// How deep the joint hit would be with the host alone, and with one more tier each, by the names of the tiers.
    #[must_use]
    pub fn depths(&self) -> &[(String, usize)] {
        &self.course.depths
    }

    /// Whether it is one wave, which other requests find in the host, too.
    #[must_use]
    pub const fn whole(&self) -> bool {
        self.course.whole
    }

    /// Begins what can be begun, and says where it is. It never waits.
    pub fn progress(&mut self) -> Progress {
        if self.ended {
            return Progress::Failed;
        }
        let course = &mut self.course;
        let progress = self.shared.in_portions(|state| Ok(state.advance(course)));
        progress.ok().flatten().unwrap_or(Progress::Failed)
    }

    /// The wave that is ready. The one after it may be read while this one is loaded.
    pub fn take(&mut self) -> Option<ReadLease> {
        if self.ended {
            return None;
        }
        let course = &mut self.course;
        let wave = self.shared.in_portions(|state| Ok(state.take_wave(course)));
        let (first, hold) = wave.ok().flatten().flatten()?;
        ReadLease::new(&self.shared, first, hold).ok()
    }

    /// Ends it: what was not taken is given up. A second time does nothing.
    pub fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            let course = &mut self.course;
            // Whoever asks for anything is told of a panic.
            drop(
                self.shared
                    .in_portions(|state| Ok(state.end_restore(course))),
            );
        }
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        self.end();
    }
}

impl State {
    /// Plans how the joint hit comes to the engine, if a tier below has to be read for it, and keeps the first `portion`
    /// of it below; `None` if tiers below are to be asked more first.
    pub(super) fn plan_restore(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
        portion: usize,
    ) -> Result<Option<Option<Course>>> {
        if self.catch_up(namespace, keys)?.more {
            return Ok(None);
        }
        if self.below.is_empty() {
            return Ok(Some(None));
        }
        let keys = &keys[..self.worth_reading(namespace, keys, first, first)];
        let mut path = Vec::new();
        let hit = self
            .index
            .joint_hit(namespace, keys, Cell::is_whole, |node| path.push(node));
        if hit.blocks <= first {
            return Ok(Some(None));
        }
        let used = self.stands_on(&path[..hit.blocks]);
        let in_host = |id: EntryId| self.entries.get(id).places.in_host();
        if used.iter().all(|&(_, id)| in_host(id)) {
            return Ok(Some(None));
        }
        // The engine needs nothing before `first`, but what the host keeps hangs from there.
        let hangs = used
            .iter()
            .all(|&(block, id)| block >= first || in_host(id));
        let class = |id: EntryId| self.entries.get(id).class;
        let size = |&(_, id): &(usize, EntryId)| u64::from(self.classes[class(id)].slots);
        let total: u64 = used.iter().map(size).sum();
        let fits = total * LARGEST.1 <= self.most_slots() * LARGEST.0;
        let free = !used.iter().any(|&(_, id)| self.is_in_the_way(id));
        let whole = hangs && fits && free;
        let stands_on = used.iter().rev();
        let stands_on: Vec<_> = stands_on.map(|&(block, id)| (block, class(id))).collect();
        let mut course = Course {
            namespace,
            keys: Vec::new(),
            blocks: hit.blocks,
            first,
            whole,
            next: stands_on.partition_point(|&(block, _)| block < first),
            kept: 0,
            rise: None,
            wave: None,
            started: false,
            failed: false,
            no_room: None,
            depths: self.depths(namespace, &keys[..hit.blocks]),
            keeps: Vec::new(),
            stands_on,
        };
        self.index.namespaces.hold(namespace);
        self.restores.in_waves += u64::from(!whole);
        self.keep_on(&mut course, keys, portion);
        Ok(Some(Some(course)))
    }

    /// Keeps the next `portion` of what a restore stands on, which may have left meanwhile: then it is false. `None` if
    /// there is more.
    fn keep_on(&mut self, course: &mut Course, keys: &[PrefixKey], portion: usize) -> Option<bool> {
        let mut last = None;
        let end = course
            .stands_on
            .len()
            .min(course.kept.saturating_add(portion));
        for at in course.kept..end {
            let (block, class) = course.stands_on[at];
            let Some(choice) = self.choice(course.namespace, keys, last, (block, class)) else {
                return Some(false);
            };
            last = Some(choice);
            self.keep_below(choice.id, &mut course.keeps);
            course.kept = at + 1;
        }
        course.is_kept().then(|| {
            self.restores.begun += 1;
            true
        })
    }

    /// The joint hit of the host, of the host with the first tier below, and so on.
    fn depths(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Vec<(String, usize)> {
        let mut tiers = Places::NONE;
        let mut depths = Vec::with_capacity(self.below.len() + 1);
        for tier in 0..=self.below.len() {
            tiers = tiers.with(Places::of(tier));
            let counts = |cell: Cell| {
                let id = cell.entry().filter(|_| cell.is_whole());
                id.is_some_and(|id| !self.entries.get(id).places.and(tiers).is_empty())
            };
            let hit = self.index.joint_hit(namespace, keys, counts, |_| ());
            depths.push((self.tier_name(tier), hit.blocks));
        }
        depths
    }

    /// Gives up a portion of what a restore has; `None` if there is more.
    fn end_restore(&mut self, course: &mut Course) -> Option<()> {
        if let Some(rise) = course.rise.take() {
            self.end_rise(&rise);
        }
        if let Some(wave) = course.wave.take() {
            self.drop_wave(wave);
        }
        let left = course.keeps.len().saturating_sub(PORTION);
        for keep in course.keeps.drain(left..).rev() {
            self.keep_no_longer(keep);
        }
        course.keeps.is_empty().then(|| {
            self.index.namespaces.let_go(course.namespace);
            self.restores.in_waves -= u64::from(!course.whole);
        })
    }
}
