//! A transfer by its ticket, and how it ended.

use std::fmt;
use std::time::Instant;

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
    /// The transfer that ended.
    pub ticket: Ticket,
    /// Why the transfer failed; after a load that failed, also by wrong checksums, the blocks hold nothing of use.
    pub error: Option<String>,
    /// Bytes that are whole where they were to go: all of them or, after a failure, none.
    pub bytes: usize,
    /// Time from the submission to the end.
    pub seconds: f64,
    /// Checksums of this rank's shard of each entry, in order, after a store that succeeded; empty from an engine that
    /// computes none.
    pub checksums: Vec<u64>,
}

impl Completion {
    /// The end of a transfer that failed; it began at `started`.
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
