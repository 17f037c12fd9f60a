//! The lock that guards everything behind the cache.

use super::state::CacheState;
use super::stats::{CacheStats, TierStats};
use crate::error::Result;
use crate::guarded::Guarded;

/// The cache's state behind its lock, which leases and restores share. After a panic under the lock nobody can use the
/// state: nothing is found or handed out, and leases end without effect, so that their slots are never used again.
pub(crate) struct Locked {
    pub(super) state: Guarded<CacheState>,
    /// The counts that the cache gives after a panic.
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

    /// Calls `step` until it has an answer. In between, the lock is free for the next one that waits. `None` if the
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

    /// Ends something under the lock. After a panic there is nothing to end.
    pub(super) fn end(&self, work: impl FnOnce(&mut CacheState)) {
        // Calls that ask for anything return the error of the panic.
        drop(self.with(work));
    }
}
