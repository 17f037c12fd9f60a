//! Host memory that is pinned: registered with the driver, so that devices copy from and to it directly.
//!
//! A range can be registered once per process, while several engines and devices may share it.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{CudaError, Result};

use super::device::Device;
use super::table::{DevicePointer, HOST_MEMORY_ALREADY_REGISTERED, Handle};

const PORTABLE_MAPPED: u32 = 1 | 2;

/// A range of pinned host memory, unpinned when the last registration of it is dropped.
pub struct Registration {
    device: Arc<Device>,
    address: NonNull<u8>,
    nbytes: usize,
    mapped: DevicePointer,
    /// Whether this crate registered it, and not another library of the process.
    ours: bool,
}

// SAFETY: a registration only names memory.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Pins a range of memory for all devices.
    ///
    /// # Safety
    /// The range stays mapped until the last registration of it is dropped.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if the system pins no more, or the memory can't be pinned.
    pub unsafe fn new(device: &Arc<Device>, address: NonNull<u8>, nbytes: usize) -> Result<Self> {
        let _entered = device.enter()?;
        let driver = device.driver();
        let range = (address.addr().get(), nbytes);
        let host: Handle = address.as_ptr().cast::<c_void>();
        let mut users = driver.pinned();
        let mut ours = true;
        if let Some(count) = users.get_mut(&range) {
            *count += 1;
        } else {
            // SAFETY: the caller promises that the range stays mapped.
            match unsafe { driver.host_register(host, nbytes, PORTABLE_MAPPED) } {
                Ok(()) => {
                    users.insert(range, 1);
                }
                Err(CudaError::Driver { code, .. }) if code == HOST_MEMORY_ALREADY_REGISTERED => {
                    ours = false;
                }
                Err(error) => return Err(error),
            }
        }
        drop(users);
        let mut registration = Self {
            device: Arc::clone(device),
            address,
            nbytes,
            mapped: 0,
            ours,
        };
        let place = &raw mut registration.mapped;
        // SAFETY: a place for an address; the range is registered. A failure drops it again.
        unsafe { driver.host_device_pointer(place, host, 0)? };
        Ok(registration)
    }

    /// The device's address of the first byte.
    pub(crate) fn mapped(&self) -> DevicePointer {
        self.mapped
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        let range = (self.address.addr().get(), self.nbytes);
        let mut users = self.device.driver().pinned();
        let last = match users.get_mut(&range) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => users.remove(&range).is_some(),
        };
        if let (true, Ok(_entered)) = (last, self.device.enter()) {
            let host = self.address.as_ptr().cast::<c_void>();
            // SAFETY: registered by this crate, and nobody uses it any more. A failure leaves nothing to be done.
            let _ = unsafe { self.device.driver().host_unregister(host) };
        }
    }
}
