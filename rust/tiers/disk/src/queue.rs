//! The queue of copies that wait for a thread. Reads go before writes, since requests wait for them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar};

use crate::job::{DiskDirection, DiskJob};
use hybrid_pages_tiers::{PriorityMutex, lock};

/// Work for a thread.
pub(crate) enum DiskWork {
    /// A write that needs a cell.
    Place(Arc<DiskJob>),
    /// A piece of a copy, given by its number.
    Piece(Arc<DiskJob>, usize),
    /// Reads of small entries in adjacent cells, in the order of cells.
    Row(Vec<Arc<DiskJob>>),
}

/// Most bytes that one call reads: enough to keep a disk busy, and few enough that the reads of a request are shared
/// between threads.
const ROW_BYTES: u64 = 512 << 10;

#[derive(Debug, Default)]
struct Waiting {
    reads: VecDeque<(Arc<DiskJob>, usize)>,
    writes: VecDeque<(Arc<DiskJob>, usize)>,
    /// Writes that need a cell.
    placeless: VecDeque<Arc<DiskJob>>,
    /// Whether a thread is looking for a cell for a write. Only one does at a time, since it may have to remove a
    /// directory first.
    placing: bool,
    stopped: bool,
    /// The number of the current crew. Threads of older crews end.
    crew: u64,
}

/// Copies that wait for threads.
#[derive(Debug, Default)]
pub(crate) struct JobQueue {
    waiting: PriorityMutex<Waiting>,
    changed: Condvar,
}

impl JobQueue {
    /// Adds a copy. A write first waits for a cell.
    pub(crate) fn add(&self, job: Arc<DiskJob>) {
        let mut waiting = lock(&self.waiting);
        match job.direction {
            DiskDirection::Read => waiting.reads.push_back((job, 0)),
            DiskDirection::Write => waiting.placeless.push_back(job),
        }
        drop(waiting);
        self.changed.notify_all();
    }

    /// Reports that a write has got its cell, or with `None`, that there is none for it. The write's pieces go before
    /// the next write gets a cell.
    pub(crate) fn placed(&self, job: Option<Arc<DiskJob>>) {
        let mut waiting = lock(&self.waiting);
        waiting.placing = false;
        waiting.writes.extend(job.map(|job| (job, 0)));
        drop(waiting);
        self.changed.notify_all();
    }

    /// Waits for work. `None` means that the thread shall end.
    pub(crate) fn next(&self, crew: u64) -> Option<DiskWork> {
        let mut found = None;
        let waited = lock(&self.waiting).wait_while(&self.changed, None, |waiting| {
            if waiting.stopped || waiting.crew != crew {
                return false;
            }
            found = waiting.take();
            found.is_none()
        });
        drop(waited);
        found
    }

    /// Makes threads of older crews end; they take nothing more from the queue. Returns the new crew's number.
    pub(crate) fn new_crew(&self) -> u64 {
        let mut waiting = lock(&self.waiting);
        waiting.crew += 1;
        waiting.placing = false;
        let crew = waiting.crew;
        drop(waiting);
        self.changed.notify_all();
        crew
    }

    /// Empties the queue. Returns its copies, each with the number of pieces that no thread will do.
    pub(crate) fn clear(&self) -> Vec<(Arc<DiskJob>, usize)> {
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

    /// Whether there was a panic while the queue was locked.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.waiting.is_poisoned()
    }

    /// Makes all threads end.
    pub(crate) fn stop(&self) {
        lock(&self.waiting).stopped = true;
        self.changed.notify_all();
    }
}

impl Waiting {
    fn take(&mut self) -> Option<DiskWork> {
        let row = self.take_row();
        if !row.is_empty() {
            return Some(DiskWork::Row(row));
        }
        for pieces in [&mut self.reads, &mut self.writes] {
            if let Some((job, piece)) = pieces.front_mut() {
                let work = DiskWork::Piece(Arc::clone(job), *piece);
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
        Some(DiskWork::Place(job))
    }

    /// Takes the next reads that one call can do together.
    fn take_row(&mut self) -> Vec<Arc<DiskJob>> {
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
