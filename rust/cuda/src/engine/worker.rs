//! The engine's thread: gives transfers to the lanes and ends them.

use std::collections::VecDeque;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use hybrid_pages::error::Error;
use hybrid_pages::transfer::{
    Completion, Direction, Plan, Ticket, Transfers, combine, panic_message,
};

use crate::driver::Event;
use crate::error::{CudaError, Result};
use crate::line::{Line, Patterns};

use super::buffers::Buffers;
use super::choice::Choice;
use super::host::digests_of_slots;
use super::lane::Given;
use super::lanes::{Failed, Lanes};
use super::method::Method;

/// How often the thread looks at the device while transfers are in flight.
const LOOK: Duration = Duration::from_micros(20);
/// For so long after a transfer was begun it looks all the time: small ones end within.
const EAGER: Duration = Duration::from_micros(200);
/// How late the system may wake the thread, in nanoseconds; by default, longer than it sleeps.
const TIMER_SLACK: u64 = 1_000;

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

pub(super) struct Request {
    pub(super) ticket: Ticket,
    pub(super) plan: Plan,
    pub(super) after: Arc<Event>,
    pub(super) started: Instant,
}

/// A transfer that the streams work on.
struct Flight {
    request: Box<Request>,
    line: Line,
    buffers: Option<Buffers>,
    /// Whether the device computes digests that a load is compared by.
    verify: bool,
    done: Event,
}

struct Worker {
    shared: Arc<Shared>,
    lanes: Lanes,
    choice: Choice,
    patterns: Patterns,
    /// By direction, each in the order in which they end.
    flights: [VecDeque<Flight>; 2],
    /// By direction, those that are not begun yet: see [`Worker::accept`].
    waiting: [VecDeque<Box<Request>>; 2],
}

pub(super) fn spawn(
    shared: Arc<Shared>,
    lanes: Lanes,
    choice: Choice,
    messages: Receiver<Message>,
) -> Result<JoinHandle<()>> {
    let patterns = Patterns::new(shared.transfers.layout());
    let worker = Worker {
        shared,
        lanes,
        choice,
        patterns,
        flights: [VecDeque::new(), VecDeque::new()],
        waiting: [VecDeque::new(), VecDeque::new()],
    };
    Builder::new()
        .name("hybrid-pages-cuda".into())
        .spawn(move || worker.run(&messages))
        .map_err(|error| {
            CudaError::Core(Error::Transfer(format!(
                "the engine's thread cannot start: {error}"
            )))
        })
}

impl Worker {
    fn run(mut self, messages: &Receiver<Message>) {
        // Without it the thread looks less often, which costs time alone.
        let _ = rustix::thread::set_current_timer_slack(NonZero::new(TIMER_SLACK));
        let mut stopping = false;
        let mut begun = Instant::now();
        while !(stopping && self.is_idle()) {
            let message = if self.is_idle() {
                messages.recv().map_err(RecvTimeoutError::from)
            } else if begun.elapsed() < EAGER {
                std::thread::yield_now();
                messages.recv_timeout(Duration::ZERO)
            } else {
                messages.recv_timeout(LOOK)
            };
            match message {
                Ok(Message::Transfer(request)) => {
                    self.accept(request);
                    begun = Instant::now();
                }
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => stopping = true,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.collect();
        }
    }

    fn is_idle(&self) -> bool {
        self.flights.iter().all(VecDeque::is_empty) && self.waiting.iter().all(VecDeque::is_empty)
    }

    /// Begins a transfer. A copy of pageable memory may keep this thread until the device comes to it:
    /// it is begun when it need not wait for the engine any more, so that others go on meanwhile.
    fn accept(&mut self, request: Box<Request>) {
        if self.lanes.slots().mapped.is_some() {
            self.begin(request);
        } else {
            self.waiting[request.plan.direction() as usize].push_back(request);
        }
    }

    /// Whatever happens to a transfer, even a panic, it ends.
    fn begin(&mut self, request: Box<Request>) {
        let (ticket, started) = (request.ticket, request.started);
        let failed = match caught(|| self.try_begin(request)) {
            Ok(Ok(())) => return,
            Ok(Err(failed)) => failed,
            Err(why) => Failed::Device(CudaError::Core(Error::Transfer(why))),
        };
        let (Failed::This(error) | Failed::Device(error)) = &failed;
        self.shared
            .transfers
            .finish(Completion::failed(ticket, started, error.to_string()));
        if let Failed::Device(error) = &failed {
            self.break_down(error);
        }
    }

    fn try_begin(&mut self, request: Box<Request>) -> std::result::Result<(), Failed> {
        if let Some(error) = self.shared.broken.get() {
            return Err(Failed::This(error.clone()));
        }
        let shared = Arc::clone(&self.shared);
        let (layout, memory) = (shared.transfers.layout(), shared.transfers.memory());
        let plan = &request.plan;
        let direction = plan.direction();
        let line = Line::new(layout, &self.patterns, memory, plan);
        let wanted = direction == Direction::Store
            || plan.entries().iter().any(|entry| entry.checksum.is_some());
        let method = self.choice.method(direction, &line);
        // After copies the device hashes what has arrived, and a part of it may not have been sent.
        let arrives = method != Method::Copy || !line.partial;
        let on_device = self.lanes.has_kernels() && arrives;
        if wanted && !on_device && direction == Direction::Load {
            verify(plan, &line, &digests_of_slots(&line))
                .map_err(|why| Failed::This(CudaError::Core(Error::Transfer(why))))?;
        }
        let copies = match method {
            Method::Copy => Line::copies(layout, memory, plan),
            _ => Vec::new(),
        };
        let done = Event::new(self.lanes.device()).map_err(Failed::of)?;
        let given = Given {
            method,
            line: &line,
            copies: &copies,
            slots: self.lanes.slots(),
            digests: wanted && on_device,
            after: &request.after,
            done: &done,
        };
        let mut buffers = None;
        // SAFETY: the plan keeps every piece inside blocks and slots, which belong to the transfer.
        unsafe { self.lanes.enqueue(direction, &given, &mut buffers)? };
        self.flights[direction as usize].push_back(Flight {
            request,
            line,
            buffers,
            verify: wanted && on_device,
            done,
        });
        Ok(())
    }

    /// Begins what need not wait any more, and ends what the device has ended.
    fn collect(&mut self) {
        if let Err(error) = self.try_collect() {
            self.break_down(&error);
        }
    }

    fn try_collect(&mut self) -> Result<()> {
        for lane in 0..self.flights.len() {
            while let Some(request) = self.waiting[lane].front()
                && self.has_ended(&request.after)?
            {
                if let Some(request) = self.waiting[lane].pop_front() {
                    self.begin(request);
                }
            }
            while let Some(flight) = self.flights[lane].front()
                && self.has_ended(&flight.done)?
            {
                if let Some(flight) = self.flights[lane].pop_front() {
                    self.finish(flight);
                }
            }
        }
        Ok(())
    }

    fn has_ended(&self, event: &Event) -> Result<bool> {
        let _entered = self.lanes.device().enter()?;
        event.query()
    }

    fn finish(&mut self, mut flight: Flight) {
        let Request {
            ticket, started, ..
        } = *flight.request;
        let completion = match caught(|| checked(&flight)).flatten() {
            Ok(checksums) => Completion {
                ticket,
                error: None,
                bytes: flight.line.bytes as usize,
                seconds: started.elapsed().as_secs_f64(),
                checksums,
            },
            Err(why) => Completion::failed(ticket, started, why),
        };
        self.lanes.give_back(flight.buffers.take());
        self.shared.transfers.finish(completion);
    }

    /// Nothing works on the device any more: what is in flight fails, and so does what comes.
    fn break_down(&mut self, error: &CudaError) {
        let first = self.shared.broken.get_or_init(|| error.clone()).to_string();
        // A device that still runs must not write when its blocks are given to others. One that
        // does not has stopped already: its error is the one that is told.
        let _ = self.lanes.drain();
        let flights = self.flights.iter_mut().flat_map(|all| all.drain(..));
        let waiting = self.waiting.iter_mut().flat_map(|all| all.drain(..));
        for request in flights.map(|flight| flight.request).chain(waiting) {
            let Request {
                ticket, started, ..
            } = *request;
            self.shared
                .transfers
                .finish(Completion::failed(ticket, started, first.clone()));
        }
    }
}

/// The checksums of a store that has ended; a load's are compared.
fn checked(flight: &Flight) -> std::result::Result<Vec<u64>, String> {
    let Flight { line, request, .. } = flight;
    let tiles = line.tiles as usize;
    let from_device = flight
        .buffers
        .as_ref()
        .map(|buffers| buffers.digests(tiles));
    match (request.plan.direction(), from_device) {
        (Direction::Store, Some(digests)) => Ok(sums(line, digests)),
        (Direction::Store, None) => Ok(sums(line, &digests_of_slots(line))),
        (Direction::Load, Some(digests)) if flight.verify => {
            verify(&request.plan, line, digests).map(|()| Vec::new())
        }
        (Direction::Load, _) => Ok(Vec::new()),
    }
}

fn sums(line: &Line, digests: &[u64]) -> Vec<u64> {
    let of = |entry: usize| {
        let tiles = digests[line.tiles_of(entry)].iter().copied();
        combine(tiles, line.entries[entry].1 as usize)
    };
    (0..line.entries.len()).map(of).collect()
}

fn verify(plan: &Plan, line: &Line, digests: &[u64]) -> std::result::Result<(), String> {
    let found = sums(line, digests);
    for (index, (entry, found)) in plan.entries().iter().zip(found).enumerate() {
        if let Some(expected) = entry.checksum.filter(|expected| *expected != found) {
            return Err(format!(
                "checksum of entry {index}: expected {expected:016x}, found {found:016x}: not the \
                 bytes that left the engine, its blocks have to be computed again"
            ));
        }
    }
    Ok(())
}

fn caught<T>(act: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| {
        let text = panic_message(panic.as_ref());
        format!("the engine's thread panicked: {text}")
    })
}
