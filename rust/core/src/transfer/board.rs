//! The tickets of an engine, and how their transfers ended.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

use super::completion::{Completion, Ticket};
use crate::guarded::lock;

/// The transfers of one engine that run, and those that ended since the last poll.
#[derive(Debug, Default)]
pub(super) struct Board {
    state: Mutex<BoardState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct BoardState {
    issued: u64,
    running: BTreeSet<Ticket>,
    completions: Vec<Completion>,
    closed: bool,
}

impl Board {
    /// Gives out the next ticket. The transfer runs until [`Board::finish`].
    ///
    /// # Errors
    /// [`Error::Transfer`] after [`Board::close`].
    pub(super) fn start(&self) -> Result<Ticket> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(Error::transfer("expected an open engine, found it closed"));
        }
        state.issued += 1;
        let ticket = Ticket(state.issued);
        state.running.insert(ticket);
        Ok(ticket)
    }

    /// Ends a transfer that [`Board::start`] began.
    pub(super) fn finish(&self, completion: Completion) {
        let mut state = lock(&self.state);
        state.running.remove(&completion.ticket);
        state.completions.push(completion);
        self.ended.notify_all();
    }

    /// The transfers that ended since the last poll, each once.
    pub(super) fn poll(&self) -> Vec<Completion> {
        std::mem::take(&mut lock(&self.state).completions)
    }

    /// Transfers that run.
    pub(super) fn in_flight(&self) -> usize {
        lock(&self.state).running.len()
    }

    /// Waits until a transfer has ended, and says whether it has.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on a ticket that was never given out.
    pub(super) fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        // A deadline beyond the clock is none at all.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = lock(&self.state);
        if !(1..=state.issued).contains(&ticket.0) {
            return Err(Error::InvalidArgument(format!(
                "ticket: expected one of the {} given out, found {}",
                state.issued, ticket.0
            )));
        }
        while state.running.contains(&ticket) {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            state = self.pause(state, left);
        }
        Ok(true)
    }

    /// Gives out no more tickets and returns when none runs.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        while !state.running.is_empty() {
            state = self.pause(state, None);
        }
    }

    fn pause<'a>(
        &self,
        state: MutexGuard<'a, BoardState>,
        at_most: Option<Duration>,
    ) -> MutexGuard<'a, BoardState> {
        match at_most {
            Some(left) => match self.ended.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            },
            None => self
                .ended
                .wait(state)
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        }
    }
}
