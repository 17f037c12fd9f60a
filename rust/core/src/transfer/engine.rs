//! The seam between the cache and a machine: engines execute copies.

use std::time::Duration;

use crate::error::Result;

use super::completion::{Completion, Ticket};
use super::plan::{Direction, EntryCopy};
use super::transfers::Transfers;

/// Executes transfers in the background. Transfers may run at the same time and end in any
/// order; while one runs, its slots and blocks belong to it.
pub trait Engine: Send + Sync {
    /// The transfers that the engine was given.
    fn transfers(&self) -> &Transfers;

    /// Checks all entries, then starts to copy them.
    ///
    /// # Errors
    /// [`crate::error::Error::InvalidArgument`] before any byte moves;
    /// [`crate::error::Error::Transfer`] after [`Engine::close`].
    fn submit(&self, direction: Direction, entries: Vec<EntryCopy>) -> Result<Ticket>;

    /// The transfers that ended since the last poll, each once. Never waits for a copy.
    fn poll(&self) -> Vec<Completion> {
        self.transfers().poll()
    }

    /// Waits until a transfer has ended, and says whether it has; its completion still comes
    /// through [`Engine::poll`]. `None` waits for as long as it takes.
    ///
    /// # Errors
    /// [`crate::error::Error::InvalidArgument`] on a ticket that was never given out;
    /// [`crate::error::Error::Transfer`] in a fork of the engine's process.
    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        self.transfers().wait(ticket, timeout)
    }

    /// Transfers submitted and not ended.
    fn in_flight(&self) -> usize {
        self.transfers().in_flight()
    }

    /// Waits for the transfers in flight and rejects any more. Does nothing the second time.
    fn close(&self);
}
