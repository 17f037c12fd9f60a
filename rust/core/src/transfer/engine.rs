//! The seam between the cache and a machine: engines execute copies.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::Result;

use super::plan::{Direction, EntryCopy};
use super::transfers::Transfers;

/// A submitted transfer. Tickets of one engine ascend from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ticket {}", self.0)
    }
}

/// How a transfer ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// Which transfer.
    pub ticket: Ticket,
    /// Why it failed. A load that fails its checksums has written nothing.
    pub error: Option<String>,
    /// Bytes that are whole where they were to go: all of them or, after a failure, none.
    pub bytes: usize,
    /// From its submission to its end.
    pub seconds: f64,
    /// Of a store that succeeded: this rank's shard of each entry, in order.
    pub checksums: Vec<u64>,
}

impl Completion {
    /// Of a transfer that began then and came to nothing.
    #[must_use]
    pub fn failed(ticket: Ticket, started: Instant, error: String) -> Self {
        Self {
            ticket,
            error: Some(error),
            bytes: 0,
            seconds: started.elapsed().as_secs_f64(),
            checksums: Vec::new(),
        }
    }
}

/// Executes transfers in the background. Transfers may run at the same time and end in any
/// order; while one runs, its slots and blocks belong to it.
pub trait Engine: Send + Sync {
    /// The transfers that it was given.
    fn transfers(&self) -> &Transfers;

    /// Checks the entries whole, then starts copying them.
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
