//! A plane: one rank's part of every slot, in memory that the processes of a node share.

use std::sync::Arc;

use hybrid_pages::error::Result;
use hybrid_pages::geometry::{Fingerprint, Geometry};
use hybrid_pages::ids::SlotId;
use hybrid_pages::transfer::{Region, SlotMemory};

use crate::header::PlaneHeader;
use crate::mapping::{self, Mapping, PlaneOptions};

/// One rank's part of every slot. Nothing is left behind when the processes that map it are gone.
///
/// Memory is taken from the system slot by slot, when a slot is first written; huge pages are taken at once.
#[derive(Debug)]
pub struct Plane {
    mapping: Mapping,
    header: PlaneHeader,
    region: Region,
}

impl Plane {
    /// Creates the slots, all zero. `slot_bytes` counts the bytes of a slot in this plane.
    pub(crate) fn create(
        geometry: &Geometry,
        rank: usize,
        slot_bytes: usize,
        slots: usize,
        options: PlaneOptions,
    ) -> Result<Arc<Self>> {
        let page = mapping::page_bytes(options.huge_pages);
        let header = PlaneHeader {
            header_bytes: page.max(PlaneHeader::ENCODED_BYTES),
            slot_bytes,
            slots,
            fingerprint: *geometry.fingerprint(),
            rank,
            ranks: geometry.ranks(),
        };
        Self::over(Mapping::create(&header, options)?, header)
    }

    /// Opens the slots that another process (or this one) created.
    pub(crate) fn open(path: &str, geometry: &Geometry) -> Result<Arc<Self>> {
        let (mapping, header) = Mapping::open(path, geometry)?;
        Self::over(mapping, header)
    }

    fn over(mapping: Mapping, header: PlaneHeader) -> Result<Arc<Self>> {
        let first = mapping.address().as_ptr().wrapping_add(header.header_bytes);
        // SAFETY: the mapping covers header and slots, stays where it is while the plane lives
        // (`memory` hands the plane along as the owner) and cannot be truncated: it is sealed, or has no file.
        let region = unsafe { Region::new(first, header.slots * header.slot_bytes)? };
        Ok(Arc::new(Self {
            mapping,
            header,
            region,
        }))
    }

    /// The path where other processes of the same user open the plane, as long as its creator lives; `None` for private
    /// memory.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.mapping.path()
    }

    /// The position in the file at [`path`](Self::path) where the slots begin. Zeros may follow the last one.
    #[must_use]
    pub const fn first_slot_at(&self) -> usize {
        self.header.header_bytes
    }

    /// A warning if memory could not be taken from the NUMA node that the creator of the plane wished for.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.mapping.warning()
    }

    /// The rank whose shards are in this plane.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.header.rank
    }

    /// Number of slots.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.header.slots
    }

    /// Bytes of one slot in this plane.
    #[must_use]
    pub const fn slot_bytes(&self) -> usize {
        self.header.slot_bytes
    }

    /// Fingerprint of the geometry that the plane was made for.
    #[must_use]
    pub const fn fingerprint(&self) -> &Fingerprint {
        &self.header.fingerprint
    }

    /// The slots, for an engine. The plane stays mapped while the engine has them.
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

    /// All slots as one region, for a device to pin. The region is valid while the plane lives.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// A copy of one slot's bytes; the caller has checked that there is such a slot.
    pub(crate) fn read(&self, slot: SlotId, data: &mut [u8]) {
        let address = self.address_of(slot);
        assert!(data.len() <= self.slot_bytes());
        // SAFETY: the slot lies inside the mapping, whose bytes are always initialised, and is at
        // least as long as `data`, which is a slice of other memory.
        unsafe { address.copy_to_nonoverlapping(data.as_mut_ptr(), data.len()) };
    }

    /// Writes the first bytes of one slot; the caller has checked that there is such a slot.
    pub(crate) fn write(&self, slot: SlotId, data: &[u8]) {
        let address = self.address_of(slot);
        assert!(data.len() <= self.slot_bytes());
        // SAFETY: the slot lies inside the mapping and is at least as long as `data`, which is a
        // slice of other memory.
        unsafe { address.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    }

    fn address_of(&self, slot: SlotId) -> *mut u8 {
        let index = slot.0 as usize;
        assert!(index < self.slots());
        let first = self.region.address().as_ptr();
        first.wrapping_add(index * self.slot_bytes())
    }
}
