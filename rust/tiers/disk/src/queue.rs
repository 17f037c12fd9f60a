//! Pieces of copies that wait for a thread. Reads go before writes: somebody waits for them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use crate::job::{Direction, Job};
use crate::lock;

/// What a thread is to do next.
pub(crate) enum Work {
    /// A write needs a cell.
    Place(Arc<Job>),
    /// A piece of a copy, by its number.
    Piece(Arc<Job>, usize),
    /// Reads of small entries in adjacent cells, in their order.
    Row(Vec<Arc<Job>>),
}

/// Most bytes that are read together: enough that a disk is busy with them, and so few that the threads share
/// what a request waits for.
const ROW_BYTES: u64 = 512 << 10;

#[derive(Debug, Default)]
struct Waiting {
    reads: VecDeque<(Arc<Job>, usize)>,
    writes: VecDeque<(Arc<Job>, usize)>,
    /// Writes that need a cell.
    placeless: VecDeque<Arc<Job>>,
    /// A thread finds cells for writes: one at a time, since it may have to remove a directory first.
    placing: bool,
    stopped: bool,
    /// Threads of older crews leave.
    crew: u64,
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Queue {
    /// Adds a copy. A write gets its cell first.
    pub(crate) fn add(&self, job: Arc<Job>) {
        let mut waiting = lock(&self.waiting);
        match job.direction {
            Direction::Read => waiting.reads.push_back((job, 0)),
            Direction::Write => waiting.placeless.push_back(job),
        }
        drop(waiting);
        self.changed.notify_all();
    }

    /// The write that a thread was to find a cell for has one, or `None`: there is none. Before others get
    /// theirs, its pieces are written.
    pub(crate) fn placed(&self, job: Option<Arc<Job>>) {
        let mut waiting = lock(&self.waiting);
        waiting.placing = false;
        waiting.writes.extend(job.map(|job| (job, 0)));
        drop(waiting);
        self.changed.notify_all();
    }

    /// Waits for work; `None`: the thread is to leave.
    pub(crate) fn next(&self, crew: u64) -> Option<Work> {
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.stopped || waiting.crew != crew {
                return None;
            }
            if let Some(work) = waiting.take() {
                return Some(work);
            }
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Has threads of older crews leave; they touch nothing that is queued. Returns the new crew.
    pub(crate) fn new_crew(&self) -> u64 {
        let mut waiting = lock(&self.waiting);
        waiting.crew += 1;
        waiting.placing = false;
        let crew = waiting.crew;
        drop(waiting);
        self.changed.notify_all();
        crew
    }

    /// Drops what waits: copies, each with the number of its pieces that no thread will do.
    pub(crate) fn clear(&self) -> Vec<(Arc<Job>, usize)> {
        let mut waiting = lock(&self.waiting);
        let Waiting {
            reads,
            writes,
            placeless,
            ..
        } = &mut *waiting;
        let begun = reads.drain(..).chain(writes.drain(..));
        let begun = begun.map(|(job, next)| {
            let left = job.pieces - next;
            (job, left)
        });
        let rest = placeless.drain(..).map(|job| {
            let left = job.pieces;
            (job, left)
        });
        begun.chain(rest).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let waiting = lock(&self.waiting);
        waiting.reads.is_empty() && waiting.writes.is_empty() && waiting.placeless.is_empty()
    }

    /// Whether a panic has left what waits in doubt.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.waiting.is_poisoned()
    }

    /// Has all threads leave.
    pub(crate) fn stop(&self) {
        lock(&self.waiting).stopped = true;
        self.changed.notify_all();
    }
}

impl Waiting {
    fn take(&mut self) -> Option<Work> {
        let row = self.take_row();
        if !row.is_empty() {
            return Some(Work::Row(row));
        }
        for pieces in [&mut self.reads, &mut self.writes] {
            if let Some((job, piece)) = pieces.front_mut() {
                let work = Work::Piece(Arc::clone(job), *piece);
                *piece += 1;
                if *piece == job.pieces {
                    pieces.pop_front();
                }
                return Some(work);
            }
        }
        if self.placing {
            return None;
        }
        let job = self.placeless.pop_front()?;
        self.placing = true;
        Some(Work::Place(job))
    }

    /// The reads that come next, if one call may do several of them.
    fn take_row(&mut self) -> Vec<Arc<Job>> {
        let follows = |count: &usize| {
            let (last, next) = (&self.reads[count - 1].0, &self.reads[*count].0);
            let bytes = (*count as u64 + 1) * next.cell_bytes;
            last.is_before(next) && bytes <= ROW_BYTES
        };
        let first_apart = (1..self.reads.len()).find(|count| !follows(count));
        let count = first_apart.unwrap_or(self.reads.len());
        if count < 2 {
            return Vec::new();
        }
        self.reads.drain(..count).map(|(job, _)| job).collect()
    }
}
