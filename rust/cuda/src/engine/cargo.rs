//! Which entries make up the next flight: those of several requests, or a part of one.

use std::collections::{HashMap, VecDeque};
use std::mem::size_of_val;
use std::ops::Range;

use hybrid_pages::transfer::{Direction, Ticket, Transfers};

use crate::line::{Line, Patterns};
use crate::pinning::Pinned;

use super::buffers::Room;
use super::digests::check_entry;
use super::job::Job;

/// A flight is not made longer than this, in bytes and in pieces: it stands in the way of what is
/// begun after it, and submits get slower as the driver's queues grow.
const MOST_BYTES: u64 = 64 << 20;
const MOST_PIECES: u64 = 1024;
/// The same, where the driver is given each copy by a call.
const MOST_CALLS: u64 = 256;
/// Each may have a point in a stream to wait for.
const MOST_REQUESTS: usize = 32;

/// The requests that are not done, by their tickets.
pub(super) type Jobs = HashMap<Ticket, Job>;

/// Entries of one request in a flight.
pub(super) struct Part {
    pub(super) ticket: Ticket,
    pub(super) entries: Range<usize>,
}

/// What a flight takes along: the line's entries are those of its parts, in order.
#[derive(Default)]
pub(super) struct Cargo {
    pub(super) parts: Vec<Part>,
    pub(super) line: Line,
    /// Requests of which nothing waits any more.
    pub(super) given: Vec<Ticket>,
    /// Whether a checksum of it is made or compared on the device.
    pub(super) digests: bool,
}

/// Loads cargo.
pub(super) struct Loader<'a> {
    pub(super) transfers: &'a Transfers,
    pub(super) patterns: &'a Patterns,
    pub(super) slots: &'a Pinned,
    pub(super) room: Room,
    /// Whether the device can compute digests.
    pub(super) kernels: bool,
    /// Whether the driver takes many copies in one call.
    pub(super) batches: bool,
}

impl Loader<'_> {
    /// Takes entries from the front of a queue, as many as fit.
    pub(super) fn load(
        &self,
        direction: Direction,
        queue: &mut VecDeque<Ticket>,
        jobs: &mut Jobs,
    ) -> Cargo {
        let mut cargo = Cargo::default();
        let mut fence = None;
        while let Some(ticket) = queue.front().copied() {
            let job = jobs.get_mut(&ticket).expect("what waits is not done");
            // A load does not wait for another one's fence; stores wait for all that is before them.
            // From pageable memory, each goes alone.
            let same = fence.is_some() && fence == job.request.fence;
            let alike = direction == Direction::Store || same;
            let full = cargo.parts.len() == MOST_REQUESTS;
            if !cargo.parts.is_empty() && (!alike || full || self.slots.is_pageable()) {
                break;
            }
            fence = job.request.fence;
            if !self.take(direction, ticket, job, &mut cargo) {
                break;
            }
            queue.pop_front();
            cargo.given.push(ticket);
        }
        cargo
    }

    /// Takes entries of a request; whether there was room for all that were left.
    fn take(&self, direction: Direction, ticket: Ticket, job: &mut Job, cargo: &mut Cargo) -> bool {
        let (layout, memory) = (self.transfers.layout(), self.transfers.memory());
        let (first, cuts) = (job.next, self.slots.cuts());
        let mut full = false;
        while job.is_waiting() && !full {
            let (plan, index) = (&job.request.plan, job.next);
            let line = &mut cargo.line;
            line.push(layout, self.patterns, memory, cuts, plan, index);
            if line.entries.len() > 1 && !self.holds(line) {
                line.pop();
                full = true;
                break;
            }
            let place = line.entries.len() - 1;
            let wanted = direction == Direction::Store || plan.entries()[index].checksum.is_some();
            let here =
                self.kernels && !(direction == Direction::Load && line.entries[place].is_partial());
            cargo.digests |= wanted && here;
            if wanted
                && !here
                && direction == Direction::Load
                && let Err(why) = check_entry(plan, index, line, place, None)
            {
                // Before a byte of it moves.
                line.pop();
                job.fail(why);
                break;
            }
            job.next += 1;
        }
        // What had been taken of a request that failed moves for nothing, and does no harm.
        let taken = cargo.line.entries.len()
            - cargo
                .parts
                .iter()
                .map(|part| part.entries.len())
                .sum::<usize>();
        if taken > 0 {
            job.open += taken;
            let entries = first..first + taken;
            cargo.parts.push(Part { ticket, entries });
        }
        !full
    }

    fn holds(&self, line: &Line) -> bool {
        let lists = size_of_val(&*line.strided) + size_of_val(&*line.packed);
        lists <= self.room.lists
            && line.tiles as usize * size_of::<u64>() <= self.room.digests
            && line.bytes <= MOST_BYTES
            && line.pieces()
                <= if self.batches {
                    MOST_PIECES
                } else {
                    MOST_CALLS
                }
    }
}
