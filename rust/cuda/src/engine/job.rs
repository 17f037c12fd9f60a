//! A transfer from its submission to its end: how far it is, and what came of it.

use std::sync::Arc;
use std::time::Instant;

use hybrid_pages::transfer::{Completion, Plan, Ticket};

use super::marks::Mark;

/// A transfer as it was submitted.
pub(super) struct Request {
    pub(super) ticket: Ticket,
    pub(super) plan: Plan,
    pub(super) after: Arc<Mark>,
    /// The number of the fence that it waits for.
    pub(super) fence: Option<u64>,
    pub(super) started: Instant,
}

/// A request that is worked on, in one or several flights.
pub(super) struct Job {
    pub(super) request: Request,
    /// The first entry that no flight has got.
    pub(super) next: usize,
    /// Entries that flights have and that have not ended.
    pub(super) open: usize,
    bytes: u64,
    checksums: Vec<u64>,
    failed: Option<String>,
}

impl Job {
    pub(super) fn new(request: Request) -> Self {
        Self {
            request,
            next: 0,
            open: 0,
            bytes: 0,
            checksums: Vec::new(),
            failed: None,
        }
    }

    /// Whether entries are left to begin.
    pub(super) fn is_waiting(&self) -> bool {
        self.next < self.request.plan.entries().len()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.open == 0 && !self.is_waiting()
    }

    /// Adds what entries have come to.
    pub(super) fn add(&mut self, bytes: u64, checksums: Vec<u64>) {
        self.bytes += bytes;
        self.checksums.extend(checksums);
    }

    /// It has failed: what is left of it is not begun.
    pub(super) fn fail(&mut self, why: String) {
        self.next = self.request.plan.entries().len();
        self.failed.get_or_insert(why);
    }

    pub(super) fn completion(self) -> Completion {
        let Request {
            ticket, started, ..
        } = self.request;
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
