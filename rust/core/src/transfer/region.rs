//! Memory that this crate did not allocate.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::geometry::Fingerprint;

/// A stretch of memory that belongs to someone else, for reading and writing.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    address: NonNull<u8>,
    nbytes: usize,
}

// SAFETY: a region is only an address and a length; whoever dereferences it relies on the promise
// given to `Region::new`, which names no thread.
unsafe impl Send for Region {}
// SAFETY: as above; nothing behind a shared reference can change.
unsafe impl Sync for Region {}

impl Region {
    /// Names `nbytes` bytes from `address` on.
    ///
    /// # Safety
    /// Until the last copy that uses the region has finished, all of its bytes must stay readable
    /// and writable from every thread, and whoever submits a copy must see to it that nothing
    /// else writes what it reads or touches what it writes. Regions may overlay each other.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on a null address, no bytes, or an end beyond the address space.
    pub unsafe fn new(address: *mut u8, nbytes: usize) -> Result<Self> {
        let fits = isize::try_from(nbytes).is_ok() && address.addr().checked_add(nbytes).is_some();
        match NonNull::new(address) {
            Some(address) if nbytes > 0 && fits => Ok(Self { address, nbytes }),
            _ => Err(Error::InvalidArgument(format!(
                "region: expected mapped memory, found {nbytes} bytes at {address:p}"
            ))),
        }
    }

    /// The address of the first byte.
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The number of bytes.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The address `offset` bytes in. The caller has checked that it lies inside.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.nbytes);
        self.address.as_ptr().wrapping_add(offset)
    }
}

/// One rank's part of the slots of an arena, as its engine sees them, and what keeps them mapped.
#[derive(Clone)]
pub struct SlotMemory {
    region: Region,
    slot_bytes: usize,
    slots: usize,
    fingerprint: Fingerprint,
    _owner: Arc<dyn Any + Send + Sync>,
}

impl SlotMemory {
    /// Slots that fill a region; `owner` lives as long as any engine that uses them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the slots do not fill the region exactly.
    pub fn new(
        region: Region,
        slot_bytes: usize,
        slots: usize,
        fingerprint: Fingerprint,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        if slot_bytes.checked_mul(slots) != Some(region.nbytes()) {
            return Err(Error::InvalidArgument(format!(
                "slots: expected {slots} slots of {slot_bytes} bytes to fill the region, found {} \
                 bytes",
                region.nbytes()
            )));
        }
        Ok(Self {
            region,
            slot_bytes,
            slots,
            fingerprint,
            _owner: owner,
        })
    }

    /// The memory of all slots, one after another.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// Bytes of one slot, in this rank's plane.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Fingerprint of the geometry that the arena was made for.
    #[must_use]
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }
}

impl fmt::Debug for SlotMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            region,
            slot_bytes,
            slots,
            fingerprint,
            _owner,
        } = self;
        f.debug_struct("SlotMemory")
            .field("region", region)
            .field("slot_bytes", slot_bytes)
            .field("slots", slots)
            .field("fingerprint", fingerprint)
            .finish_non_exhaustive()
    }
}
