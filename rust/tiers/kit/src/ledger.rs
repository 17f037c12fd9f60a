//! The counts of a tier and its notes for an operator, each behind a lock of its own.

use std::collections::HashSet;

use crate::counts::{Counts, Failure};
use crate::lock::{PriorityMutex, lock};

/// The counts of a tier, and notes for an operator. The first failure of each kind is noted; further ones are only
/// counted.
#[derive(Debug)]
pub struct Ledger<C: Counts> {
    /// The text that each note begins with.
    prefix: String,
    counts: PriorityMutex<C>,
    notes: PriorityMutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    /// Names of the kinds of failures that have been noted.
    noted: HashSet<&'static str>,
    waiting: Vec<String>,
}

impl<C: Counts> Ledger<C> {
    /// An empty ledger, whose notes will begin with `prefix`.
    #[must_use]
    pub fn new(prefix: String) -> Self {
        Self {
            prefix,
            counts: PriorityMutex::default(),
            notes: PriorityMutex::default(),
        }
    }

    /// A copy of the counts.
    #[must_use]
    pub fn counts(&self) -> C {
        lock(&self.counts).clone()
    }

    /// Changes counts.
    pub fn count(&self, change: impl FnOnce(&mut C)) {
        change(&mut lock(&self.counts));
    }

    /// Counts an outage.
    pub fn count_outage(&self) {
        self.count(C::add_outage);
    }

    /// Counts failures of one kind. Returns whether they are the first.
    fn is_first(&self, kind: C::Failure, times: u64) -> bool {
        self.count(|counts| counts.add_failures(kind, times));
        lock(&self.notes).noted.insert(kind.name())
    }

    /// Counts a failure; the first of its kind is noted.
    pub fn failed(&self, kind: C::Failure, what: &str) {
        if self.is_first(kind, 1) {
            let name = kind.name();
            self.note(&format!(
                "{what} (counted as '{name}'; further ones are counted only)"
            ));
        }
    }

    /// Counts failures of one kind; the first is noted with the kind in front.
    pub fn failed_times(&self, kind: C::Failure, times: u64, what: &str) {
        if self.is_first(kind, times) {
            self.note(&format!("{}: {what}", kind.name()));
        }
    }

    /// Counts failures of one kind and notes nothing.
    pub fn count_failures(&self, kind: C::Failure, times: u64) {
        self.count(|counts| counts.add_failures(kind, times));
    }

    /// Adds a note for an operator.
    pub fn note(&self, what: &str) {
        let note = format!("{}{what}", self.prefix);
        lock(&self.notes).waiting.push(note);
    }

    /// Takes the notes since the last call.
    #[must_use]
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.notes).waiting)
    }
}
