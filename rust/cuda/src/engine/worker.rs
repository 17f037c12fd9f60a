//! The engine's thread: gives flights to the lanes and ends them.

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
use crate::line::Patterns;

use super::buffers::FLIGHTS;
use super::cargo::{Cargo, Jobs, Loader, Part};
use super::digests::{check_entry, checksum};
use super::job::{Job, Request};
use super::lane::{Given, Way};
use super::lanes::{Failed, Lanes};

/// How often the thread looks for the end of flights. It reads memory, and asks the driver nothing.
const LOOK: Duration = Duration::from_micros(20);
/// For so long after a flight was begun it looks all the time: small ones end within.
const EAGER: Duration = Duration::from_micros(200);
/// How late the system may wake the thread, in nanoseconds; by default, longer than it sleeps.
#[cfg(target_os = "linux")]
const TIMER_SLACK: u64 = 1_000;
/// How often it asks whether the device still works: what is broken writes no words.
const CHECK: Duration = Duration::from_millis(20);
/// Stores wait for loads, but not for more flights of them than this.
const PATIENCE: usize = 16;

/// The things that the engine and its thread both use.
pub(super) struct Shared {
    pub(super) transfers: Transfers,
    /// The error that broke the device; nothing works after it.
    pub(super) broken: OnceLock<CudaError>,
}

impl Shared {
    pub(super) fn new(transfers: Transfers) -> Self {
        Self {
            transfers,
            broken: OnceLock::new(),
        }
    }
}

/// An order to the thread.
pub(super) enum Message {
    Transfer(Box<Request>),
    Stop,
}

/// Cargo that the streams work on.
struct Flight {
    cargo: Cargo,
    number: u64,
    place: usize,
}

struct Worker {
    shared: Arc<Shared>,
    device: Arc<Device>,
    lanes: Lanes,
    kernel_below: u64,
    patterns: Patterns,
    jobs: Jobs,
    /// By direction, each in the order in which they were begun.
    flights: [VecDeque<Flight>; 2],
    /// By direction, requests of which something is not begun yet.
    waiting: [VecDeque<Ticket>; 2],
    /// Flights that were begun, and of each direction without an error.
    numbers: u64,
    begun: [usize; 2],
    /// Flights of loads that went before stores that waited.
    passed: usize,
    checked: Instant,
}

pub(super) fn spawn(
    shared: Arc<Shared>,
    device: Arc<Device>,
    lanes: Lanes,
    patterns: Patterns,
    kernel_below: usize,
    messages: Receiver<Message>,
) -> Result<JoinHandle<()>> {
    let worker = Worker {
        shared,
        device,
        lanes,
        kernel_below: kernel_below as u64,
        patterns,
        jobs: Jobs::new(),
        flights: [VecDeque::new(), VecDeque::new()],
        waiting: [VecDeque::new(), VecDeque::new()],
        numbers: 0,
        begun: [0; 2],
        passed: 0,
        checked: Instant::now(),
    };
    Builder::new()
        .name("hybrid-pages-cuda".into())
        .spawn(move || worker.run(&messages))
        .map_err(|error| {
            let text = format!("the engine's thread cannot start: {error}");
            CudaError::Core(Error::transfer(Cause::new(text, error)))
        })
}

impl Worker {
    fn run(mut self, messages: &Receiver<Message>) {
        // Without it the thread looks less often, which costs time alone.
        #[cfg(target_os = "linux")]
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(TIMER_SLACK));
        let mut stopping = false;
        let mut begun = (0, Instant::now());
        while !(stopping && self.jobs.is_empty()) {
            if self.numbers > begun.0 {
                begun = (self.numbers, Instant::now());
            }
            let message = if self.jobs.is_empty() {
                messages.recv().map_err(RecvTimeoutError::from)
            } else if begun.1.elapsed() < EAGER {
                std::thread::yield_now();
                messages.recv_timeout(Duration::ZERO)
            } else {
                messages.recv_timeout(LOOK)
            };
            let mut next = Some(message);
            while let Some(message) = next {
                match message {
                    Ok(Message::Transfer(request)) => self.accept(*request),
                    Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => stopping = true,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                // All that wait may go together.
                next = messages.try_recv().ok().map(Ok);
            }
            if let Err(error) = self.advance() {
                self.break_down(&error);
            }
        }
    }

    fn accept(&mut self, request: Request) {
        let (ticket, direction) = (request.ticket, request.plan.direction());
        let job = Job::new(request);
        if let Some(error) = self.shared.broken.get() {
            let Request {
                ticket, started, ..
            } = job.request;
            let failed = Completion::failed(ticket, started, error.to_string());
            self.shared.transfers.finish(failed);
        } else if job.has_ended() {
            self.shared.transfers.finish(job.completion());
        } else {
            if self.jobs.is_empty() {
                self.checked = Instant::now();
            }
            self.jobs.insert(ticket, job);
            self.waiting[direction as usize].push_back(ticket);
        }
    }

    /// Ends what the device has ended, and begins what may begin.
    fn advance(&mut self) -> Result<()> {
        for direction in [Direction::Load, Direction::Store] {
            while let Some(flight) = self.flights[direction as usize].front()
                && self
                    .lanes
                    .of(direction)
                    .has_ended(flight.number, flight.place)?
            {
                if let Some(flight) = self.flights[direction as usize].pop_front() {
                    self.finish(direction, flight);
                }
            }
        }
        if self.flights.iter().any(|lane| !lane.is_empty()) && self.checked.elapsed() >= CHECK {
            self.lanes.check()?;
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

    fn may_begin(&self, direction: Direction) -> Result<bool> {
        let lane = direction as usize;
        let Some(next) = self.waiting[lane].front() else {
            return Ok(false);
        };
        if self.flights[lane].len() == FLIGHTS {
            return Ok(false);
        }
        if self.lanes.slots().is_pageable() {
            // A copy of pageable memory may keep this thread until the device comes to it: it is begun
            // when it need not wait for the engine any more, so that others go on meanwhile.
            let _entered = self.device.enter()?;
            return self.jobs[next].request.after.event().query();
        }
        let load = Direction::Load as usize;
        let loads = !self.flights[load].is_empty() || !self.waiting[load].is_empty();
        let paused = direction == Direction::Store && loads && self.passed < PATIENCE;
        Ok(!paused)
    }

    /// Whatever happens to a flight, even a panic, its requests end.
    fn begin(&mut self, direction: Direction) {
        let loader = Loader {
            transfers: &self.shared.transfers,
            patterns: &self.patterns,
            slots: self.lanes.slots(),
            room: self.lanes.of(direction).buffers().room(),
            kernels: self.lanes.has_kernels(),
            batches: self.device.driver().has_copy_batch(),
        };
        let queue = &mut self.waiting[direction as usize];
        let front = queue.front().copied();
        let cargo = match caught(|| loader.load(direction, queue, &mut self.jobs)) {
            Ok(cargo) => cargo,
            Err(why) => {
                // Nothing of it has begun.
                queue.retain(|ticket| Some(*ticket) != front);
                if let Some(job) = front.and_then(|ticket| self.jobs.get_mut(&ticket)) {
                    job.fail(why);
                }
                let given = front.into_iter().collect();
                Cargo {
                    given,
                    ..Cargo::default()
                }
            }
        };
        let given = cargo.given.clone();
        if !cargo.parts.is_empty() {
            self.numbers += 1;
            let lane = direction as usize;
            let (number, place) = (self.numbers, self.begun[lane] % FLIGHTS);
            match caught(|| self.try_begin(direction, &cargo, number, place)) {
                Ok(Ok(())) => {
                    self.begun[lane] += 1;
                    self.flights[lane].push_back(Flight {
                        cargo,
                        number,
                        place,
                    });
                }
                Ok(Err(Failed::This(error))) => self.fail(&cargo.parts, &error.to_string()),
                Ok(Err(Failed::Device(error))) => {
                    self.fail(&cargo.parts, &error.to_string());
                    self.break_down(&error);
                }
                Err(why) => {
                    self.fail(&cargo.parts, &why);
                    self.break_down(&CudaError::Core(Error::transfer(why)));
                }
            }
        }
        self.report_all(given);
    }

    fn try_begin(
        &self,
        direction: Direction,
        cargo: &Cargo,
        number: u64,
        place: usize,
    ) -> std::result::Result<(), Failed> {
        let (line, slots) = (&cargo.line, self.lanes.slots());
        let small = line.bytes < self.kernel_below.saturating_mul(line.pieces());
        let way = if small && self.lanes.has_kernels() && !slots.is_pageable() {
            Way::Kernel
        } else {
            Way::Copies(line.copies(slots.cuts()))
        };
        let requests = cargo
            .parts
            .iter()
            .map(|part| &self.jobs[&part.ticket].request);
        let mut fence = None;
        let after = requests.filter(|request| {
            let known = request.fence.is_some() && fence == request.fence;
            fence = request.fence;
            !known
        });
        let given = Given {
            number,
            place,
            line,
            way,
            digests: cargo.digests,
            after: after.map(|request| request.after.event()).collect(),
        };
        // SAFETY: the plan keeps every piece inside blocks and slots, which belong to the transfer; the
        // place's last flight has ended.
        unsafe { self.lanes.enqueue(direction, &given) }
    }

    fn finish(&mut self, direction: Direction, flight: Flight) {
        let Flight { cargo, place, .. } = flight;
        let tiles = cargo.line.tiles as usize;
        let buffers = self.lanes.of(direction).buffers();
        let digests = cargo.digests.then(|| buffers.digests(place, tiles));
        let mut next = 0;
        for Part { ticket, entries } in &cargo.parts {
            let job = self.jobs.get_mut(ticket).expect("a part of it is open");
            let places = next..next + entries.len();
            next = places.end;
            job.open -= entries.len();
            let bytes = cargo.line.entries[places.clone()]
                .iter()
                .map(|entry| entry.moved);
            let plan = &job.request.plan;
            let outcome = caught(|| match direction {
                Direction::Store => Ok(places
                    .map(|place| checksum(&cargo.line, place, digests))
                    .collect()),
                Direction::Load if digests.is_some() => {
                    let mut pairs = places.zip(entries.clone());
                    let whole = |place: usize| !cargo.line.entries[place].is_partial();
                    let checked = pairs.try_for_each(|(place, entry)| match whole(place) {
                        true => check_entry(plan, entry, &cargo.line, place, digests),
                        false => Ok(()),
                    });
                    checked.map(|()| Vec::new())
                }
                Direction::Load => Ok(Vec::new()),
            });
            match outcome.flatten() {
                Ok(checksums) => job.add(bytes.sum(), checksums),
                Err(why) => job.fail(why),
            }
        }
        self.report_all(cargo.parts.iter().map(|part| part.ticket));
    }

    /// Fails the requests of a flight that was not begun.
    fn fail(&mut self, parts: &[Part], why: &str) {
        for part in parts {
            if let Some(job) = self.jobs.get_mut(&part.ticket) {
                job.open -= part.entries.len();
                job.fail(why.to_owned());
            }
        }
        self.report_all(parts.iter().map(|part| part.ticket));
    }

    /// Tells of those requests that have ended.
    fn report_all(&mut self, tickets: impl IntoIterator<Item = Ticket>) {
        for ticket in tickets {
            if self.jobs.get(&ticket).is_some_and(Job::has_ended)
                && let Some(job) = self.jobs.remove(&ticket)
            {
                for queue in &mut self.waiting {
                    queue.retain(|waiting| *waiting != ticket);
                }
                self.shared.transfers.finish(job.completion());
            }
        }
    }

    /// Nothing works on the device any more: what is in flight fails, and so does what comes.
    fn break_down(&mut self, error: &CudaError) {
        let first = self.shared.broken.get_or_init(|| error.clone()).to_string();
        // A device that still runs must not write when its blocks are given to others. One that
        // does not has stopped already: its error is the one that is told.
        let _ = self.lanes.drain();
        self.flights.iter_mut().for_each(VecDeque::clear);
        self.waiting.iter_mut().for_each(VecDeque::clear);
        let mut all: Vec<_> = self.jobs.drain().map(|(_, job)| job).collect();
        all.sort_by_key(|job| job.request.ticket);
        for mut job in all {
            job.fail(first.clone());
            self.shared.transfers.finish(job.completion());
        }
    }
}

fn caught<T>(act: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| {
        let text = panic_message(panic.as_ref());
        format!("the engine's thread panicked: {text}")
    })
}
