//! One transfer on its way through the copy threads.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crossbeam_channel::Sender;
use xxhash_rust::xxh3::Xxh3;

use super::board::Board;
use super::checksum::InOrder;
use super::engine::{Completion, Ticket};
use super::layout::Layout;
use super::lock;
use super::plan::{Direction, Plan};
use super::region::SlotMemory;

/// Work is cut into steps of this size: small enough that a step just copied is still in a
/// core's cache when it is hashed, large enough that handing it out costs nothing.
pub(super) const STEP_BYTES: usize = 512 << 10;

/// What jobs of one engine share.
pub(super) struct Shared {
    pub(super) layout: Layout,
    pub(super) memory: SlotMemory,
    pub(super) board: Board,
    pub(super) queue: Sender<Message>,
}

/// What a copy thread is told.
pub(super) enum Message {
    Run(Arc<Job>, Step),
    Stop,
}

/// What one thread does in one go.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// Compare an entry in the arena with the checksum it was submitted with.
    Verify { entry: usize },
    /// Copy a part of an entry; after a store, hash what is due.
    Copy { entry: usize, step: usize },
}

/// A load runs in two phases, verify and copy: bytes that are not those that left the engine
/// never reach it. A store copies and hashes in one.
pub(super) struct Job {
    shared: Arc<Shared>,
    ticket: Ticket,
    plan: Plan,
    started: Instant,
    /// Steps of the current phase that have not ended.
    remaining: AtomicUsize,
    failure: Mutex<Option<String>>,
    sums: Vec<InOrder>,
}

impl Job {
    pub(super) fn start(shared: Arc<Shared>, plan: Plan) -> crate::error::Result<Ticket> {
        let started = Instant::now();
        let sums = match plan.direction() {
            Direction::Load => Vec::new(),
            Direction::Store => {
                let steps = |entry| InOrder::new(steps(part_bytes(&shared, &plan, entry)));
                (0..plan.entries().len()).map(steps).collect()
            }
        };
        let ticket = shared.board.start()?;
        let failure = Mutex::new(None);
        let remaining = AtomicUsize::new(0);
        let job = Arc::new(Self {
            shared,
            ticket,
            plan,
            started,
            remaining,
            failure,
            sums,
        });
        let entries = job.plan.entries().iter().enumerate();
        let verify = entries.filter(|(_, entry)| entry.checksum.is_some());
        let verify: Vec<_> = verify.map(|(entry, _)| Step::Verify { entry }).collect();
        if verify.is_empty() {
            job.copy()
        } else {
            job.hand_out(verify)
        }
        Ok(ticket)
    }

    /// Runs one step. Whatever happens in it, even a panic, the transfer comes to an end.
    pub(super) fn run(self: &Arc<Self>, step: Step) {
        self.attempt(|| match step {
            Step::Verify { entry } => self.verify(entry),
            Step::Copy { entry, step } => self.copy_step(entry, step),
        });
        // The last step of a phase sees what all others did.
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            match step {
                Step::Verify { .. } if lock(&self.failure).is_none() => self.copy(),
                _ => self.finish(),
            }
        }
    }

    fn attempt(&self, act: impl FnOnce() -> Result<(), String>) {
        if lock(&self.failure).is_some() {
            return;
        }
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

    fn copy(self: &Arc<Self>) {
        let parts = (0..self.plan.entries().len()).map(|entry| (entry, self.part_bytes(entry)));
        let steps = parts.flat_map(|(entry, bytes)| {
            (0..steps(bytes)).map(move |step| Step::Copy { entry, step })
        });
        self.hand_out(steps.collect());
    }

    fn hand_out(self: &Arc<Self>, steps: Vec<Step>) {
        if steps.is_empty() {
            return self.finish();
        }
        self.remaining.store(steps.len(), Ordering::Release);
        for step in steps {
            // The threads only stop when no transfer runs: this one runs.
            let sent = self.shared.queue.send(Message::Run(Arc::clone(self), step));
            debug_assert!(sent.is_ok(), "copy threads outlive transfers");
        }
    }

    fn finish(&self) {
        let error = lock(&self.failure).take();
        let whole = error.is_none();
        let bytes = (0..self.plan.entries().len())
            .map(|entry| self.part_bytes(entry))
            .sum();
        let checksums: Option<Vec<u64>> = self.sums.iter().map(InOrder::value).collect();
        self.shared.board.finish(Completion {
            ticket: self.ticket,
            error,
            bytes: if whole { bytes } else { 0 },
            seconds: self.started.elapsed().as_secs_f64(),
            checksums: checksums.filter(|_| whole).unwrap_or_default(),
        });
    }

    fn verify(&self, entry: usize) -> Result<(), String> {
        let Some(expected) = self.plan.entries()[entry].checksum else {
            return Ok(());
        };
        let mut hasher = Box::new(Xxh3::new());
        self.hash(entry, 0..self.part_bytes(entry), &mut hasher);
        let found = hasher.digest();
        if found != expected {
            return Err(format!(
                "checksum of entry {entry}: expected {expected:016x}, found {found:016x}: not \
                 the bytes that left the engine, nothing was loaded"
            ));
        }
        Ok(())
    }

    fn copy_step(&self, entry: usize, step: usize) -> Result<(), String> {
        let Shared { layout, memory, .. } = &*self.shared;
        let pieces = self
            .plan
            .pieces(layout, memory, entry, self.range(entry, step));
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
                self.sums[entry].ready(step, |due, hasher| {
                    self.hash(entry, self.range(entry, due), hasher);
                });
            }
        }
        Ok(())
    }

    fn hash(&self, entry: usize, range: Range<usize>, hasher: &mut Xxh3) {
        let Shared { layout, memory, .. } = &*self.shared;
        for stretch in self.plan.stretches(layout, memory, entry, range) {
            // SAFETY: the plan keeps stretches inside the arena, and its slots belong to this
            // transfer: those of a store were written by steps that ended before this one began,
            // those of a load are only read.
            let bytes = unsafe { std::slice::from_raw_parts(stretch.arena, stretch.length) };
            hasher.update(bytes);
        }
    }

    fn range(&self, entry: usize, step: usize) -> Range<usize> {
        let start = step * STEP_BYTES;
        start..(start + STEP_BYTES).min(self.part_bytes(entry))
    }

    fn part_bytes(&self, entry: usize) -> usize {
        part_bytes(&self.shared, &self.plan, entry)
    }
}

/// Bytes of one entry on this rank.
fn part_bytes(shared: &Shared, plan: &Plan, entry: usize) -> usize {
    shared.layout.geometry().classes()[plan.entries()[entry].class].rank_bytes
}

fn steps(bytes: usize) -> usize {
    bytes.div_ceil(STEP_BYTES)
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::geometry::{Dtype, Geometry, Group, Layer, Segment};
    use crate::ids::{ClassKind, SlotId};
    use crate::transfer::{Entry, LayerMap, Region, Run};

    #[test]
    fn a_panic_in_a_step_ends_the_transfer_as_failed() {
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
        let layout = Layout::new(geometry, 0, 1, &[map]).unwrap();
        let (queue, messages) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared {
            layout,
            memory,
            board: Board::default(),
            queue,
        });
        let entry = Entry {
            class: 0,
            slots: vec![SlotId(0)],
            blocks: vec![0],
            checksum: None,
        };
        let plan = Plan::new(
            &shared.layout,
            &shared.memory,
            Direction::Store,
            vec![entry],
        )
        .unwrap();
        let ticket = Job::start(Arc::clone(&shared), plan).unwrap();
        let Ok(Message::Run(job, _)) = messages.try_recv() else {
            panic!("expected a step")
        };

        job.run(Step::Copy { entry: 7, step: 0 });

        let completions = shared.board.poll();
        assert_eq!((completions.len(), completions[0].ticket), (1, ticket));
        let why = completions[0].error.as_deref().unwrap();
        assert!(
            why.contains("a copy thread panicked: index out of bounds"),
            "{why}"
        );
        assert_eq!((completions[0].bytes, shared.board.in_flight()), (0, 0));
    }
}
