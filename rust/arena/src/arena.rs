//! The arena: slots of a fixed size, cut into one plane per rank.
//!
//! ```text
//! slot        0      1      2   ...
//! plane 0  [ s/R ][ s/R ][ s/R ]        the shards of rank 0: made, bound and pinned by its worker
//! plane 1  [ s/R ][ s/R ][ s/R ]        the shards of rank 1
//! ```
//! A slot of `s` bytes has `s/R` in each of the `R` planes. A shard fills its slots' parts in its own
//! plane, in order.

use std::sync::Arc;

use hybrid_pages::error::{Error, Result};
use hybrid_pages::geometry::{Fingerprint, Geometry};
use hybrid_pages::ids::SlotId;
use hybrid_pages::transfer::SlotMemory;

use crate::mapping::{self, PlaneOptions};
use crate::plane::Plane;

/// The planes of an arena that this process has, ordered by rank: all of them, or some.
#[derive(Debug)]
pub struct Arena {
    planes: Vec<Arc<Plane>>,
    ranks: usize,
}

impl Arena {
    /// The most slots of an arena: a [`SlotId`] must be able to name each.
    pub const MAX_SLOTS: usize = u32::MAX as usize;

    /// Creates an arena of zeros, with the planes of all ranks. A slot has `slot_bytes` bytes in all planes together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on no slots or too many, and on slots that can't be cut into equal parts;
    /// [`Error::Budget`] on more than the machine's memory; [`Error::Arena`] if the system refuses.
    pub fn create(geometry: &Geometry, slot_bytes: usize, slots: usize) -> Result<Self> {
        Self::create_with(geometry, slot_bytes, slots, PlaneOptions::default())
    }

    /// Creates an arena as [`create`](Self::create) does, in memory that meets the options where it can.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create), and [`Error::Budget`] if the system lacks huge pages.
    pub fn create_with(
        geometry: &Geometry,
        slot_bytes: usize,
        slots: usize,
        options: PlaneOptions,
    ) -> Result<Self> {
        let ranks: Vec<usize> = (0..geometry.ranks()).collect();
        Self::of_ranks(geometry, &ranks, slot_bytes, slots, options)
    }

    /// Creates an arena as [`create_with`](Self::create_with) does, with the plane of one rank alone.
    ///
    /// # Errors
    /// The errors of [`create_with`](Self::create_with), and [`Error::InvalidArgument`] if the geometry has no such
    /// rank.
    pub fn create_plane(
        geometry: &Geometry,
        rank: usize,
        slot_bytes: usize,
        slots: usize,
        options: PlaneOptions,
    ) -> Result<Self> {
        if rank >= geometry.ranks() {
            return Err(Error::InvalidArgument(format!(
                "arena: expected a rank below {}, found {rank}",
                geometry.ranks()
            )));
        }
        Self::of_ranks(geometry, &[rank], slot_bytes, slots, options)
    }

    fn of_ranks(
        geometry: &Geometry,
        ranks: &[usize],
        slot_bytes: usize,
        slots: usize,
        options: PlaneOptions,
    ) -> Result<Self> {
        if slot_bytes == 0 || !(1..=Self::MAX_SLOTS).contains(&slots) {
            return Err(Error::InvalidArgument(format!(
                "arena: expected 1 to {} slots of at least 1 byte, found {slots} of {slot_bytes}",
                Self::MAX_SLOTS
            )));
        }
        let part = geometry.rank_slot_bytes(slot_bytes)?;
        let physical = mapping::physical_memory();
        let total = part
            .checked_mul(slots)
            .and_then(|n| n.checked_mul(ranks.len()));
        if total.is_none_or(|bytes| bytes > physical) {
            return Err(Error::Budget(format!(
                "arena: expected at most this machine's memory, {physical} bytes, found {slots} \
                 slots of {slot_bytes} bytes"
            )));
        }
        let planes = ranks
            .iter()
            .map(|&rank| Plane::create(geometry, rank, part, slots, options))
            .collect::<Result<_>>()?;
        Ok(Self {
            planes,
            ranks: geometry.ranks(),
        })
    }

    /// Maps planes that other processes (or this one) created, by their paths.
    ///
    /// # Errors
    /// [`Error::Foreign`] if one was made for another geometry or by another format version,
    /// [`Error::Arena`] if one is no plane, or no longer there, or if they do not belong together.
    pub fn open<P: AsRef<str>>(paths: &[P], geometry: &Geometry) -> Result<Self> {
        let open = |path: &P| Plane::open(path.as_ref(), geometry);
        let mut planes = paths.iter().map(open).collect::<Result<Vec<_>>>()?;
        planes.sort_unstable_by_key(|plane| plane.rank());
        let Some(first) = planes.first() else {
            return Err(Error::arena("expected at least one plane, found none"));
        };
        for pair in planes.windows(2) {
            if pair[0].rank() == pair[1].rank() {
                return Err(Error::arena(format!(
                    "expected one plane per rank, found {} and {} for rank {}",
                    name(&pair[0]),
                    name(&pair[1]),
                    pair[0].rank()
                )));
            }
        }
        let size = |plane: &Plane| (plane.slots(), plane.slot_bytes());
        if let Some(other) = planes.iter().find(|plane| size(plane) != size(first)) {
            return Err(Error::arena(format!(
                "{}: expected {} slots of {} bytes as in {}, found {} of {}",
                name(other),
                first.slots(),
                first.slot_bytes(),
                name(first),
                other.slots(),
                other.slot_bytes()
            )));
        }
        Ok(Self {
            planes,
            ranks: geometry.ranks(),
        })
    }

    /// The planes that this process has, by rank.
    #[must_use]
    pub fn planes(&self) -> &[Arc<Plane>] {
        &self.planes
    }

    /// The plane of a rank.
    ///
    /// # Errors
    /// [`Error::Arena`] if this process does not have it.
    pub fn plane(&self, rank: usize) -> Result<&Arc<Plane>> {
        let mut planes = self.planes.iter();
        planes.find(|plane| plane.rank() == rank).ok_or_else(|| {
            let found: Vec<_> = self.planes.iter().map(|plane| plane.rank()).collect();
            Error::arena(format!(
                "expected the plane of rank {rank}, found those of {found:?}"
            ))
        })
    }

    /// The slots in one rank's plane, for the rank's engine. The plane stays mapped while the engine has them.
    ///
    /// # Errors
    /// [`Error::Arena`] if this process does not have its plane.
    pub fn memory(&self, rank: usize) -> Result<SlotMemory> {
        self.plane(rank).map(Plane::memory)
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.planes[0].slots()
    }

    /// Bytes of one slot, in all planes together.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.planes[0].slot_bytes() * self.ranks
    }

    /// Bytes of all slots, in all planes together.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.slots() * self.slot_bytes()
    }

    /// Fingerprint of the geometry that the arena was made for.
    #[must_use]
    pub fn fingerprint(&self) -> &Fingerprint {
        self.planes[0].fingerprint()
    }

    /// A copy of one slot's bytes, rank after rank. For tools and tests: nobody may be writing the slot.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such slot, [`Error::Arena`] if a plane is missing.
    pub fn read(&self, slot: SlotId) -> Result<Vec<u8>> {
        self.check(slot)?;
        let mut data = vec![0; self.slot_bytes()];
        let parts = data.chunks_mut(self.planes[0].slot_bytes());
        for (plane, part) in self.planes.iter().zip(parts) {
            plane.read(slot, part);
        }
        Ok(data)
    }

    /// Writes the first bytes of one slot, rank after rank. For tools and tests: nobody else may be using
    /// it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such slot or the data exceed it, [`Error::Arena`] if a
    /// plane is missing.
    pub fn write(&self, slot: SlotId, data: &[u8]) -> Result<()> {
        self.check(slot)?;
        if data.len() > self.slot_bytes() {
            return Err(Error::InvalidArgument(format!(
                "slot {}: expected at most {} bytes, found {}",
                slot.0,
                self.slot_bytes(),
                data.len()
            )));
        }
        let parts = data.chunks(self.planes[0].slot_bytes());
        for (plane, part) in self.planes.iter().zip(parts) {
            plane.write(slot, part);
        }
        Ok(())
    }

    fn check(&self, slot: SlotId) -> Result<()> {
        let index = slot.0 as usize;
        if index >= self.slots() {
            return Err(Error::InvalidArgument(format!(
                "slot: expected below {}, found {index}",
                self.slots()
            )));
        }
        (0..self.ranks).try_for_each(|rank| self.plane(rank).map(drop))
    }
}

/// The name of a plane in error texts.
fn name(plane: &Plane) -> &str {
    plane.path().unwrap_or("private memory")
}
