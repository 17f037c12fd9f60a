//! One transfer on its way through the copy threads.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crossbeam_channel::Sender;

use super::checksum::{TILE_BYTES, combine, digest_parts};
use super::completion::{Completion, Ticket};
use super::plan::{Direction, Plan};
use super::transfers::Transfers;
use super::{lock, panic_message};

/// A store copies and hashes in steps that stay in a core's cache in between.
const STORE_STEP: usize = 8 * TILE_BYTES;
/// A load only copies: its steps are large enough that handing them out costs nothing.
const LOAD_STEP: usize = 1 << 20;

/// The things that all jobs of one engine use.
pub(super) struct Shared {
    pub(super) transfers: Transfers,
    pub(super) queue: Sender<Message>,
    pub(super) threads: usize,
}

/// An order to a copy thread.
pub(super) enum Message {
    Work(Arc<Job>, Phase),
    Stop,
}

/// A load verifies, then copies: bytes that are not those that left the engine never reach it.
/// A store only copies, and hashes what it has just copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Verify,
    Copy,
}

/// Threads work on a job together. Each takes entries that nobody has begun, so that it hashes
/// what its own core has just copied, and in the end helps with those that others have begun.
pub(super) struct Job {
    shared: Arc<Shared>,
    ticket: Ticket,
    plan: Plan,
    started: Instant,
    /// Threads told to work on the current phase that have not left it.
    workers: AtomicUsize,
    /// The next entry that nobody has begun in this phase.
    next_entry: AtomicUsize,
    /// The next step of each entry.
    next_steps: Vec<AtomicUsize>,
    /// Of a store: the digest of each tile of each entry.
    digests: Vec<Vec<AtomicU64>>,
    failure: Mutex<Option<String>>,
}

impl Job {
    pub(super) fn start(shared: Arc<Shared>, plan: Plan) -> crate::error::Result<Ticket> {
        let started = Instant::now();
        let ticket = shared.transfers.start()?;
        let entries = plan.entries().len();
        let mut job = Self {
            shared,
            ticket,
            plan,
            started,
            workers: AtomicUsize::new(0),
            next_entry: AtomicUsize::new(0),
            next_steps: (0..entries).map(|_| AtomicUsize::new(0)).collect(),
            digests: Vec::new(),
            failure: Mutex::new(None),
        };
        if job.plan.direction() == Direction::Store {
            let tiles = |entry| job.shard_bytes(entry).div_ceil(TILE_BYTES);
            job.digests = (0..entries)
                .map(|entry| (0..tiles(entry)).map(|_| AtomicU64::new(0)).collect())
                .collect();
        }
        let verify = job
            .plan
            .entries()
            .iter()
            .filter(|entry| entry.checksum.is_some())
            .count();
        let job = Arc::new(job);
        if verify > 0 {
            job.hand_out(Phase::Verify, verify)
        } else {
            job.hand_out_copies()
        }
        Ok(ticket)
    }

    /// One thread's share of a phase. Whatever happens in it, even a panic, the job ends.
    pub(super) fn run(self: &Arc<Self>, phase: Phase) {
        self.attempt(|| match phase {
            Phase::Verify => self.verify_entries(),
            Phase::Copy => self.copy_entries(),
        });
        // The last to leave a phase sees what all others did.
        if self.workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            match phase {
                Phase::Verify if !self.has_failed() => self.hand_out_copies(),
                _ => self.finish(),
            }
        }
    }

    fn attempt(&self, act: impl FnOnce() -> Result<(), String>) {
        let outcome = catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
            Err(format!(
                "a copy thread panicked: {}",
                panic_message(panic.as_ref())
            ))
        });
        if let Err(why) = outcome {
            lock(&self.failure).get_or_insert(why);
        }
    }

    fn has_failed(&self) -> bool {
        lock(&self.failure).is_some()
    }

    fn hand_out_copies(self: &Arc<Self>) {
        let steps = (0..self.plan.entries().len())
            .map(|entry| self.steps(entry))
            .sum();
        self.hand_out(Phase::Copy, steps);
    }

    /// Tells as many threads as can find something to do.
    fn hand_out(self: &Arc<Self>, phase: Phase, tasks: usize) {
        let workers = tasks.min(self.shared.threads);
        if workers == 0 {
            return self.finish();
        }
        self.next_entry.store(0, Ordering::Relaxed);
        self.workers.store(workers, Ordering::Release);
        for _ in 0..workers {
            // The threads only stop when no transfer runs: this one runs.
            let sent = self
                .shared
                .queue
                .send(Message::Work(Arc::clone(self), phase));
            debug_assert!(sent.is_ok(), "copy threads outlive transfers");
        }
    }

    fn finish(&self) {
        let error = lock(&self.failure).take();
        let whole = error.is_none();
        let bytes = self.plan.bytes(self.shared.transfers.layout());
        let checksums = if whole { self.checksums() } else { Vec::new() };
        self.shared.transfers.finish(Completion {
            ticket: self.ticket,
            error,
            bytes: if whole { bytes } else { 0 },
            seconds: self.started.elapsed().as_secs_f64(),
            checksums,
        });
    }

    fn checksums(&self) -> Vec<u64> {
        let of = |(entry, digests): (usize, &Vec<AtomicU64>)| {
            let digests = digests.iter().map(|digest| digest.load(Ordering::Relaxed));
            combine(digests, self.shard_bytes(entry))
        };
        self.digests.iter().enumerate().map(of).collect()
    }

    fn verify_entries(&self) -> Result<(), String> {
        while let Some(entry) = self.begin_entry() {
            self.verify(entry)?;
        }
        Ok(())
    }

    fn copy_entries(&self) -> Result<(), String> {
        while let Some(entry) = self.begin_entry() {
            self.copy_steps(entry);
        }
        (0..self.plan.entries().len()).for_each(|entry| self.copy_steps(entry));
        Ok(())
    }

    /// An entry that nobody has begun; none once the job has failed.
    fn begin_entry(&self) -> Option<usize> {
        let entry = self.next_entry.fetch_add(1, Ordering::Relaxed);
        (entry < self.plan.entries().len() && !self.has_failed()).then_some(entry)
    }

    fn verify(&self, entry: usize) -> Result<(), String> {
        let Some(expected) = self.plan.entries()[entry].checksum else {
            return Ok(());
        };
        let bytes = self.shard_bytes(entry);
        let digests = (0..bytes.div_ceil(TILE_BYTES)).map(|tile| self.digest(entry, tile));
        let found = combine(digests, bytes);
        if found != expected {
            return Err(format!(
                "checksum of entry {entry}: expected {expected:016x}, found {found:016x}: not \
                 the bytes that left the engine, nothing was loaded"
            ));
        }
        Ok(())
    }

    /// Those steps of an entry that no other thread takes.
    fn copy_steps(&self, entry: usize) {
        loop {
            let step = self.next_steps[entry].fetch_add(1, Ordering::Relaxed);
            if step >= self.steps(entry) || self.has_failed() {
                return;
            }
            self.copy_step(entry, step);
        }
    }

    fn copy_step(&self, entry: usize, step: usize) {
        let transfers = &self.shared.transfers;
        let range = self.range(entry, step);
        let pieces = self
            .plan
            .pieces(transfers.layout(), transfers.memory(), entry, range);
        match self.plan.direction() {
            Direction::Load => {
                for piece in pieces {
                    // SAFETY: the plan keeps pieces inside the two regions, whose makers promised
                    // that they can be read and written; an arena and the engine's memory are
                    // different allocations.
                    unsafe {
                        piece
                            .arena
                            .copy_to_nonoverlapping(piece.engine, piece.length)
                    };
                }
            }
            Direction::Store => {
                for piece in pieces {
                    // SAFETY: as above, the other way round.
                    unsafe {
                        piece
                            .engine
                            .copy_to_nonoverlapping(piece.arena, piece.length)
                    };
                }
                let first = step * (STORE_STEP / TILE_BYTES);
                let tiles = self.digests[entry].iter().enumerate().skip(first);
                for (tile, digest) in tiles.take(STORE_STEP / TILE_BYTES) {
                    digest.store(self.digest(entry, tile), Ordering::Relaxed);
                }
            }
        }
    }

    fn digest(&self, entry: usize, tile: usize) -> u64 {
        let transfers = &self.shared.transfers;
        let start = tile * TILE_BYTES;
        let range = start..(start + TILE_BYTES).min(self.shard_bytes(entry));
        let stretches = self.plan.stretches(transfers.memory(), entry, range);
        digest_parts(stretches.map(|stretch| {
            // SAFETY: the plan keeps stretches inside the arena, and its slots belong to this
            // transfer: those of a store were written by this thread in the same step, those of a
            // load are only read.
            unsafe { std::slice::from_raw_parts(stretch.arena, stretch.length) }
        }))
    }

    fn range(&self, entry: usize, step: usize) -> Range<usize> {
        let start = step * self.step_bytes();
        start..(start + self.step_bytes()).min(self.shard_bytes(entry))
    }

    fn steps(&self, entry: usize) -> usize {
        self.shard_bytes(entry).div_ceil(self.step_bytes())
    }

    fn step_bytes(&self) -> usize {
        match self.plan.direction() {
            Direction::Store => STORE_STEP,
            Direction::Load => LOAD_STEP,
        }
    }

    /// Bytes of one entry on this rank.
    fn shard_bytes(&self, entry: usize) -> usize {
        let class = self.plan.entries()[entry].class;
        self.shared.transfers.layout().geometry().classes()[class].rank_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::geometry::{Dtype, Geometry, Group, Layer, Segment};
    use crate::ids::{ClassKind, SlotId};
    use crate::transfer::{EntryCopy, LayerMap, Layout, Region, Run, SlotMemory};

    #[test]
    fn a_panic_in_a_copy_thread_ends_the_transfer_as_failed() {
        let segment = Segment::new("data", Dtype::Uint8, vec![8]).unwrap();
        let layer = Layer::new("layer", vec![segment]).unwrap();
        let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
        let geometry = Arc::new(Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap());
        let mut bytes = [0_u8; 8];
        // SAFETY: nothing is copied.
        let region = unsafe { Region::new(bytes.as_mut_ptr(), 8).unwrap() };
        let runs = vec![Run {
            offset: 0,
            length: 8,
        }];
        let map = LayerMap {
            group: 0,
            layer: 0,
            region,
            block_stride: 8,
            runs,
        };
        let memory = SlotMemory::new(region, 8, 1, *geometry.fingerprint(), Arc::new(())).unwrap();
        let layout = Layout::new(geometry, 0, &[1], &[map]).unwrap();
        let (queue, messages) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared {
            transfers: Transfers::new(layout, memory, "").unwrap(),
            queue,
            threads: 1,
        });
        let entry = EntryCopy {
            class: 0,
            slots: vec![SlotId(0)],
            blocks: vec![Some(0)],
            checksum: None,
        };
        let plan = shared
            .transfers
            .plan(Direction::Store, vec![entry])
            .unwrap();
        let ticket = Job::start(Arc::clone(&shared), plan).unwrap();
        let Ok(Message::Work(job, phase)) = messages.try_recv() else {
            panic!("expected work")
        };

        job.attempt(|| job.verify(7));
        job.run(phase);

        let completions = shared.transfers.poll();
        assert_eq!((completions.len(), completions[0].ticket), (1, ticket));
        let why = completions[0].error.as_deref().unwrap();
        assert!(
            why.contains("a copy thread panicked: index out of bounds"),
            "{why}"
        );
        assert_eq!((completions[0].bytes, shared.transfers.in_flight()), (0, 0));
    }
}
