//! Memory that the engine allocates: on the device, and pinned on the host.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::error::{CudaError, Result};

use super::device::Device;
use super::table::{DevicePointer, Handle, INVALID_VALUE};

const HOST_PORTABLE_MAPPED: u32 = 1 | 2;
const ATTRIBUTE_MEMORY_TYPE: c_int = 2;
const ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
const MEMORY_TYPE_DEVICE: u32 = 2;

/// Memory on the device, freed when dropped.
pub(crate) struct DeviceMemory {
    device: Arc<Device>,
    address: DevicePointer,
}

impl DeviceMemory {
    pub(crate) fn new(device: &Arc<Device>, nbytes: usize) -> Result<Self> {
        let _entered = device.enter()?;
        let mut address = 0;
        // SAFETY: a place for an address.
        unsafe {
            device
                .driver()
                .memory_allocate(&raw mut address, nbytes.max(1))?;
        }
        Ok(Self {
            device: Arc::clone(device),
            address,
        })
    }

    pub(crate) fn address(&self) -> DevicePointer {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter_to_free() {
            // SAFETY: nothing uses it any more; a failure leaves nothing to be done.
            let _ = unsafe { self.device.driver().memory_free(self.address) };
        }
    }
}

/// Pinned memory on the host, mapped for the device and zero at first; freed when dropped.
pub(crate) struct HostMemory {
    device: Arc<Device>,
    host: NonNull<u8>,
    mapped: DevicePointer,
}

// SAFETY: plain memory, whose users synchronise their accesses.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    pub(crate) fn new(device: &Arc<Device>, nbytes: usize) -> Result<Self> {
        let _entered = device.enter()?;
        let driver = device.driver();
        let mut host: Handle = ptr::null_mut();
        // SAFETY: a place for an address.
        unsafe { driver.host_allocate(&raw mut host, nbytes.max(1), HOST_PORTABLE_MAPPED)? };
        let mut memory = Self {
            device: Arc::clone(device),
            host: NonNull::new(host.cast()).ok_or_else(|| {
                CudaError::Unavailable("cuMemHostAlloc: expected memory, found none".into())
            })?,
            mapped: 0,
        };
        // SAFETY: the memory is ours, as long as said, and mapped.
        unsafe {
            memory.host.as_ptr().write_bytes(0, nbytes);
            driver.host_device_pointer(&raw mut memory.mapped, host, 0)?;
        }
        Ok(memory)
    }

    pub(crate) fn host(&self) -> NonNull<u8> {
        self.host
    }

    /// The device's address of this memory.
    pub(crate) fn mapped(&self) -> DevicePointer {
        self.mapped
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter_to_free() {
            // SAFETY: nothing uses it any more; a failure leaves nothing to be done.
            let _ = unsafe { self.device.driver().host_free(self.host.as_ptr().cast()) };
        }
    }
}

/// The number of the device that holds the byte at an address; `None` for memory of the host.
pub(crate) fn memory_kind(device: &Device, address: DevicePointer) -> Result<Option<usize>> {
    let _entered = device.enter()?;
    let driver = device.driver();
    let (mut kind, mut ordinal): (u32, c_int) = (0, 0);
    // SAFETY: the pointers are to places with the sizes of the attributes.
    unsafe {
        match driver.pointer_attribute((&raw mut kind).cast(), ATTRIBUTE_MEMORY_TYPE, address) {
            Ok(()) if kind == MEMORY_TYPE_DEVICE => {}
            Ok(()) => return Ok(None),
            // Memory that the driver has never heard of is the host's.
            Err(CudaError::Driver { code, .. }) if code == INVALID_VALUE => return Ok(None),
            Err(error) => return Err(error),
        }
        driver.pointer_attribute((&raw mut ordinal).cast(), ATTRIBUTE_DEVICE_ORDINAL, address)?;
    }
    Ok(usize::try_from(ordinal).ok())
}
