//! The lock that guards everything behind the cache.

use super::prefix_pins::PinSet;
use super::queries::PORTION;
use super::state::CacheState;
use super::stats::{CacheStats, TierStats};
use crate::error::Result;
use crate::guarded::Guarded;
use crate::prefix::Roles;

/// The cache's state behind its lock, which leases and restores share. After a panic under the lock nobody can use the
/// state: nothing is found or handed out, and leases end without effect, so that their slots are never used again.
pub(crate) struct Locked {
    pub(super) state: Guarded<CacheState>,
    /// The roles of the classes, which never change.
    pub(super) roles: Roles,
    /// The counts that the cache gives after a panic.
    pub(super) closed: (CacheStats, Vec<TierStats>),
}

impl Locked {
    pub(super) fn new(state: CacheState) -> Self {
        Self {
            closed: state.when_closed(),
            roles: state.index.roles().clone(),
            state: Guarded::new(state),
        }
    }

    pub(super) fn with<R>(&self, work: impl FnOnce(&mut CacheState) -> R) -> Result<R> {
        self.state.with(work)
    }

    /// Calls `step` until it has an answer. In between, the lock is free for the next one that waits.
    pub(super) fn to_the_end<T>(
        &self,
        mut step: impl FnMut(&mut CacheState) -> Result<Option<T>>,
    ) -> Result<T> {
        match self.with(&mut step)?? {
            Some(answer) => Ok(answer),
            None => self.go_on(step),
        }
    }

    /// Calls `step` as [`to_the_end`](Self::to_the_end) does, for a caller that has just had the lock.
    pub(super) fn go_on<T>(
        &self,
        mut step: impl FnMut(&mut CacheState) -> Result<Option<T>>,
    ) -> Result<T> {
        loop {
            if let Some(answer) = self.state.with_again(&mut step)?? {
                return Ok(answer);
            }
        }
    }

    /// Calls `step` as [`to_the_end`](Self::to_the_end) does. `None` if the namespace ends meanwhile.
    pub(super) fn in_portions<T>(
        &self,
        mut step: impl FnMut(&mut CacheState) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut begun = false;
        self.to_the_end(|state| {
            let again = std::mem::replace(&mut begun, true);
            let answer = step(state).map(|answer| answer.map(Some));
            answer.or_else(|error| again.then_some(Some(None)).ok_or(error))
        })
    }

    /// Ends pins in portions, in their order: what hangs from a page goes before it, and the pin of a prefix with the
    /// last.
    pub(super) fn unpin(&self, mut pinned: PinSet) {
        let before = pinned.entries.len().saturating_sub(4 * PORTION);
        let last = pinned.entries.split_off(before);
        let before = std::mem::replace(&mut pinned.entries, last);
        for ids in before.chunks(4 * PORTION) {
            self.end(|state| state.unpin(ids));
        }
        self.end(|state| state.unpin_all(pinned));
    }

    /// Ends something under the lock. After a panic there is nothing to end.
    pub(super) fn end(&self, work: impl FnOnce(&mut CacheState)) {
        // Calls that ask for anything return the error of the panic.
        drop(self.with(work));
    }
}
