//! The process that made an engine or a tier: a fork of it has the memory, and none of the threads.

use crate::error::{Error, Result};

/// A process, known by its number.
#[derive(Debug, Clone, Copy)]
pub struct Process(u32);

impl Process {
    /// The process that calls this.
    #[must_use]
    pub fn current() -> Self {
        Self(std::process::id())
    }

    /// Whether another process calls this: a fork of it.
    #[must_use]
    pub fn is_inherited(self) -> bool {
        self.0 != std::process::id()
    }

    /// Rejects a call in a fork of the process; `advice` says what to do there.
    ///
    /// # Errors
    /// [`Error::Transfer`] in a fork.
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
