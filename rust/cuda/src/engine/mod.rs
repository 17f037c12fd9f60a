//! The CUDA engine: transfers between device memory and an arena.
//!
//! A thread of its own gives transfers to streams and looks which have ended, so that neither
//! submitting nor polling waits for a device. Stores read what the compute stream has finished;
//! loads write after the last [`CudaEngine::fence`], so that they need not wait for a forward pass that
//! was launched since.

mod buffers;
mod calibration;
mod choice;
mod costs;
mod host;
mod kernels;
mod lane;
mod lanes;
mod method;
mod options;
mod ring;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::Sender;
use hybrid_pages::error::Error;
use hybrid_pages::transfer::{
    Completion, Direction, Engine, EntryCopy, Layout, SlotMemory, Ticket, Transfers,
};

use crate::driver::{Device, Driver, Event, Registration, memory_kind};
use crate::error::{CudaError, Result};

use calibration::calibrate;
use choice::Choice;
pub use costs::{Calibration, Costs};
use lane::Slots;
use lanes::Lanes;
pub use method::Method;
pub use options::Options;
use worker::{Message, Request, Shared};

/// Copies between the memory of one device and an arena. Dropping it waits for the transfers in
/// flight. A load that fails leaves its blocks undefined.
pub struct CudaEngine {
    shared: Arc<Shared>,
    queue: Sender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
    fence: Mutex<Option<Arc<Event>>>,
    device: Arc<Device>,
    facts: Facts,
}

/// The findings and decisions of an engine when it was made.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Whether devices reach the arena without a detour.
    pub pinned: bool,
    /// Things that are not as they should be, and their cost.
    pub warnings: Vec<String>,
    /// The methods that work here.
    pub methods: Vec<Method>,
    /// The costs that the choice among them rests on.
    pub calibration: Option<Calibration>,
}

impl CudaEngine {
    /// Opens the device, pins the arena, loads the kernels, calibrates and starts the thread.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] without driver or device, or if the method asked for does not work
    /// here; [`CudaError::Core`] with [`Error::Foreign`] if the arena belongs to another geometry,
    /// [`Error::InvalidArgument`] on impossible options or layers that are not in this device's
    /// memory; [`CudaError::Driver`].
    pub fn new(layout: Layout, memory: SlotMemory, options: &Options) -> Result<Self> {
        let transfers = Transfers::new(layout, memory, "a device cannot be used there")?;
        if !(options.share > 0.0 && options.share <= 1.0) {
            return reject(format!(
                "share: expected more than 0, at most 1, found {}",
                options.share
            ));
        }
        let driver = Driver::get()?;
        let device = Device::open(&driver, options.device)?;
        check_memory(transfers.layout(), &device)?;
        let mut warnings = Vec::new();
        let registration = register(&device, transfers.memory(), &mut warnings);
        let slots = Slots {
            host: transfers.memory().region().address().addr().get() as u64,
            mapped: registration.as_ref().map(Registration::mapped),
        };
        let (mut lanes, methods) =
            Lanes::new(&device, slots, registration, options, &mut warnings)?;
        let methods = among(methods, options.method, &warnings)?;
        // Where there is nothing to choose, nothing has to be measured.
        let calibration = (methods.len() > 1 && slots.mapped.is_some())
            .then(|| calibrate(&mut lanes, &methods, options, &mut warnings))
            .transpose()?;
        let facts = Facts {
            pinned: slots.mapped.is_some(),
            warnings,
            methods: methods.clone(),
            calibration: calibration.clone(),
        };
        let choice = Choice::new(methods, calibration);
        let shared = Arc::new(Shared::new(transfers));
        let (queue, messages) = crossbeam_channel::unbounded();
        let thread = worker::spawn(Arc::clone(&shared), lanes, choice, messages)?;
        Ok(Self {
            shared,
            queue,
            thread: Mutex::new(Some(thread)),
            fence: Mutex::new(None),
            device,
            facts,
        })
    }

    /// The device it works with.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The findings and decisions of the engine when it was made.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Loads that are submitted from now on wait for what the stream has been given until now, and for
    /// nothing that it is given later.
    ///
    /// # Safety
    /// `stream` is a live stream of this device, or 0 for its default stream.
    ///
    /// # Errors
    /// [`CudaError::Capturing`], [`CudaError::Driver`].
    pub unsafe fn fence(&self, stream: usize) -> Result<()> {
        self.check_usable()?;
        // SAFETY: the caller's.
        let event = unsafe { self.mark(stream)? };
        *self.last_fence() = Some(event);
        Ok(())
    }

    /// Submits a transfer. A store reads what `stream` has been given until now; a load writes after the
    /// last fence or, without one, after what `stream` has been given.
    ///
    /// # Safety
    /// `stream` is a live stream of this device, or 0 for its default stream.
    ///
    /// # Errors
    /// [`CudaError::Core`] with [`Error::InvalidArgument`] before any byte moves, or with
    /// [`Error::Transfer`] after close; [`CudaError::Capturing`]; [`CudaError::Driver`], also for
    /// whatever has broken the device before.
    pub unsafe fn submit_on(
        &self,
        direction: Direction,
        entries: Vec<EntryCopy>,
        stream: usize,
    ) -> Result<Ticket> {
        self.check_usable()?;
        let plan = self.shared.transfers.plan(direction, entries)?;
        let fence = match direction {
            Direction::Load => self.last_fence().clone(),
            Direction::Store => None,
        };
        let after = match fence {
            Some(fence) => fence,
            // SAFETY: the caller's.
            None => unsafe { self.mark(stream)? },
        };
        let ticket = self.shared.transfers.start()?;
        let started = Instant::now();
        let request = Box::new(Request {
            ticket,
            plan,
            after,
            started,
        });
        if self.queue.send(Message::Transfer(request)).is_err() {
            // The thread only leaves when no transfer runs: this one was not begun.
            let why = "the engine's thread has ended".into();
            let failed = Completion::failed(ticket, started, why);
            self.shared.transfers.finish(failed);
        }
        Ok(ticket)
    }

    /// # Safety
    /// As for [`CudaEngine::fence`].
    unsafe fn mark(&self, stream: usize) -> Result<Arc<Event>> {
        let event = Event::new(&self.device)?;
        // SAFETY: the caller's.
        unsafe { event.record_foreign(stream)? };
        Ok(Arc::new(event))
    }

    fn last_fence(&self) -> MutexGuard<'_, Option<Arc<Event>>> {
        self.fence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_usable(&self) -> Result<()> {
        self.shared.transfers.check_process()?;
        match self.shared.broken.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

impl Engine for CudaEngine {
    fn transfers(&self) -> &Transfers {
        &self.shared.transfers
    }

    /// As [`CudaEngine::submit_on`], on the default stream.
    fn submit(
        &self,
        direction: Direction,
        entries: Vec<EntryCopy>,
    ) -> hybrid_pages::error::Result<Ticket> {
        // SAFETY: the default stream always lives.
        unsafe { self.submit_on(direction, entries, 0) }.map_err(Error::from)
    }

    fn close(&self) {
        self.transfers().close(|| {
            let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(thread) = thread.take() {
                let told = self.queue.send(Message::Stop);
                debug_assert!(told.is_ok(), "the thread leaves when it is told");
                let left = thread.join();
                debug_assert!(left.is_ok(), "the thread catches its panics");
                self.last_fence().take();
            }
        });
    }
}

impl Drop for CudaEngine {
    fn drop(&mut self) {
        self.close();
        if self.shared.transfers.is_inherited() {
            // The driver does not work in a fork: nothing of it may be freed there.
            std::mem::forget(self.last_fence().take());
            std::mem::forget(Arc::clone(&self.device));
            // The thread may have held the queue's lock at the fork: closing the queue would wait for it.
            std::mem::forget(self.queue.clone());
        }
    }
}

fn reject<T>(what: String) -> Result<T> {
    Err(CudaError::Core(Error::InvalidArgument(what)))
}

/// The methods to choose from, of those that work here.
fn among(methods: Vec<Method>, asked: Option<Method>, warnings: &[String]) -> Result<Vec<Method>> {
    match asked {
        None => Ok(methods),
        Some(method) if methods.contains(&method) => Ok(vec![method]),
        Some(method) => {
            let found: Vec<_> = methods.iter().map(|method| method.name()).collect();
            Err(CudaError::Unavailable(format!(
                "method {method}: expected one of {}, which work here: {}",
                found.join(", "),
                warnings.join("; ")
            )))
        }
    }
}

/// Layers of host memory, or of another device, would be read as garbage or not at all.
fn check_memory(layout: &Layout, device: &Device) -> Result<()> {
    for class in 0..layout.geometry().classes().len() {
        for span in layout.spans(class) {
            let last = layout.num_blocks()[span.group] - 1;
            for address in [
                span.in_block(0),
                span.in_block(last).wrapping_add(span.length - 1),
            ] {
                let found = memory_kind(device, address.addr() as u64)?;
                if found != Some(device.description().ordinal) {
                    let found = found.map_or("memory of the host".into(), |ordinal| {
                        format!("memory of device {ordinal}")
                    });
                    return reject(format!(
                        "layers: expected memory of device {}, found {found} at {address:p}",
                        device.description().ordinal
                    ));
                }
            }
        }
    }
    Ok(())
}

fn register(
    device: &Arc<Device>,
    memory: &SlotMemory,
    warnings: &mut Vec<String>,
) -> Option<Registration> {
    let region = memory.region();
    // SAFETY: the engine keeps the memory longer than the registration, and with it its owner.
    match unsafe { Registration::new(device, region.address(), region.nbytes()) } {
        Ok(registration) => Some(registration),
        Err(error) => {
            warnings.push(format!(
                "pinning the arena's {} bytes failed: {error}. Copies go through pageable memory, \
                 which is slower: give the process more memory to pin, or the arena less",
                region.nbytes()
            ));
            None
        }
    }
}
