//! The engine's thread: gives batches to streams, and reports transfers that have ended.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use hybrid_pages::error::{Cause, Error};
use hybrid_pages::transfer::{Completion, Direction, Ticket, Transfers, panic_message};

use crate::driver::Device;
use crate::error::{CudaError, Result};
use crate::payload::Patterns;

use super::batch::{BatchBuilder, BatchPart, CopyBatch, RunningTransfers, Way};
use super::buffers::{MOST_IN_FLIGHT, STAGING_BUFFERS};
use super::device_streams::{DeviceStreams, SubmitError};
use super::digests::{check_entry, checksum};
use super::stream_pair::{CopyMethod, Submission};
use super::transfer::{RunningTransfer, SubmittedTransfer};

/// Time between two checks whether batches have ended. A check reads memory and calls no driver.
const LOOK: Duration = Duration::from_micros(20);
/// Time after the start of a batch in which the thread checks without pause: small batches end within it.
const EAGER: Duration = Duration::from_micros(200);
/// How late the system may wake the thread, in nanoseconds. The default is longer than the thread sleeps.
#[cfg(target_os = "linux")]
const TIMER_SLACK: u64 = 1_000;
/// Time between two checks whether the device still works: a broken device writes no completion words.
const CHECK: Duration = Duration::from_millis(20);
/// Most batches of loads that stores wait for.
const PATIENCE: usize = 16;

/// The state that an engine shares with its thread.
pub(super) struct EngineState {
    pub(super) transfers: Transfers,
    /// The error that broke the device. After it, every transfer fails.
    pub(super) broken: OnceLock<CudaError>,
}

impl EngineState {
    pub(super) fn new(transfers: Transfers) -> Self {
        Self {
            transfers,
            broken: OnceLock::new(),
        }
    }
}

/// A message from an engine to its thread.
pub(super) enum WorkerCommand {
    Transfer(Box<SubmittedTransfer>),
    Stop,
}

/// A batch that the streams work on.
struct BatchInFlight {
    batch: CopyBatch,
    number: u64,
    /// The index of the batch's buffers.
    index: usize,
    /// The staging buffer that the batch uses.
    staging: Option<usize>,
}

struct Worker {
    shared: Arc<EngineState>,
    device: Arc<Device>,
    streams: DeviceStreams,
    kernel_below: u64,
    patterns: Patterns,
    running: RunningTransfers,
    /// Batches under way of each direction, in the order in which they began.
    in_flight: [VecDeque<BatchInFlight>; 2],
    /// Transfers of each direction that have entries in no batch yet.
    waiting: [VecDeque<Ticket>; 2],
    /// Number of batches made so far; a batch gets this as its number.
    numbers: u64,
    /// Number of batches of each direction that the streams took.
    begun: [usize; 2],
    /// Number of batches of loads that began while stores waited.
    passed: usize,
    checked: Instant,
}

pub(super) fn spawn(
    shared: Arc<EngineState>,
    device: Arc<Device>,
    streams: DeviceStreams,
    patterns: Patterns,
    kernel_below: usize,
    commands: Receiver<WorkerCommand>,
) -> Result<JoinHandle<()>> {
    let worker = Worker {
        shared,
        device,
        streams,
        kernel_below: kernel_below as u64,
        patterns,
        running: RunningTransfers::new(),
        in_flight: [VecDeque::new(), VecDeque::new()],
        waiting: [VecDeque::new(), VecDeque::new()],
        numbers: 0,
        begun: [0; 2],
        passed: 0,
        checked: Instant::now(),
    };
    Builder::new()
        .name("hybrid-pages-cuda".into())
        .spawn(move || worker.run(&commands))
        .map_err(|error| {
            let text = format!("the engine's thread cannot start: {error}");
            CudaError::Core(Error::transfer(Cause::new(text, error)))
        })
}

impl Worker {
    fn run(mut self, commands: &Receiver<WorkerCommand>) {
        // If this fails, the thread only checks less often.
        #[cfg(target_os = "linux")]
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(TIMER_SLACK));
        let mut stopping = false;
        let mut begun = (0, Instant::now());
        while !(stopping && self.running.is_empty()) {
            if self.numbers > begun.0 {
                begun = (self.numbers, Instant::now());
            }
            let command = if self.running.is_empty() {
                commands.recv().map_err(RecvTimeoutError::from)
            } else if begun.1.elapsed() < EAGER {
                std::thread::yield_now();
                commands.recv_timeout(Duration::ZERO)
            } else {
                commands.recv_timeout(LOOK)
            };
            let mut next = Some(command);
            while let Some(command) = next {
                match command {
                    Ok(WorkerCommand::Transfer(submitted)) => self.accept(*submitted),
                    Ok(WorkerCommand::Stop) | Err(RecvTimeoutError::Disconnected) => {
                        stopping = true
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
                // Transfers that wait may share a batch.
                next = commands.try_recv().ok().map(Ok);
            }
            match caught(|| self.advance()) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.break_down(&error),
                Err(why) => self.break_down(&CudaError::Core(Error::transfer(why))),
            }
        }
    }

    fn accept(&mut self, submitted: SubmittedTransfer) {
        let (ticket, direction) = (submitted.ticket, submitted.plan.direction());
        let transfer = RunningTransfer::new(submitted);
        if let Some(error) = self.shared.broken.get() {
            let SubmittedTransfer {
                ticket, started, ..
            } = transfer.submitted;
            let failed = Completion::failed(ticket, started, error.to_string());
            self.shared.transfers.finish(failed);
        } else if transfer.has_ended() {
            self.shared.transfers.finish(transfer.completion());
        } else {
            if self.running.is_empty() {
                self.checked = Instant::now();
            }
            self.running.insert(ticket, transfer);
            self.waiting[direction as usize].push_back(ticket);
        }
    }

    /// Finishes batches that have ended, and begins those that may begin.
    fn advance(&mut self) -> Result<()> {
        for direction in [Direction::Load, Direction::Store] {
            while let Some(first) = self.in_flight[direction as usize].front()
                && self
                    .streams
                    .of(direction)
                    .has_ended(first.number, first.index)?
            {
                if let Some(ended) = self.in_flight[direction as usize].pop_front() {
                    self.finish(direction, ended);
                }
            }
        }
        if self.in_flight.iter().any(|batches| !batches.is_empty())
            && self.checked.elapsed() >= CHECK
        {
            self.streams.check()?;
            self.checked = Instant::now();
        }
        while self.may_begin(Direction::Load)? {
            self.passed += usize::from(!self.waiting[Direction::Store as usize].is_empty());
            self.begin(Direction::Load);
        }
        while self.may_begin(Direction::Store)? {
            self.passed = 0;
            self.begin(Direction::Store);
        }
        Ok(())
    }

    fn may_begin(&mut self, direction: Direction) -> Result<bool> {
        let side = direction as usize;
        // A transfer that failed is not copied on; it ends with those of its batches that are under way.
        while let Some(front) = self.waiting[side].front()
            && !self.running[front].is_waiting()
        {
            self.waiting[side].pop_front();
        }
        let Some(next) = self.waiting[side].front() else {
            return Ok(false);
        };
        if self.in_flight[side].len() == MOST_IN_FLIGHT || self.free_staging(side).is_none() {
            return Ok(false);
        }
        let transfer = &self.running[next];
        let entry = &transfer.submitted.plan.entries()[transfer.next];
        if !self.streams.slots().are_pinned(&entry.slots) {
            // A copy of pageable memory may block this thread until the device gets to it. So it begins only when the
            // compute stream is done; other copies go on.
            let _entered = self.device.enter()?;
            return transfer.submitted.after.event().query();
        }
        let load = Direction::Load as usize;
        let loads = !self.in_flight[load].is_empty() || !self.waiting[load].is_empty();
        let paused = direction == Direction::Store && loads && self.passed < PATIENCE;
        Ok(!paused)
    }

    /// A staging buffer that no batch uses, if there are any.
    fn free_staging(&self, side: usize) -> Option<usize> {
        let used = |buffer| {
            let mut batches = self.in_flight[side].iter();
            batches.any(|batch| batch.staging == Some(buffer))
        };
        (0..STAGING_BUFFERS).find(|buffer| !used(*buffer))
    }

    /// Makes a batch and gives it to the streams. Its transfers end in any case, even after a panic.
    fn begin(&mut self, direction: Direction) {
        let builder = BatchBuilder {
            transfers: &self.shared.transfers,
            patterns: &self.patterns,
            slots: self.streams.slots(),
            sizes: self.streams.of(direction).buffers().sizes(),
            kernels: self.streams.has_kernels(),
            kernel_below: self.kernel_below,
            batched_copies: self.streams.batches_copies(),
        };
        let queue = &mut self.waiting[direction as usize];
        let front = queue.front().copied();
        let batch = match caught(|| builder.next(direction, queue, &mut self.running)) {
            Ok(batch) => batch,
            Err(why) => {
                // Nothing of the batch has begun.
                queue.retain(|ticket| Some(*ticket) != front);
                if let Some(transfer) = front.and_then(|ticket| self.running.get_mut(&ticket)) {
                    transfer.fail(why);
                }
                let given = front.into_iter().collect();
                CopyBatch {
                    given,
                    ..CopyBatch::default()
                }
            }
        };
        let given = batch.given.clone();
        if !batch.parts.is_empty() {
            self.numbers += 1;
            let side = direction as usize;
            let (number, index) = (self.numbers, self.begun[side] % MOST_IN_FLIGHT);
            let staging = (batch.way == Way::Staged)
                .then(|| self.free_staging(side))
                .flatten();
            match caught(|| self.try_begin(direction, &batch, number, index, staging)) {
                Ok(Ok(())) => {
                    self.begun[side] += 1;
                    self.in_flight[side].push_back(BatchInFlight {
                        batch,
                        number,
                        index,
                        staging,
                    });
                }
                Ok(Err(SubmitError::This(error))) => self.fail(&batch.parts, &error.to_string()),
                Ok(Err(SubmitError::Device(error))) => {
                    self.fail(&batch.parts, &error.to_string());
                    self.break_down(&error);
                }
                Err(why) => {
                    self.fail(&batch.parts, &why);
                    self.break_down(&CudaError::Core(Error::transfer(why)));
                }
            }
        }
        self.report_all(given);
    }

    fn try_begin(
        &self,
        direction: Direction,
        batch: &CopyBatch,
        number: u64,
        index: usize,
        staging: Option<usize>,
    ) -> std::result::Result<(), SubmitError> {
        let (payload, cuts) = (&batch.payload, self.streams.slots().cuts());
        let buffers = self.streams.of(direction).buffers();
        let staging = staging.and_then(|buffer| buffers.staging_address(buffer));
        let method = match (batch.way, staging) {
            (Way::Staged, Some(staging)) => {
                let copies = payload.staged_copies(staging, cuts);
                CopyMethod::Staged(staging, copies)
            }
            (Way::Staged | Way::Kernel, _) => CopyMethod::Kernel,
            (Way::Copies, _) => {
                if direction == Direction::Store && payload.is_partial() {
                    // SAFETY: the plan keeps its stretches inside the arena, and the slots belong to the transfer.
                    unsafe { payload.write_zeros() };
                }
                CopyMethod::Copies(payload.copies(cuts))
            }
        };
        let transfers = batch
            .parts
            .iter()
            .map(|part| &self.running[&part.ticket].submitted);
        let mut fence = None;
        let after = transfers.filter(|submitted| {
            let known = submitted.fence.is_some() && fence == submitted.fence;
            fence = submitted.fence;
            !known
        });
        let submission = Submission {
            number,
            index,
            payload,
            method,
            pinned: batch.pinned,
            digests: batch.digests,
            after: after.map(|submitted| submitted.after.event()).collect(),
        };
        // SAFETY: the plan keeps every piece inside blocks and slots, which belong to the transfer; the last
        // batch with these buffers has ended.
        unsafe { self.streams.enqueue(direction, &submission) }
    }

    fn finish(&mut self, direction: Direction, ended: BatchInFlight) {
        let BatchInFlight { batch, index, .. } = ended;
        let tiles = batch.payload.tiles as usize;
        let buffers = self.streams.of(direction).buffers();
        let digests = batch.digests.then(|| buffers.digests(index, tiles));
        let mut next = 0;
        for BatchPart { ticket, entries } in &batch.parts {
            let transfer = self.running.get_mut(ticket).expect("a part of it is open");
            let ours = next..next + entries.len();
            next = ours.end;
            transfer.open -= entries.len();
            let bytes = batch.payload.entries[ours.clone()]
                .iter()
                .map(|entry| entry.moved);
            let plan = &transfer.submitted.plan;
            let outcome = caught(|| match direction {
                Direction::Store => Ok(ours
                    .map(|index| checksum(&batch.payload, index, digests))
                    .collect()),
                Direction::Load if digests.is_some() => {
                    let mut pairs = ours.zip(entries.clone());
                    let whole = |index: usize| !batch.payload.entries[index].is_partial();
                    let checked = pairs.try_for_each(|(index, entry)| match whole(index) {
                        true => check_entry(plan, entry, &batch.payload, index, digests),
                        false => Ok(()),
                    });
                    checked.map(|()| Vec::new())
                }
                Direction::Load => Ok(Vec::new()),
            });
            match outcome.flatten() {
                Ok(checksums) => transfer.add(bytes.sum(), checksums),
                Err(why) => transfer.fail(why),
            }
        }
        self.report_all(batch.parts.iter().map(|part| part.ticket));
    }

    /// Fails the transfers of a batch that was not begun.
    fn fail(&mut self, parts: &[BatchPart], why: &str) {
        for part in parts {
            if let Some(transfer) = self.running.get_mut(&part.ticket) {
                transfer.open -= part.entries.len();
                transfer.fail(why.to_owned());
            }
        }
        self.report_all(parts.iter().map(|part| part.ticket));
    }

    /// Reports the transfers among these that have ended.
    fn report_all(&mut self, tickets: impl IntoIterator<Item = Ticket>) {
        for ticket in tickets {
            if self
                .running
                .get(&ticket)
                .is_some_and(RunningTransfer::has_ended)
                && let Some(transfer) = self.running.remove(&ticket)
            {
                for queue in &mut self.waiting {
                    queue.retain(|waiting| *waiting != ticket);
                }
                self.shared.transfers.finish(transfer.completion());
            }
        }
    }

    /// Notes that the device is broken: all transfers fail, now and later.
    fn break_down(&mut self, error: &CudaError) {
        let first = self.shared.broken.get_or_init(|| error.clone()).to_string();
        // A device that still runs must not write after the blocks are given to others. If it has stopped, draining
        // fails; the first error is the one to report.
        let _ = self.streams.drain();
        self.in_flight.iter_mut().for_each(VecDeque::clear);
        self.waiting.iter_mut().for_each(VecDeque::clear);
        let mut all: Vec<_> = self.running.drain().map(|(_, transfer)| transfer).collect();
        all.sort_by_key(|transfer| transfer.submitted.ticket);
        for mut transfer in all {
            transfer.fail(first.clone());
            self.shared.transfers.finish(transfer.completion());
        }
    }
}

fn caught<T>(act: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| {
        let text = panic_message(panic.as_ref());
        format!("the engine's thread panicked: {text}")
    })
}
