//! A transfer from its submission to its end.

use std::sync::Arc;
use std::time::Instant;

use hybrid_pages::transfer::{Completion, Plan, Ticket};

use super::event_pool::RecordedEvent;

/// A transfer that a caller has submitted.
pub(super) struct SubmittedTransfer {
    pub(super) ticket: Ticket,
    pub(super) plan: Plan,
    /// The point in a stream after which the engine's memory may be touched.
    pub(super) after: Arc<RecordedEvent>,
    /// The number of the fence that the transfer waits for.
    pub(super) fence: Option<u64>,
    pub(super) started: Instant,
}

/// A transfer that has not ended, with the results of its batches so far.
pub(super) struct RunningTransfer {
    pub(super) submitted: SubmittedTransfer,
    /// The first entry that is in no batch yet.
    pub(super) next: usize,
    /// Entries of batches that have not ended.
    pub(super) open: usize,
    bytes: u64,
    checksums: Vec<u64>,
    failed: Option<String>,
}

impl RunningTransfer {
    pub(super) fn new(submitted: SubmittedTransfer) -> Self {
        Self {
            submitted,
            next: 0,
            open: 0,
            bytes: 0,
            checksums: Vec::new(),
            failed: None,
        }
    }

    /// Whether any entry is in no batch yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.next < self.submitted.plan.entries().len()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.open == 0 && !self.is_waiting()
    }

    /// Adds the bytes that entries have moved, and their checksums.
    pub(super) fn add(&mut self, bytes: u64, checksums: Vec<u64>) {
        self.bytes += bytes;
        self.checksums.extend(checksums);
    }

    /// Notes a failure. Entries that are in no batch yet will not be copied.
    pub(super) fn fail(&mut self, why: String) {
        self.next = self.submitted.plan.entries().len();
        self.failed.get_or_insert(why);
    }

    pub(super) fn completion(self) -> Completion {
        let SubmittedTransfer {
            ticket, started, ..
        } = self.submitted;
        match self.failed {
            Some(why) => Completion::failed(ticket, started, why),
            None => Completion {
                ticket,
                error: None,
                bytes: self.bytes as usize,
                seconds: started.elapsed().as_secs_f64(),
                checksums: self.checksums,
            },
        }
    }
}
