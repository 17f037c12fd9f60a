//! A device and its primary context, the one that frameworks use.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use crate::error::{CudaError, Result};

use super::table::{Driver, Handle};

const MULTIPROCESSOR_COUNT: c_int = 16;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
const CAPTURE_RELAXED: c_int = 2;

/// One device, its primary context held.
pub struct Device {
    driver: Arc<Driver>,
    ordinal: usize,
    id: c_int,
    context: Handle,
    name: String,
    uuid: [u8; 16],
    capability: (u32, u32),
    multiprocessors: u32,
}

// SAFETY: the driver's functions may be called from any thread; a context is entered where it is
// used.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// How many there are.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn count(driver: &Driver) -> Result<usize> {
        let mut count = 0;
        // SAFETY: a place for an int.
        unsafe { driver.device_count(&raw mut count)? };
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Opens one by its number, as `CUDA_VISIBLE_DEVICES` orders them.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] if there is no such device, [`CudaError::Driver`].
    pub fn open(driver: &Arc<Driver>, ordinal: usize) -> Result<Arc<Self>> {
        let count = Self::count(driver)?;
        if ordinal >= count {
            return Err(CudaError::Unavailable(format!(
                "device: expected one of {count}, found number {ordinal}"
            )));
        }
        let number = c_int::try_from(ordinal).expect("below a count that is an int");
        let mut id = 0;
        let mut name = [0 as c_char; 256];
        let mut uuid = [0; 16];
        // SAFETY: places for what the functions return; the name ends with a zero.
        let name = unsafe {
            driver.device_get(&raw mut id, number)?;
            driver.device_name(name.as_mut_ptr(), 256, id)?;
            driver.device_uuid(&raw mut uuid, id)?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        let attribute = |which| -> Result<u32> {
            let mut value = 0;
            // SAFETY: a place for an int.
            unsafe { driver.device_attribute(&raw mut value, which, id)? };
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let capability = (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?);
        let multiprocessors = attribute(MULTIPROCESSOR_COUNT)?.max(1);
        let mut context = ptr::null_mut();
        // SAFETY: a place for a context; released when the device is dropped.
        unsafe { driver.context_retain(&raw mut context, id)? };
        Ok(Arc::new(Self {
            driver: Arc::clone(driver),
            ordinal,
            id,
            context,
            name,
            uuid,
            capability,
            multiprocessors,
        }))
    }

    /// Its driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Its number.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// What it calls itself.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its identity, in hexadecimal digits.
    #[must_use]
    pub fn uuid(&self) -> String {
        self.uuid.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Compute capability, major and minor.
    #[must_use]
    pub fn capability(&self) -> (u32, u32) {
        self.capability
    }

    /// Multiprocessors.
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Makes its context current on this thread, and calls of this thread harmless to a graph
    /// capture elsewhere, until the guard is dropped.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn enter(&self) -> Result<Entered<'_>> {
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: the context is held; `mode` receives the thread's own.
        unsafe {
            self.driver.context_push(self.context)?;
            if let Err(error) = self.driver.exchange_capture_mode(&raw mut mode) {
                let mut left = ptr::null_mut();
                self.driver.context_pop(&raw mut left)?;
                return Err(error);
            }
        }
        Ok(Entered { device: self, mode })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once. There is nobody to tell of a failure, and nothing left to use.
        let _ = unsafe { self.driver.context_release(self.id) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {:?})", self.ordinal, self.name)
    }
}

/// While it lives, its device's context is current on this thread.
pub struct Entered<'a> {
    device: &'a Device,
    mode: c_int,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        // SAFETY: undoes what `enter` did on this thread. A failure means that the context is
        // broken, which the next call says.
        unsafe {
            let _ = self.device.driver.exchange_capture_mode(&raw mut self.mode);
            let _ = self.device.driver.context_pop(&raw mut context);
        }
    }
}
