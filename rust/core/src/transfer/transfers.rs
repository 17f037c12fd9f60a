//! The part that all engines have in common: the checks, the tickets and the ends of transfers.

use std::fmt;
use std::time::Duration;

use crate::error::Result;

use super::board::Board;
use super::completion::{Completion, Ticket};
use super::layout::TransferLayout;
use super::plan::{Direction, EntryCopy, Plan};
use super::process::Process;
use super::region::SlotMemory;

/// The transfers between one rank's blocks and an arena, from their check to their end. An engine moves
/// the bytes in between.
pub struct Transfers {
    layout: TransferLayout,
    memory: SlotMemory,
    board: Board,
    process: Process,
    in_a_fork: &'static str,
}

impl Transfers {
    /// No transfers yet. `in_a_fork` tells a fork of this process, which has no threads to copy with, what to do.
    ///
    /// # Errors
    /// [`crate::error::Error::Foreign`] if the arena belongs to another geometry.
    pub fn new(
        layout: TransferLayout,
        memory: SlotMemory,
        in_a_fork: &'static str,
    ) -> Result<Self> {
        layout.check_slots(&memory)?;
        Ok(Self {
            layout,
            memory,
            board: Board::default(),
            process: Process::current(),
            in_a_fork,
        })
    }

    /// The layout of the blocks.
    #[must_use]
    pub fn layout(&self) -> &TransferLayout {
        &self.layout
    }

    /// The memory of the slots.
    #[must_use]
    pub fn memory(&self) -> &SlotMemory {
        &self.memory
    }

    /// Whether this is a fork of the engine's process.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.process.is_inherited()
    }

    /// Rejects a call in a fork of the engine's process.
    ///
    /// # Errors
    /// [`crate::error::Error::Transfer`] in a fork.
    pub fn check_process(&self) -> Result<()> {
        self.process.check(self.in_a_fork)
    }

    /// Checks the entries of a transfer, all before the first byte moves.
    ///
    /// # Errors
    /// [`crate::error::Error::InvalidArgument`] naming the first entry that is wrong; [`crate::error::Error::Transfer`]
    /// in a fork.
    pub fn plan(&self, direction: Direction, entries: Vec<EntryCopy>) -> Result<Plan> {
        self.check_process()?;
        Plan::new(&self.layout, &self.memory, direction, entries)
    }

    /// Gives out the ticket of a transfer that runs until [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`crate::error::Error::Transfer`] after [`close`](Self::close).
    pub fn start(&self) -> Result<Ticket> {
        self.board.start()
    }

    /// Ends a transfer that [`start`](Self::start) began.
    pub fn finish(&self, completion: Completion) {
        self.board.finish(completion);
    }

    /// The transfers that ended since the last call, as [`Engine::poll`](super::Engine::poll) returns them.
    pub fn poll(&self) -> Vec<Completion> {
        self.board.poll()
    }

    /// Waits for a transfer, as [`Engine::wait`](super::Engine::wait) does.
    ///
    /// # Errors
    /// [`crate::error::Error::InvalidArgument`] on a ticket that was never given out;
    /// [`crate::error::Error::Transfer`] in a fork.
    pub fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        self.check_process()?;
        self.board.wait(ticket, timeout)
    }

    /// Transfers that run.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.board.in_flight()
    }

    /// Gives out no more tickets, waits until no transfer runs, then lets `stop` end the engine's threads:
    /// each time it is called, but never in a fork, which has none of them.
    pub fn close(&self, stop: impl FnOnce()) {
        if !self.is_inherited() {
            self.board.close();
            stop();
        }
    }
}

impl fmt::Debug for Transfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_flight = self.in_flight();
        f.debug_struct("Transfers")
            .field("rank", &self.layout.rank())
            .field("in_flight", &in_flight)
            .finish_non_exhaustive()
    }
}
