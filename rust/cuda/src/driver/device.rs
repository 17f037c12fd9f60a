//! A device and its primary context, which frameworks use, too.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use crate::error::{CudaError, Result};

use super::table::{Driver, Handle};

const MULTIPROCESSOR_COUNT: c_int = 16;
const INTEGRATED: c_int = 18;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
const CAPTURE_RELAXED: c_int = 2;

/// A device's properties, as the driver reports them.
#[derive(Debug, Clone)]
pub struct Description {
    /// The device's number in the order of `CUDA_VISIBLE_DEVICES`.
    pub ordinal: usize,
    /// The device's name.
    pub name: String,
    /// The device's UUID, in hexadecimal digits.
    pub uuid: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// How many multiprocessors the device has.
    pub multiprocessors: u32,
    /// Whether the device has no memory of its own, but uses the host's.
    pub integrated: bool,
}

impl Description {
    /// Describes the device with this number. Makes no context.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] if there is no such device, [`CudaError::Driver`].
    pub fn of(driver: &Driver, ordinal: usize) -> Result<Self> {
        let id = find(driver, ordinal)?;
        let mut name = [0 as c_char; 256];
        let mut uuid = [0_u8; 16];
        // SAFETY: the pointers are to places for the results; the name ends with a zero.
        let name = unsafe {
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
        Ok(Self {
            ordinal,
            name,
            uuid: uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
            capability: (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?),
            multiprocessors: attribute(MULTIPROCESSOR_COUNT)?.max(1),
            integrated: attribute(INTEGRATED)? != 0,
        })
    }
}

pub(super) fn find(driver: &Driver, ordinal: usize) -> Result<c_int> {
    let count = Device::count(driver)?;
    if ordinal >= count {
        return Err(CudaError::Unavailable(format!(
            "device: expected one of {count}, found number {ordinal}"
        )));
    }
    let number = c_int::try_from(ordinal).expect("below a count that is an int");
    let mut id = 0;
    // SAFETY: a place for an int.
    unsafe { driver.device_get(&raw mut id, number)? };
    Ok(id)
}

/// An open device: its primary context is retained.
pub struct Device {
    driver: Arc<Driver>,
    id: c_int,
    context: Handle,
    description: Description,
}

// SAFETY: the driver's functions may be called from any thread; a context is entered where it is
// used.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// How many devices there are.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn count(driver: &Driver) -> Result<usize> {
        let mut count = 0;
        // SAFETY: a place for an int.
        unsafe { driver.device_count(&raw mut count)? };
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Opens the device with this number.
    ///
    /// # Errors
    /// The errors of [`Description::of`].
    pub fn open(driver: &Arc<Driver>, ordinal: usize) -> Result<Arc<Self>> {
        let description = Description::of(driver, ordinal)?;
        let id = find(driver, ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: a place for a context; released when the device is dropped.
        unsafe { driver.context_retain(&raw mut context, id)? };
        Ok(Arc::new(Self {
            driver: Arc::clone(driver),
            id,
            context,
            description,
        }))
    }

    /// The device's properties.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The driver that the device was opened with.
    #[must_use]
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Makes the device's context current on this thread until the guard is dropped. Calls of this thread
    /// do not disturb graph captures of other threads meanwhile.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn enter(&self) -> Result<Entered<'_>> {
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: the context is held; `mode` receives the thread's former mode.
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

    /// As [`enter`](Self::enter), to give something back. It is tried twice: what is not given back is lost to the
    /// process.
    pub(crate) fn enter_to_free(&self) -> Result<Entered<'_>> {
        self.enter().or_else(|_| self.enter())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the context was retained once. A failure leaves nothing to be done.
        let _ = unsafe { self.driver.context_release(self.id) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.description).finish()
    }
}

/// A guard: while it lives, the device's context is current on this thread.
pub struct Entered<'a> {
    device: &'a Device,
    mode: c_int,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        // SAFETY: undoes what `enter` did on this thread. If it fails, the context is broken, and the next call
        // reports that.
        unsafe {
            let _ = self.device.driver.exchange_capture_mode(&raw mut self.mode);
            let _ = self.device.driver.context_pop(&raw mut context);
        }
    }
}
