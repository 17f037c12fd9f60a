//! Host memory that is pinned: registered with the driver, so that devices copy from and to it directly.
//!
//! A range can be registered once per process, while several engines and devices may share it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{CudaError, Result};

use super::device::Device;
use super::table::{DevicePointer, Driver, HOST_MEMORY_ALREADY_REGISTERED, Handle};

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
    /// Memory that another library of the process has pinned already is taken as it is, if both ends of the range show
    /// that it is pinned.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if the system pins no more, the memory can't be pinned, or only a part of it is pinned
    /// already.
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
                Err(error) if is_of_others(driver, &error, range, &users) => ours = false,
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
        // A failure drops the registration again.
        registration.mapped = mapped(driver, range.0)?;
        Ok(registration)
    }

    /// The device's address of the first byte.
    pub(crate) fn mapped(&self) -> DevicePointer {
        self.mapped
    }
}

/// The device's address of a byte of pinned memory.
fn mapped(driver: &Driver, address: usize) -> Result<DevicePointer> {
    let mut mapped = 0;
    let host = std::ptr::without_provenance_mut(address);
    // SAFETY: a place for an address. The driver only looks the host's address up.
    unsafe { driver.host_device_pointer(&raw mut mapped, host, 0)? };
    Ok(mapped)
}

/// Whether a range could not be registered because another library has registered the whole range. The driver reports
/// the same error if only a page of it is registered. A range of this crate that overlaps does not count: its holder
/// may give it up.
fn is_of_others(
    driver: &Driver,
    error: &CudaError,
    (start, nbytes): (usize, usize),
    users: &HashMap<(usize, usize), usize>,
) -> bool {
    let registered =
        matches!(error, CudaError::Driver { code, .. } if *code == HOST_MEMORY_ALREADY_REGISTERED);
    let last = nbytes.saturating_sub(1);
    let ours = |(first, bytes): &(usize, usize)| *first <= start + last && start < first + bytes;
    registered
        && !users.keys().any(ours)
        && match (mapped(driver, start), mapped(driver, start + last)) {
            (Ok(first), Ok(end)) => end.wrapping_sub(first) == last as u64,
            _ => false,
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
        if let (true, Ok(_entered)) = (last, self.device.enter_to_free()) {
            let host = self.address.as_ptr().cast::<c_void>();
            // SAFETY: registered by this crate, and nobody uses it any more. A failure leaves nothing to be done.
            let _ = unsafe { self.device.driver().host_unregister(host) };
        }
    }
}
