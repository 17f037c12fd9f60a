//! The lock that guards everything behind the cache.

use super::state::CacheState;
use super::stats::{CacheStats, TierStats};
use crate::error::Result;
use crate::guarded::Guarded;

/// The cache's state behind its lock, which leases and restores share. After a panic under its lock nobody gets at the state: nothing is
/// found or handed out, and leases end without a trace, so that no slot of theirs is ever used again.
pub(crate) struct Locked {
    pub(super) state: Guarded<CacheState>,
    /// What is said of the cache after a panic.
    pub(super) closed: (CacheStats, Vec<TierStats>),
}

impl Locked {
    pub(super) fn new(state: CacheState) -> Self {
        Self {
            closed: state.when_closed(),
            state: Guarded::new(state),
        }
    }

    pub(super) fn with<R>(&self, work: impl FnOnce(&mut CacheState) -> R) -> Result<R> {
        self.state.with(work)
    }

    /// Calls `step` until it has an answer, with the lock free in between for the next one that waits. None if the
    /// namespace ends meanwhile.
    pub(super) fn in_portions<T>(
        &self,
        mut step: impl FnMut(&mut CacheState) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut answer = self.with(&mut step)??;
        while answer.is_none() {
            let Ok(next) = self.state.with_again(&mut step)? else {
                break;
            };
            answer = next;
        }
        Ok(answer)
    }

    /// Does something under the lock that has to be done, and that needs no doing after a panic.
    pub(super) fn end(&self, work: impl FnOnce(&mut CacheState)) {
        // Whoever asks for anything is told of the panic.
        drop(self.with(work));
    }
}
