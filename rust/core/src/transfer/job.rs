//! One transfer on its way through the copy threads.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crossbeam_channel::Sender;

use super::completion::{Completion, Ticket};
use super::plan::{Cut, Direction, Plan};
use super::transfers::Transfers;
use crate::guarded::{lock, panic_message};
use hybrid_pages_tiles::{CopyPath, TILE_BYTES, Tile, combine, fence};

/// Bytes that a thread takes at a time: small enough that threads end together, large enough that taking it
/// costs nothing.
const STEP_BYTES: usize = 16 * TILE_BYTES;
/// Waking a thread takes as long as copying so many bytes.
const WAKE_BYTES: usize = 256 << 10;

/// The data that all jobs of one engine use.
pub(super) struct JobShared {
    pub(super) transfers: Transfers,
    pub(super) queue: Sender<JobMessage>,
    pub(super) threads: usize,
    /// Whether stores compute checksums.
    pub(super) checksums: bool,
}

impl JobShared {
    /// Gives an order to the thread that takes it first.
    pub(super) fn tell(&self, message: JobMessage) {
        // The engine keeps the receiver as long as this sender.
        let told = self.queue.send(message);
        debug_assert!(told.is_ok(), "the engine outlives its orders");
    }
}

/// An order to a copy thread.
pub(super) enum JobMessage {
    Work(Arc<TransferJob>),
    Stop,
}

/// A transfer that threads work on together, a step at a time. Each byte that is hashed is read once, and the same byte
/// is written. So a store's checksum is that of the bytes in the slots, and a load that is verified reports wrong bytes
/// after it has written them.
pub(super) struct TransferJob {
    shared: Arc<JobShared>,
    ticket: Ticket,
    plan: Plan,
    path: &'static CopyPath,
    started: Instant,
    steps: Vec<JobStep>,
    /// Index of the first step that nobody has taken.
    next: AtomicUsize,
    /// The number of threads told to work on it that have not left it.
    workers: AtomicUsize,
    /// For each entry that is hashed, the digest of each tile.
    digests: Vec<Vec<AtomicU64>>,
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
}

/// Bytes of an entry, from the start of a tile on.
#[derive(Clone)]
struct JobStep {
    entry: usize,
    range: Range<usize>,
}

impl TransferJob {
    pub(super) fn start(shared: Arc<JobShared>, plan: Plan) -> crate::error::Result<Ticket> {
        let started = Instant::now();
        let ticket = shared.transfers.start()?;
        let mut job = Self {
            ticket,
            path: CopyPath::best(plan.bytes(shared.transfers.layout())),
            shared,
            plan,
            started,
            steps: Vec::new(),
            next: AtomicUsize::new(0),
            workers: AtomicUsize::new(0),
            digests: Vec::new(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        let mut bytes = 0;
        for entry in 0..job.plan.entries().len() {
            let shard = job.shard_bytes(entry);
            bytes += shard;
            let starts = (0..shard).step_by(STEP_BYTES);
            let ranges = starts.map(|start| start..shard.min(start + STEP_BYTES));
            job.steps
                .extend(ranges.map(|range| JobStep { entry, range }));
            let tiles = if job.is_hashed(entry) {
                shard.div_ceil(TILE_BYTES)
            } else {
                0
            };
            let none = || AtomicU64::new(0);
            job.digests
                .push(std::iter::repeat_with(none).take(tiles).collect());
        }
        let most = job.shared.threads.min(bytes.div_ceil(WAKE_BYTES));
        Arc::new(job).hand_out(most);
        Ok(ticket)
    }

    /// Does one thread's share. Whatever happens in it, even a panic, the job ends. A thread that has to leave earlier,
    /// at `until`, leaves its share to another.
    pub(super) fn run(self: Arc<Self>, until: Option<Instant>) {
        self.attempt(|| self.take_steps(until));
        if self.is_left() {
            self.shared.tell(JobMessage::Work(Arc::clone(&self)));
            return;
        }
        // The last to leave sees what all others did.
        if self.workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.attempt(|| self.verify());
            self.finish();
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
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Gives the job to as many threads as can find something to do, `most` at most.
    fn hand_out(self: Arc<Self>, most: usize) {
        let workers = most.min(self.steps.len());
        if workers == 0 {
            return self.finish();
        }
        self.workers.store(workers, Ordering::Release);
        for _ in 0..workers {
            self.shared.tell(JobMessage::Work(Arc::clone(&self)));
        }
    }

    fn finish(&self) {
        let error = lock(&self.failure).take();
        let whole = error.is_none();
        let bytes = self.plan.bytes(self.shared.transfers.layout());
        let reports = whole && self.plan.direction() == Direction::Store && self.shared.checksums;
        let entries = 0..self.plan.entries().len();
        self.shared.transfers.finish(Completion {
            ticket: self.ticket,
            error,
            bytes: if whole { bytes } else { 0 },
            seconds: self.started.elapsed().as_secs_f64(),
            checksums: if reports {
                entries.map(|entry| self.checksum(entry)).collect()
            } else {
                Vec::new()
            },
        });
    }

    /// Compares the checksums of a load with the expected ones.
    fn verify(&self) -> Result<(), String> {
        if self.failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        for (entry, copy) in self.plan.entries().iter().enumerate() {
            let Some(expected) = copy.checksum else {
                continue;
            };
            let found = self.checksum(entry);
            if found != expected {
                return Err(format!(
                    "checksum of entry {entry}: expected {expected:016x}, found {found:016x}: not \
                     the bytes that left the engine, so the blocks of this load hold nothing of use"
                ));
            }
        }
        Ok(())
    }

    /// The checksum of an entry that is hashed.
    fn checksum(&self, entry: usize) -> u64 {
        let digests = self.digests[entry].iter();
        let digests = digests.map(|digest| digest.load(Ordering::Relaxed));
        combine(digests, self.shard_bytes(entry))
    }

    fn is_hashed(&self, entry: usize) -> bool {
        match self.plan.direction() {
            Direction::Store => self.shared.checksums,
            Direction::Load => self.plan.entries()[entry].checksum.is_some(),
        }
    }

    fn take_steps(&self, until: Option<Instant>) -> Result<(), String> {
        while self.is_left() && until.is_none_or(|until| Instant::now() < until) {
            let Some(step) = self.steps.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            self.copy(step);
        }
        Ok(())
    }

    /// Whether there are steps that nobody has taken.
    fn is_left(&self) -> bool {
        let taken = self.next.load(Ordering::Relaxed);
        taken < self.steps.len() && !self.failed.load(Ordering::Relaxed)
    }

    fn copy(&self, JobStep { entry, range }: &JobStep) {
        let transfers = &self.shared.transfers;
        let (layout, memory) = (transfers.layout(), transfers.memory());
        let cuts = self.plan.cuts(layout, memory, *entry, range.clone());
        let moves = cuts.map(|cut| Move::of(self.plan.direction(), cut));
        // SAFETY: the plan keeps pieces inside the two regions, whose makers promised that they can be read and
        // written; an arena and the engine's memory are different allocations. Zeros are at most a tile.
        unsafe {
            if self.is_hashed(*entry) {
                self.copy_and_hash(moves, &self.digests[*entry][range.start / TILE_BYTES..]);
            } else {
                for Move { from, to, length } in moves.filter(|part| !part.to.is_null()) {
                    self.path.copy(from, to, length);
                }
            }
        }
        fence();
    }

    /// # Safety
    /// The source of each move can be read, and its target be written or is null; they do not overlap.
    unsafe fn copy_and_hash(&self, moves: impl Iterator<Item = Move>, digests: &[AtomicU64]) {
        let mut tile = Tile::new(self.path);
        let mut digests = digests.iter();
        let mut end = |tile: &mut Tile| {
            let done = std::mem::replace(tile, Tile::new(self.path));
            if let Some(digest) = digests.next() {
                digest.store(done.digest(), Ordering::Relaxed);
            }
        };
        for mut part in moves {
            while part.length > 0 {
                let now = part.split(tile.room());
                // SAFETY: the caller keeps the rules of the function.
                unsafe { tile.pass(now.from, now.to, now.length) };
                if tile.room() == 0 {
                    end(&mut tile);
                }
            }
        }
        if tile.room() < TILE_BYTES {
            end(&mut tile);
        }
    }

    /// Bytes of one entry on this rank.
    fn shard_bytes(&self, entry: usize) -> usize {
        let class = self.plan.entries()[entry].class;
        self.shared.transfers.layout().geometry().classes()[class].rank_bytes
    }
}

/// The source of the bytes that a store writes for tokens that are not there.
static ZEROS: [u8; TILE_BYTES] = [0; TILE_BYTES];

/// Bytes that move from one place to another, or to none if a load leaves them out.
struct Move {
    from: *const u8,
    to: *mut u8,
    length: usize,
}

impl Move {
    fn of(direction: Direction, cut: Cut) -> Self {
        let (from, to) = match direction {
            Direction::Store => {
                let zeros = ZEROS.as_ptr().cast_mut();
                (cut.engine.unwrap_or(zeros), cut.arena)
            }
            Direction::Load => (cut.arena, cut.engine.unwrap_or(std::ptr::null_mut())),
        };
        let length = cut.length;
        Self { from, to, length }
    }

    /// Takes at most so many bytes off its front.
    fn split(&mut self, most: usize) -> Self {
        let length = self.length.min(most);
        let front = Self { length, ..*self };
        self.from = self.from.wrapping_add(length);
        if !self.to.is_null() {
            self.to = self.to.wrapping_add(length);
        }
        self.length -= length;
        front
    }
}

#[cfg(test)]
#[path = "../../../../tests/rust/core/inside/job.rs"]
mod tests;
