//! Pins slots piece by piece, in a background thread.
//!
//! A pinning outlives the copy engines that use it, such as those that a sleeping vLLM closes.

mod cuts;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

use hybrid_pages::error::{Cause, Error};
use hybrid_pages::guarded::lock;
use hybrid_pages::transfer::{Region, SlotMemory};
use hybrid_pages_arena::prefault;

use crate::driver::{Device, Driver, Registration, numa_node};
use crate::error::{CudaError, Result};

pub(crate) use cuts::Cuts;

/// Number of threads that touch memory before it is pinned.
const THREADS: usize = 4;

/// The treatment of pinned pieces when a later piece cannot be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnFailure {
    /// They stay pinned, and the slots after them are not used.
    Keeps,
    /// They are given back, and all slots are used as pageable memory.
    GivesBack,
}

/// Pins the slots of an arena in the background, from slot 0 on.
///
/// If not even the first piece can be pinned, all slots are used as pageable memory.
pub struct Pinning {
    state: Arc<PinningState>,
    thread: Mutex<Option<JoinHandle<()>>>,
    process: u32,
}

struct PinningState {
    device: Arc<Device>,
    memory: SlotMemory,
    cuts: Cuts,
    failure: OnFailure,
    /// The NUMA node that the device is nearest to.
    node: Option<u32>,
    /// For each pinned piece, the device's address of a byte minus the host's.
    mapped: Vec<AtomicU64>,
    pinned: AtomicUsize,
    usable: AtomicUsize,
    pageable: AtomicBool,
    stop: AtomicBool,
    engines: AtomicUsize,
    progress: Mutex<PinningProgress>,
    changed: Condvar,
}

#[derive(Default)]
struct PinningProgress {
    registrations: Vec<Registration>,
    error: Option<String>,
    seconds: f64,
    ended: bool,
    closed: bool,
}

impl Pinning {
    /// The default size of a piece in bytes. Every known system pins as much in one call.
    pub const PIECE_BYTES: usize = 2 << 30;

    /// Starts to pin slots for a device, in pieces of at most `piece_bytes`.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] without driver or device; [`CudaError::Core`] with
    /// [`Error::InvalidArgument`] on pieces below a page; [`CudaError::Driver`].
    pub fn new(memory: SlotMemory, device: usize, piece_bytes: usize) -> Result<Self> {
        let device = Device::open(&Driver::get()?, device)?;
        Self::begin(memory, device, piece_bytes, OnFailure::Keeps)
    }

    /// Pins all slots or none, and waits for it.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new), and [`CudaError::Core`] with [`Error::Arena`] if the system lacks memory for
    /// the slots.
    pub(crate) fn whole(memory: SlotMemory, device: &Arc<Device>) -> Result<Self> {
        let device = Arc::clone(device);
        let pinning = Self::begin(memory, device, Self::PIECE_BYTES, OnFailure::GivesBack)?;
        pinning.wait(None);
        match pinning.error() {
            Some(why) if pinning.usable_slots() == 0 => Err(CudaError::Core(Error::arena(why))),
            _ => Ok(pinning),
        }
    }

    fn begin(
        memory: SlotMemory,
        device: Arc<Device>,
        piece_bytes: usize,
        failure: OnFailure,
    ) -> Result<Self> {
        const LEAST: usize = 4096;
        if piece_bytes < LEAST {
            return Err(CudaError::Core(Error::InvalidArgument(format!(
                "piece_bytes: expected at least {LEAST}, found {piece_bytes}"
            ))));
        }
        let region = memory.region();
        let start = region.address().as_ptr().expose_provenance() as u64;
        let slot_bytes = memory.slot_bytes() as u64;
        let cuts = Cuts::new(
            start,
            region.nbytes() as u64,
            slot_bytes,
            piece_bytes as u64,
        );
        let node = numa_node(device.driver(), device.description().ordinal)?;
        let state = Arc::new(PinningState {
            device,
            node: node.and_then(|node| u32::try_from(node).ok()),
            memory,
            failure,
            mapped: (0..cuts.count()).map(|_| AtomicU64::new(0)).collect(),
            cuts,
            pinned: AtomicUsize::new(0),
            usable: AtomicUsize::new(0),
            pageable: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            engines: AtomicUsize::new(0),
            progress: Mutex::default(),
            changed: Condvar::new(),
        });
        let working = Arc::clone(&state);
        let thread = Builder::new()
            .name("hybrid-pages-pin".into())
            .spawn(move || working.run())
            .map_err(|error| {
                let text = format!("the thread that pins cannot start: {error}");
                CudaError::Core(Error::transfer(Cause::new(text, error)))
            })?;
        Ok(Self {
            state,
            thread: Mutex::new(Some(thread)),
            process: std::process::id(),
        })
    }

    /// How many slots are pinned, from slot 0 on. The number grows, and is 0 after [`close`](Self::close).
    #[must_use]
    pub fn pinned_slots(&self) -> usize {
        self.state.pinned.load(Ordering::Acquire)
    }

    /// How many slots engines may use, from slot 0 on: the pinned ones, or all if none can be pinned.
    #[must_use]
    pub fn usable_slots(&self) -> usize {
        self.state.usable.load(Ordering::Acquire)
    }

    /// How many slots the arena has.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.state.memory.slots()
    }

    /// If some slots will not be pinned: the reason, and what that costs.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.state.progress().error.clone()
    }

    /// Seconds that pinning has taken so far.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.state.progress().seconds
    }

    /// Waits until all slots are pinned or pinning has failed. Returns whether that happened in time.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut progress = self.state.progress();
        while !progress.ended {
            let changed = &self.state.changed;
            progress = match deadline.map(|end| end.saturating_duration_since(Instant::now())) {
                None => changed
                    .wait(progress)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return false,
                Some(left) => {
                    let woken = changed.wait_timeout(progress, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }

    /// Stops pinning, and unpins all slots.
    ///
    /// # Errors
    /// [`CudaError::Core`] with [`Error::InvalidArgument`] while an engine uses the pinning.
    pub fn close(&self) -> Result<()> {
        {
            // Engines join under the same lock, so none can join after this.
            let mut progress = self.state.progress();
            let engines = self.state.engines.load(Ordering::Acquire);
            if engines > 0 {
                return Err(CudaError::Core(Error::InvalidArgument(format!(
                    "pinning: expected no engine that uses it, found {engines}: close them first"
                ))));
            }
            progress.closed = true;
        }
        self.release();
        Ok(())
    }

    fn release(&self) {
        self.state.stop.store(true, Ordering::Release);
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let left = thread.join();
            debug_assert!(left.is_ok(), "the thread catches nothing that panics");
        }
        let mut progress = self.state.progress();
        progress.closed = true;
        self.state.usable.store(0, Ordering::Release);
        self.state.pinned.store(0, Ordering::Release);
        progress.registrations.clear();
    }

    /// Registers an engine that uses these slots.
    ///
    /// # Errors
    /// [`CudaError::Core`] with [`Error::InvalidArgument`] if the pinning is of other slots, or was closed.
    pub(crate) fn join(self: &Arc<Self>, memory: &SlotMemory) -> Result<Pinned> {
        let (ours, theirs) = (self.state.memory.region(), memory.region());
        let progress = self.state.progress();
        let found = if progress.closed {
            "one that is closed"
        } else if (ours.address(), ours.nbytes()) != (theirs.address(), theirs.nbytes()) {
            "one of other slots"
        } else {
            self.state.engines.fetch_add(1, Ordering::AcqRel);
            return Ok(Pinned(Arc::clone(self)));
        };
        Err(CudaError::Core(Error::InvalidArgument(format!(
            "pinning: expected one of the arena that the engine gets, found {found}"
        ))))
    }
}

impl Drop for Pinning {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.release();
        } else {
            // The driver does not work in a forked process, which must free nothing of it.
            std::mem::forget(Arc::clone(&self.state));
        }
    }
}

impl PinningState {
    fn progress(&self) -> MutexGuard<'_, PinningProgress> {
        lock(&self.progress)
    }

    fn run(&self) {
        let begin = Instant::now();
        let mut failed = None;
        for index in 0..self.cuts.count() {
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            if let Err(error) = self.take(index) {
                failed = Some(self.without_memory(index, &error));
                break;
            }
            match self.pin(index) {
                Ok((registration, offset)) => {
                    self.mapped[index].store(offset, Ordering::Relaxed);
                    let mut progress = self.progress();
                    progress.registrations.push(registration);
                    progress.seconds = begin.elapsed().as_secs_f64();
                    drop(progress);
                    if self.failure == OnFailure::Keeps {
                        self.publish(index + 1);
                    }
                }
                Err(error) => {
                    failed = Some(self.give_up(index, &error));
                    break;
                }
            }
        }
        if failed.is_none() && self.failure == OnFailure::GivesBack {
            self.publish(self.cuts.count());
        }
        let mut progress = self.progress();
        progress.error = failed;
        progress.seconds = begin.elapsed().as_secs_f64();
        progress.ended = true;
        self.changed.notify_all();
    }

    fn publish(&self, pieces: usize) {
        let slots = self.cuts.slots(pieces, self.memory.slot_bytes() as u64);
        self.pinned.store(slots, Ordering::Release);
        self.usable.store(slots, Ordering::Release);
    }

    fn part(&self, index: usize) -> Result<Region> {
        let (address, bytes) = self.cuts.piece(index);
        let region = self.memory.region();
        let offset = address as usize - region.address().addr().get();
        let first = region.address().as_ptr().wrapping_add(offset);
        // SAFETY: a part of the slots' region, which `memory` keeps mapped.
        Ok(unsafe { Region::new(first, bytes as usize)? })
    }

    /// Makes the system provide the memory of a piece.
    fn take(&self, index: usize) -> Result<()> {
        let threads = available_parallelism().map_or(1, usize::from).min(THREADS);
        Ok(prefault(self.part(index)?, threads, self.node)?)
    }

    fn pin(&self, index: usize) -> Result<(Registration, u64)> {
        let part = self.part(index)?;
        // SAFETY: a part of the slots' region, which `memory` keeps mapped.
        let pinned = unsafe { Registration::new(&self.device, part.address(), part.nbytes())? };
        let offset = pinned.mapped().wrapping_sub(self.cuts.piece(index).0);
        Ok((pinned, offset))
    }

    /// Handles a piece for which the system has no memory; its slots must not be used. Returns the error's text.
    fn without_memory(&self, index: usize, error: &CudaError) -> String {
        if self.failure == OnFailure::GivesBack {
            self.progress().registrations.clear();
        }
        format!(
            "the system has no memory for {} bytes of the arena's slots: {error}. {} of {} slots are \
             used: give the process more memory, or the arena less",
            self.cuts.piece(index).1,
            self.usable.load(Ordering::Acquire),
            self.memory.slots()
        )
    }

    /// Handles a piece that cannot be pinned. Returns the error's text.
    fn give_up(&self, index: usize, error: &CudaError) -> String {
        let bytes = self.cuts.piece(index).1;
        let mut what = format!("pinning {bytes} bytes of the arena's slots failed: {error}. ");
        if index > 0 && self.failure == OnFailure::Keeps {
            what += &format!(
                "{} of {} slots are used: give the process more memory to pin, or the arena less",
                self.pinned.load(Ordering::Acquire),
                self.memory.slots()
            );
            return what;
        }
        self.progress().registrations.clear();
        self.pageable.store(true, Ordering::Release);
        self.usable.store(self.memory.slots(), Ordering::Release);
        what + "Copies go through pageable memory, which is slower: give the process more memory to \
                pin, or the arena less"
    }
}

/// The use of a pinning by one engine; the pinning cannot be closed meanwhile.
pub(crate) struct Pinned(Arc<Pinning>);

impl Pinned {
    pub(crate) fn cuts(&self) -> Cuts {
        self.0.state.cuts
    }

    /// Whether nothing could be pinned, so that all slots are pageable memory.
    pub(crate) fn is_pageable(&self) -> bool {
        self.0.state.pageable.load(Ordering::Acquire)
    }

    /// The device's address for a host address in a usable slot.
    pub(crate) fn mapped(&self, address: u64) -> u64 {
        let state = &self.0.state;
        let (piece, _) = state.cuts.at(address);
        address.wrapping_add(state.mapped[piece].load(Ordering::Relaxed))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.state.engines.fetch_sub(1, Ordering::AcqRel);
    }
}
