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
    /// Which transfer.
    pub ticket: Ticket,
    /// Why it failed. Of a load: what its blocks hold now is of no use, also if its checksums were wrong.
    pub error: Option<String>,
    /// Bytes that are whole where they were to go: all of them or, after a failure, none.
    pub bytes: usize,
    /// From its submission to its end.
    pub seconds: f64,
    /// Of a store that succeeded: this rank's shard of each entry, in order. None at all from an engine that
    /// computes none.
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
