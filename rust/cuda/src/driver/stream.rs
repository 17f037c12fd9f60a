//! CUDA streams that the engine owns, and events between streams.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use crate::error::{CudaError, Result};

use super::device::Device;
use super::table::{DevicePointer, Handle, NOT_READY, STREAM_CAPTURE_IMPLICIT};

const STREAM_NON_BLOCKING: u32 = 1;
const EVENT_DISABLE_TIMING: u32 = 2;

/// The priority of a stream's work when the device is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    Least,
    Greatest,
}

/// A stream that is not synchronised with the default stream.
pub(crate) struct Stream {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(device: &Arc<Device>, priority: Priority) -> Result<Self> {
        let _entered = device.enter()?;
        let (mut least, mut greatest, mut handle) = (0, 0, ptr::null_mut());
        // SAFETY: places for what the functions return.
        unsafe {
            let driver = device.driver();
            driver.priority_range(&raw mut least, &raw mut greatest)?;
            let priority = match priority {
                Priority::Least => least,
                Priority::Greatest => greatest,
            };
            driver.stream_create(&raw mut handle, STREAM_NON_BLOCKING, priority)?;
        }
        Ok(Self {
            device: Arc::clone(device),
            handle,
        })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Work given to the stream from now on waits for the work that the event stands for now.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: both are live and of one context, which the caller has entered.
        unsafe {
            self.device
                .driver()
                .stream_wait_event(self.handle, event.handle, 0)
        }
    }

    /// Lets the device write a word when all work given to the stream until now has ended.
    ///
    /// # Safety
    /// Until then, only the device writes the word.
    pub(crate) unsafe fn write(&self, address: DevicePointer, value: u64) -> Result<()> {
        // SAFETY: the stream is live; the caller vouches for the word.
        unsafe {
            self.device
                .driver()
                .write_value(self.handle, address, value)
        }
    }

    /// Checks whether the device still works.
    pub(crate) fn check(&self) -> Result<()> {
        // SAFETY: the stream is live.
        match unsafe { self.device.driver().stream_query(self.handle) } {
            Err(CudaError::Driver { code, .. }) if code == NOT_READY => Ok(()),
            outcome => outcome,
        }
    }

    /// Waits on the host until all work given to the stream has ended.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is live.
        unsafe { self.device.driver().stream_synchronize(self.handle) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter_to_free() {
            // SAFETY: nobody uses it any more; a failure leaves nothing to be done.
            let _ = unsafe { self.device.driver().stream_destroy(self.handle) };
        }
    }
}

/// A point in a stream.
pub(crate) struct Event {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self> {
        let _entered = device.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: a place for an event.
        unsafe {
            device
                .driver()
                .event_create(&raw mut handle, EVENT_DISABLE_TIMING)?;
        }
        Ok(Self {
            device: Arc::clone(device),
            handle,
        })
    }

    /// Records the work given to a stream until now. The context must be entered.
    pub(crate) fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are live and of one context.
        unsafe {
            self.device
                .driver()
                .event_record(self.handle, stream.handle)
        }
    }

    /// Records the work given to a stream of the caller until now.
    ///
    /// # Safety
    /// The handle is a live stream of this device, or 0 for its default stream.
    pub(crate) unsafe fn record_foreign(&self, stream: usize) -> Result<()> {
        let stream: Handle = ptr::with_exposed_provenance_mut(stream);
        let _entered = self.device.enter()?;
        let driver = self.device.driver();
        let mut status: c_int = 0;
        // SAFETY: the caller promises a live stream.
        let asked = unsafe { driver.stream_is_capturing(stream, &raw mut status) };
        let implicit = matches!(&asked, Err(CudaError::Driver { code, .. }) if *code == STREAM_CAPTURE_IMPLICIT);
        if implicit || (asked.is_ok() && status != 0) {
            return Err(CudaError::Capturing);
        }
        asked?;
        // SAFETY: the caller promises a live stream.
        unsafe { driver.event_record(self.handle, stream) }
    }

    /// Whether all recorded work has ended.
    pub(crate) fn query(&self) -> Result<bool> {
        // SAFETY: the event is live.
        match unsafe { self.device.driver().event_query(self.handle) } {
            Ok(()) => Ok(true),
            Err(CudaError::Driver { code, .. }) if code == NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter_to_free() {
            // SAFETY: nobody uses it any more; a failure leaves nothing to be done.
            let _ = unsafe { self.device.driver().event_destroy(self.handle) };
        }
    }
}
