//! The process that made an engine: a fork of it has the engine's memory, and none of its threads.

use crate::error::{Error, Result};

/// One process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process(u32);

impl Process {
    /// The one that runs this.
    pub(super) fn current() -> Self {
        Self(std::process::id())
    }

    /// Whether a fork of it runs this.
    pub(super) fn is_inherited(self) -> bool {
        self.0 != std::process::id()
    }

    /// Rejects a fork of it; `advice` says what to do there.
    ///
    /// # Errors
    /// [`Error::Transfer`].
    pub(super) fn check(self, advice: &str) -> Result<()> {
        if self.is_inherited() {
            return Err(Error::transfer(format!(
                "expected the process that made the engine, {}, found a fork of it: {advice}",
                self.0
            )));
        }
        Ok(())
    }
}
