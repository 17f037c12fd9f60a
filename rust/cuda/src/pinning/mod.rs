//! Pins slots piece by piece, in a background thread.
//!
//! A pinning outlives the copy engines that use it, such as those that a sleeping vLLM closes.

mod cuts;
mod options;
mod state;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use hybrid_pages::error::{Cause, Error};
use hybrid_pages::guarded::lock;
use hybrid_pages::ids::SlotId;
use hybrid_pages::transfer::SlotMemory;

use crate::driver::{Device, Driver};
use crate::error::{CudaError, Result};

pub(crate) use cuts::Cuts;
pub use options::PinningOptions;
use state::PinningState;

/// Pins the slots of an arena in the background, from slot 0 on.
///
/// Slots that cannot be pinned are used as pageable memory, which is slower.
pub struct Pinning {
    state: Arc<PinningState>,
    thread: Mutex<Option<JoinHandle<()>>>,
    process: u32,
}

impl Pinning {
    /// Prepares to pin slots for a device. Nothing is pinned before [`start`](Self::start).
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] without driver or device; [`CudaError::Core`] with
    /// [`Error::InvalidArgument`] on pieces below a page; [`CudaError::Driver`].
    pub fn new(memory: SlotMemory, device: usize, options: &PinningOptions) -> Result<Self> {
        Self::of(memory, Device::open(&Driver::get()?, device)?, options)
    }

    /// As [`new`](Self::new), for an open device.
    pub(crate) fn of(
        memory: SlotMemory,
        device: Arc<Device>,
        options: &PinningOptions,
    ) -> Result<Self> {
        let PinningOptions {
            piece_bytes,
            page_bytes,
            ..
        } = options;
        if *page_bytes == 0 || piece_bytes < page_bytes {
            return reject(format!(
                "piece_bytes: expected at least {page_bytes}, a page of memory, found {piece_bytes}"
            ));
        }
        Ok(Self {
            state: Arc::new(PinningState::new(memory, device, options)?),
            thread: Mutex::new(None),
            process: std::process::id(),
        })
    }

    /// Starts to pin the slots, unless that was done before. What has to be allocated or loaded on the device is best
    /// done earlier: calls of the driver wait while a piece is pinned.
    ///
    /// # Errors
    /// [`CudaError::Core`] with [`Error::Transfer`] if the system starts no thread.
    pub fn start(&self) -> Result<()> {
        let mut progress = self.state.progress();
        if progress.started || progress.closed {
            return Ok(());
        }
        let state = Arc::clone(&self.state);
        let thread = Builder::new()
            .name("hybrid-pages-pin".into())
            .spawn(move || state.run())
            .map_err(|error| {
                let text = format!("the thread that pins cannot start: {error}");
                CudaError::Core(Error::transfer(Cause::new(text, error)))
            })?;
        progress.started = true;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// How many slots are pinned. The number grows, and is 0 after [`close`](Self::close).
    #[must_use]
    pub fn pinned_slots(&self) -> usize {
        self.state.pinned.load(Ordering::Acquire)
    }

    /// How many of the usable slots could not be pinned, so that copies go through pageable memory.
    #[must_use]
    pub fn unpinned_slots(&self) -> usize {
        self.state.unpinned.load(Ordering::Acquire)
    }

    /// How many slots engines may use, from slot 0 on: those that are pinned, or could not be.
    #[must_use]
    pub fn usable_slots(&self) -> usize {
        self.state.usable.load(Ordering::Acquire)
    }

    /// How many slots the arena has.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.state.memory.slots()
    }

    /// If some slots could not be pinned: the reason, and what that costs.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.state.error()
    }

    /// Seconds that pinning has taken so far.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.state.progress().seconds
    }

    /// Waits until pinning has ended: no further slot becomes usable. Returns whether that happened in time.
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
                return reject(format!(
                    "pinning: expected no engine that uses it, found {engines}: close them first"
                ));
            }
            progress.closed = true;
        }
        self.release();
        Ok(())
    }

    fn release(&self) {
        {
            let mut progress = self.state.progress();
            progress.closed = true;
            self.state.stop.store(true, Ordering::Release);
            self.state.changed.notify_all();
        }
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let left = thread.join();
            debug_assert!(left.is_ok(), "the thread catches nothing that panics");
        }
        let mut progress = self.state.progress();
        for slots in [&self.state.usable, &self.state.pinned, &self.state.unpinned] {
            slots.store(0, Ordering::Release);
        }
        progress.registrations.clear();
        progress.ended = true;
        self.state.changed.notify_all();
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
        reject(format!(
            "pinning: expected one of the arena that the engine gets, found {found}"
        ))
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

/// The use of a pinning by one engine; the pinning cannot be closed meanwhile.
pub(crate) struct Pinned(Arc<Pinning>);

impl Pinned {
    pub(crate) fn cuts(&self) -> Cuts {
        self.0.state.cuts
    }

    /// Whether all of these slots, which are usable, are pinned.
    pub(crate) fn are_pinned(&self, slots: &[SlotId]) -> bool {
        let state = &self.0.state;
        state.unpinned.load(Ordering::Acquire) == 0
            || slots.iter().all(|slot| state.is_pinned(slot.0 as usize))
    }

    /// The device's address for a host address in a slot that is pinned.
    pub(crate) fn mapped(&self, address: u64) -> u64 {
        let offset = self.0.state.offset(address);
        debug_assert!(offset.is_some(), "the slot is pinned");
        address.wrapping_add(offset.unwrap_or(0))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.state.engines.fetch_sub(1, Ordering::AcqRel);
    }
}

fn reject<T>(what: String) -> Result<T> {
    Err(CudaError::Core(Error::InvalidArgument(what)))
}
