//! The CUDA engine: transfers between device memory and an arena.
//!
//! A thread of the engine gives transfers to streams and checks which have ended, so neither submitting nor polling
//! waits for a device. Stores read what the compute stream has finished. Loads, and stores that ask for it, begin after
//! the last [`CudaEngine::fence`], so they need not wait for a forward pass that was launched after it. Waiting transfers
//! share the next batch. The number of batches under way is bounded, and so is their memory, which the engine
//! allocates when it starts.

mod batch;
mod batch_call;
mod buffers;
mod device_streams;
mod digests;
mod event_pool;
mod kernels;
mod options;
mod stream_pair;
mod transfer;
mod worker;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use hybrid_pages::error::Error;
use hybrid_pages::guarded::lock;
use hybrid_pages::transfer::{
    Completion, Direction, Engine, EntryCopy, Plan, SlotMemory, TILE_BYTES, Ticket, TransferLayout,
    Transfers,
};

use crate::driver::{Device, Driver, memory_kind};
use crate::error::{CudaError, Result};
use crate::payload::Patterns;
use crate::pinning::{Pinned, Pinning, PinningOptions};

use batch_call::BatchCall;
use buffers::BufferSizes;
use device_streams::DeviceStreams;
use event_pool::{EventPool, RecordedEvent};
pub use options::CudaOptions;
use transfer::SubmittedTransfer;
use worker::{EngineState, WorkerCommand};

/// Copies between the memory of one device and an arena. Dropping it waits for the transfers in
/// flight. A load that fails leaves its blocks undefined.
pub struct CudaEngine {
    shared: Arc<EngineState>,
    queue: Sender<WorkerCommand>,
    thread: Mutex<Option<JoinHandle<()>>>,
    fence: Mutex<Option<Fence>>,
    fences: AtomicU64,
    events: Arc<EventPool>,
    pinning: Arc<Pinning>,
    /// Whether the engine made the pinning itself.
    pins: bool,
    device: Arc<Device>,
    batch_call: Arc<BatchCall>,
    facts: CudaFacts,
}

#[derive(Clone)]
struct Fence {
    number: u64,
    event: Arc<RecordedEvent>,
}

/// Abilities of an engine on this machine, found when it was made.
#[derive(Debug, Clone)]
pub struct CudaFacts {
    /// Whether the device reaches the slots without copies through other memory: none is known that could not be
    /// pinned.
    pub pinned: bool,
    /// Whether kernels are loaded: they move small pieces, and compute checksums on the device.
    pub kernels: bool,
    /// One text for each thing that is slower than it could be on this machine, with the reason.
    pub warnings: Vec<String>,
}

impl CudaEngine {
    /// Opens the device, loads the kernels, allocates all memory that the engine needs, pins the arena unless the
    /// options have a pinning, and starts the engine's thread.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] without driver or device; [`CudaError::Core`] with
    /// [`Error::Foreign`] if the arena belongs to another geometry, [`Error::InvalidArgument`] on
    /// impossible options, layers that are not in this device's memory, or a pinning of other slots, or
    /// [`Error::Arena`] if the system lacks memory for the slots; [`CudaError::Driver`].
    pub fn new(layout: TransferLayout, memory: SlotMemory, options: &CudaOptions) -> Result<Self> {
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
        let pins = options.pinning.is_none();
        let pinning = match &options.pinning {
            Some(pinning) => Arc::clone(pinning),
            None => {
                // The caller waits for it, so it pauses for nothing.
                let options = PinningOptions {
                    retry_after: Duration::ZERO,
                    ..PinningOptions::default()
                };
                let memory = transfers.memory().clone();
                Arc::new(Pinning::of(memory, Arc::clone(&device), &options)?)
            }
        };
        if device.description().integrated {
            warnings.push(format!(
                "{}: its memory is the host's, so the cache takes from it what the engine itself could use \
                 for more blocks: expected a device with memory of its own",
                device.description().name
            ));
        }
        let slots = pinning.join(transfers.memory())?;
        let patterns = Patterns::new(transfers.layout());
        let sizes = buffer_sizes(&transfers, &patterns, &slots, options.staging);
        let batch_call = Arc::new(BatchCall::new(&driver, options.batch_copies));
        let streams = DeviceStreams::new(
            &device,
            slots,
            options.share,
            sizes,
            Arc::clone(&batch_call),
            &mut warnings,
        )?;
        let events = EventPool::new(&device)?;
        // Last of all: other calls of the driver wait while memory is pinned.
        if pins {
            pin_all(&pinning)?;
        }
        warnings.extend(pinning.error());
        let facts = CudaFacts {
            pinned: pinning.unpinned_slots() == 0,
            kernels: streams.has_kernels(),
            warnings,
        };
        let shared = Arc::new(EngineState::new(transfers));
        let (queue, commands) = crossbeam_channel::unbounded();
        let thread = worker::spawn(
            Arc::clone(&shared),
            Arc::clone(&device),
            streams,
            patterns,
            options.kernel_below,
            commands,
        )?;
        Ok(Self {
            shared,
            queue,
            thread: Mutex::new(Some(thread)),
            fence: Mutex::new(None),
            fences: AtomicU64::new(0),
            events,
            pinning,
            pins,
            device,
            batch_call,
            facts,
        })
    }

    /// The device whose memory the engine copies from and to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The pinning of the slots that the engine copies from and to.
    #[must_use]
    pub fn pinning(&self) -> &Arc<Pinning> {
        &self.pinning
    }

    /// The engine's abilities on this machine.
    #[must_use]
    pub fn facts(&self) -> &CudaFacts {
        &self.facts
    }

    /// How often the driver refused many copies in one call. They were made one by one instead; after two refusals
    /// such calls are not tried again.
    #[must_use]
    pub fn refused_batch_copies(&self) -> usize {
        self.batch_call.refusals()
    }

    /// One text for each thing that is slower than it could be: those of [`CudaEngine::facts`], and those found since.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let found = self.facts.warnings.iter().cloned();
        found.chain(self.batch_call.warning()).collect()
    }

    /// Sets the point that later loads and [`CudaEngine::store_fenced`] wait for: the end of all work given to the stream
    /// until now.
    ///
    /// # Safety
    /// `stream` is a live stream of this device, or 0 for its default stream.
    ///
    /// # Errors
    /// [`CudaError::Capturing`], [`CudaError::Driver`].
    pub unsafe fn fence(&self, stream: usize) -> Result<()> {
        self.check_usable()?;
        // SAFETY: the caller promises a live stream.
        let event = Arc::new(unsafe { self.events.record(stream)? });
        let number = self.fences.fetch_add(1, Ordering::Relaxed);
        *self.last_fence() = Some(Fence { number, event });
        Ok(())
    }

    /// Submits a transfer. A store reads after all work given to `stream` until now. A load writes after the last
    /// fence or, without one, after all work given to `stream`.
    ///
    /// # Safety
    /// `stream` is a live stream of this device, or 0 for its default stream.
    ///
    /// # Errors
    /// [`CudaError::Core`] with [`Error::InvalidArgument`] before any byte moves, or with [`Error::Transfer`] after
    /// close; [`CudaError::Capturing`]; [`CudaError::Driver`], also for an earlier failure that broke the device.
    pub unsafe fn submit_on(
        &self,
        direction: Direction,
        entries: Vec<EntryCopy>,
        stream: usize,
    ) -> Result<Ticket> {
        self.check_usable()?;
        let plan = self.shared.transfers.plan(direction, entries)?;
        self.check_slots(plan.entries())?;
        let fence = match direction {
            Direction::Load => self.last_fence().clone(),
            Direction::Store => None,
        };
        let (fence, after) = match fence {
            Some(fence) => (Some(fence.number), fence.event),
            // SAFETY: the caller promises a live stream.
            None => (None, Arc::new(unsafe { self.events.record(stream)? })),
        };
        self.start(plan, fence, after)
    }

    /// Submits a store that reads after the last fence. It does not wait for work that streams were given later, and
    /// nobody may write to its blocks until it has ended.
    ///
    /// # Errors
    /// Those of [`CudaEngine::submit_on`]; [`CudaError::Core`] with [`Error::InvalidArgument`] if no fence was set.
    pub fn store_fenced(&self, entries: Vec<EntryCopy>) -> Result<Ticket> {
        self.check_usable()?;
        let plan = self.shared.transfers.plan(Direction::Store, entries)?;
        self.check_slots(plan.entries())?;
        match self.last_fence().clone() {
            Some(fence) => self.start(plan, Some(fence.number), fence.event),
            None => reject("fenced: expected a fence before the store, found none".into()),
        }
    }

    /// Gives a transfer to the thread.
    fn start(&self, plan: Plan, fence: Option<u64>, after: Arc<RecordedEvent>) -> Result<Ticket> {
        let ticket = self.shared.transfers.start()?;
        let started = Instant::now();
        let request = Box::new(SubmittedTransfer {
            ticket,
            plan,
            after,
            fence,
            started,
        });
        if self.queue.send(WorkerCommand::Transfer(request)).is_err() {
            // The thread ends only when no transfer runs, so this one was not begun.
            let why = "the engine's thread has ended".into();
            let failed = Completion::failed(ticket, started, why);
            self.shared.transfers.finish(failed);
        }
        Ok(ticket)
    }

    /// Rejects slots that are not pinned yet.
    fn check_slots(&self, entries: &[EntryCopy]) -> Result<()> {
        if self.pins {
            return Ok(());
        }
        let usable = self.pinning.usable_slots();
        let mut slots = entries.iter().flat_map(|entry| &entry.slots);
        match slots.find(|slot| slot.0 as usize >= usable) {
            None => Ok(()),
            Some(slot) => reject(format!(
                "slot {}: expected one below {usable}, which are ready so far, of {}",
                slot.0,
                self.pinning.slots()
            )),
        }
    }

    fn last_fence(&self) -> MutexGuard<'_, Option<Fence>> {
        lock(&self.fence)
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

    /// Submits a transfer on the default stream, see [`CudaEngine::submit_on`].
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
            let mut thread = lock(&self.thread);
            if let Some(thread) = thread.take() {
                let told = self.queue.send(WorkerCommand::Stop);
                debug_assert!(told.is_ok(), "the thread leaves when it is told");
                let left = thread.join();
                debug_assert!(left.is_ok(), "the thread catches its panics");
                self.last_fence().take();
                self.events.clear();
                if self.pins {
                    let released = self.pinning.close();
                    debug_assert!(released.is_ok(), "no other engine has it");
                }
            }
        });
    }
}

impl Drop for CudaEngine {
    fn drop(&mut self) {
        self.close();
        if self.shared.transfers.is_inherited() {
            // The driver does not work in a forked process, which must free nothing of it.
            std::mem::forget(self.last_fence().take());
            std::mem::forget(Arc::clone(&self.events));
            std::mem::forget(Arc::clone(&self.pinning));
            std::mem::forget(Arc::clone(&self.device));
            // The thread may have held the queue's lock at the fork; closing the queue would wait for it.
            std::mem::forget(self.queue.clone());
        }
    }
}

/// Pins all slots, as far as the driver accepts them, and waits for it.
fn pin_all(pinning: &Pinning) -> Result<()> {
    pinning.start()?;
    pinning.wait(None);
    match pinning.error() {
        Some(why) if pinning.usable_slots() < pinning.slots() => {
            Err(CudaError::Core(Error::arena(why)))
        }
        _ => Ok(()),
    }
}

fn reject<T>(what: String) -> Result<T> {
    Err(CudaError::Core(Error::InvalidArgument(what)))
}

/// Sizes that hold the largest entry of the layout, and mostly many entries.
fn buffer_sizes(
    transfers: &Transfers,
    patterns: &Patterns,
    slots: &Pinned,
    staging: usize,
) -> BufferSizes {
    let (layout, memory) = (transfers.layout(), transfers.memory());
    let parts = slots.cuts().most_parts(memory.slot_bytes() as u64);
    let bytes = layout
        .geometry()
        .classes()
        .iter()
        .map(|class| class.rank_bytes);
    let most = bytes.max().unwrap_or(0);
    let packed = (most.div_ceil(memory.slot_bytes()) + 1) * parts;
    BufferSizes::new(
        patterns.most(layout),
        packed,
        most.div_ceil(TILE_BYTES),
        staging,
    )
}

/// Rejects layers in memory of the host or of another device.
fn check_memory(layout: &TransferLayout, device: &Device) -> Result<()> {
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
