//! The arena: fixed-size slots in memory that the processes of a node share.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::geometry::{Fingerprint, Geometry};
use crate::ids::SlotId;
use crate::transfer::{Region, SlotMemory};

use super::header::Header;
use super::mapping::{self, Mapping};

/// Slots in shared memory. Nothing is left behind when the processes that map it are gone.
///
/// Memory is taken from the system slot by slot, when a slot is first written.
#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
    header: Header,
    region: Region,
}

impl Arena {
    /// Most slots: a [`SlotId`] names each.
    pub const MAX_SLOTS: usize = u32::MAX as usize;

    /// New slots, all zero.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on no slots or too many, [`Error::Budget`] on more than the
    /// machine's memory, [`Error::Arena`] if the system refuses.
    pub fn create(geometry: &Geometry, slot_bytes: usize, slots: usize) -> Result<Self> {
        if slot_bytes == 0 || !(1..=Self::MAX_SLOTS).contains(&slots) {
            return Err(Error::InvalidArgument(format!(
                "arena: expected 1 to {} slots of at least 1 byte, found {slots} of {slot_bytes}",
                Self::MAX_SLOTS
            )));
        }
        let physical = mapping::physical_memory();
        if slot_bytes
            .checked_mul(slots)
            .is_none_or(|bytes| bytes > physical)
        {
            return Err(Error::Budget(format!(
                "arena: expected at most this machine's memory, {physical} bytes, found {slots} \
                 slots of {slot_bytes} bytes"
            )));
        }
        let header_bytes = mapping::page_bytes().max(Header::ENCODED_BYTES);
        let fingerprint = *geometry.fingerprint();
        let header = Header {
            header_bytes,
            slot_bytes,
            slots,
            fingerprint,
        };
        Self::over(Mapping::create(&header)?, header)
    }

    /// Maps the slots that another process (or this one) created, by their path.
    ///
    /// # Errors
    /// [`Error::Foreign`] if it was made for another geometry or by another format version,
    /// [`Error::Arena`] if it is no arena, or no longer there.
    pub fn open(path: &str, geometry: &Geometry) -> Result<Self> {
        let (mapping, header) = Mapping::open(path, geometry)?;
        Self::over(mapping, header)
    }

    fn over(mapping: Mapping, header: Header) -> Result<Self> {
        let first = mapping.address().as_ptr().wrapping_add(header.header_bytes);
        // SAFETY: the mapping covers header and slots, stays where it is while the arena lives
        // (`memory` hands the arena along as the owner) and cannot be truncated: it is sealed.
        let region = unsafe { Region::new(first, header.slots * header.slot_bytes)? };
        Ok(Self {
            mapping,
            header,
            region,
        })
    }

    /// Where other processes of the same user open it, as long as its creator lives.
    #[must_use]
    pub fn path(&self) -> &str {
        self.mapping.path()
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.header.slots
    }

    /// Bytes of one slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.header.slot_bytes
    }

    /// Bytes of all slots.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.region.nbytes()
    }

    /// Of the geometry it was made for.
    #[must_use]
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.header.fingerprint
    }

    /// The slots for an engine, which keeps the arena mapped.
    #[must_use]
    pub fn memory(self: &Arc<Self>) -> SlotMemory {
        let owner = Arc::clone(self);
        SlotMemory::new(
            self.region,
            self.slot_bytes(),
            self.slots(),
            *self.fingerprint(),
            owner,
        )
        .expect("slots fill their region")
    }

    /// All slots as one region: what a device pins. It is gone with the arena.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// A copy of one slot's bytes. For tools and tests: nobody may be writing the slot.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such slot.
    pub fn read(&self, slot: SlotId) -> Result<Vec<u8>> {
        let mut data = vec![0; self.slot_bytes()];
        let address = self.address_of(slot)?;
        // SAFETY: the slot lies inside the mapping, whose bytes are always initialised, and `data`
        // is as long.
        unsafe { address.copy_to_nonoverlapping(data.as_mut_ptr(), data.len()) };
        Ok(data)
    }

    /// Writes the first bytes of one slot. For tools and tests: nobody else may be using it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such slot or the data exceed it.
    pub fn write(&self, slot: SlotId, data: &[u8]) -> Result<()> {
        let address = self.address_of(slot)?;
        if data.len() > self.slot_bytes() {
            return Err(Error::InvalidArgument(format!(
                "slot {}: expected at most {} bytes, found {}",
                slot.0,
                self.slot_bytes(),
                data.len()
            )));
        }
        // SAFETY: the slot lies inside the mapping and is at least as long as `data`, which is a
        // slice of other memory.
        unsafe { address.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }

    fn address_of(&self, slot: SlotId) -> Result<*mut u8> {
        let index = slot.0 as usize;
        if index >= self.slots() {
            return Err(Error::InvalidArgument(format!(
                "slot: expected below {}, found {index}",
                self.slots()
            )));
        }
        Ok(self
            .region
            .address()
            .as_ptr()
            .wrapping_add(index * self.slot_bytes()))
    }
}
