//! The way of a hit back to the engine, even if the hit is larger than the host.
//!
//! A hit that fits is promoted into the host as one wave, where every lookup sees it. A hit that does not fit, or that
//! hangs from pages that only the engine has, comes in waves of consecutive blocks with transient entries. Each wave is
//! read into free slots, loaded, and gone. Nothing is pinned while a wave waits for room, and first waves leave room
//! for later ones, so that restores never wait for each other forever.

use std::sync::Arc;

use super::super::discover::Discovery;
use super::super::lease::ReadLease;
use super::super::locked::Locked;
use super::super::queries::PORTION;
use super::super::state::CacheState;
use super::task::{RestoreProgress, RestoreTask};
use crate::error::Result;
use crate::ids::{NamespaceId, PrefixKey};

/// How often a plan is made anew because something left while it was made; then it is made under the lock at once.
const TRIES: usize = 3;

/// A joint hit on its way from the tiers below to the engine, wave by wave: entries of consecutive blocks that come to
/// the host and are loaded together. The tiers below keep what the hit needs until the restore ends. It ends when it is
/// dropped; waves that were taken are leases of their own.
pub struct Restore {
    locked: Arc<Locked>,
    task: RestoreTask,
    ended: bool,
}

impl Restore {
    /// Plans a restore, if a tier below has to be read.
    pub(crate) fn plan(
        locked: &Arc<Locked>,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<Option<Self>> {
        for portion in std::iter::repeat_n(PORTION, TRIES).chain([usize::MAX]) {
            let mut discovery = Discovery::default();
            let plan = |state: &mut CacheState| {
                if !state.discover_on(namespace, keys, &mut discovery)? {
                    return Ok(None);
                }
                let mut task = state.plan_restore(namespace, keys, first)?;
                let short = |task: &&mut RestoreTask| task.target.needs.len() <= portion;
                if let Some(task) = task.as_mut().filter(short) {
                    let keys = &keys[..task.target.blocks];
                    state.pin_on(task, keys, portion);
                }
                Ok(Some(task))
            };
            let Some(task) = locked.in_portions(plan)?.flatten() else {
                return Ok(None);
            };
            let mut restore = Self {
                locked: Arc::clone(locked),
                task,
                ended: false,
            };
            let task = &mut restore.task;
            let keys = &keys[..task.target.blocks];
            task.target.keys = keys.to_vec();
            task.pins.reserve(task.target.needs.len());
            if task.is_pinned() || locked.go_on(|state| Ok(state.pin_on(task, keys, portion)))? {
                locked.go_on(|state| Ok(state.find_depth(task)))?;
                return Ok(Some(restore));
            }
        }
        Ok(None)
    }

    /// The first block that the restore covers.
    #[must_use]
    pub const fn first(&self) -> usize {
        self.task.target.first
    }

    /// The joint hit: the block after the last that the restore covers.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.task.target.blocks
    }

    /// How deep the joint hit would be with the host alone, and with one more tier each, by the names of the tiers.
    #[must_use]
    pub fn depths(&self) -> &[(String, usize)] {
        &self.task.target.depths
    }

    /// Whether the restore is one wave, which other requests find in the host, too.
    #[must_use]
    pub const fn whole(&self) -> bool {
        self.task.target.whole
    }

    /// Slots that all of what the hit needs takes in the host: at most as many are held for a [whole](Self::whole)
    /// restore.
    #[must_use]
    pub const fn slots(&self) -> u64 {
        self.task.target.slots
    }

    /// Begins what can be begun, and says how far the restore has come. It never waits.
    pub fn progress(&mut self) -> RestoreProgress {
        if self.ended {
            return RestoreProgress::Failed;
        }
        let task = &mut self.task;
        let progress = self.locked.in_portions(|state| Ok(state.advance(task)));
        progress.ok().flatten().unwrap_or(RestoreProgress::Failed)
    }

    /// The wave that is ready. The one after it may be read while this one is loaded.
    pub fn take(&mut self) -> Option<ReadLease> {
        if self.ended {
            return None;
        }
        let task = &mut self.task;
        let wave = self.locked.in_portions(|state| Ok(state.take_wave(task)));
        let (first, hold) = wave.ok().flatten().flatten()?;
        ReadLease::new(&self.locked, first, hold).ok()
    }

    /// Ends the restore: waves that were not taken are given up. A second call does nothing.
    pub fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            let task = &mut self.task;
            // Calls that ask for anything return the error of the panic.
            drop(self.locked.in_portions(|state| Ok(state.end_restore(task))));
        }
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        self.end();
    }
}
