//! The slots that copies read and fill.

use crate::error::{Error, Result};
use crate::ids::SlotId;
use crate::tier::Arena;
use crate::transfer::SlotMemory;

/// One plane per rank.
#[derive(Debug)]
pub struct Planes(Vec<SlotMemory>);

impl Planes {
    /// The planes of an arena that has all of them.
    ///
    /// # Errors
    /// [`Error::Arena`] if a plane is missing, [`Error::InvalidArgument`] for slots of another size.
    pub fn of(arena: &Arena, ranks: usize, slot_bytes: usize) -> Result<Self> {
        if arena.slot_bytes() != slot_bytes {
            return Err(Error::InvalidArgument(format!(
                "expected an arena with slots of {slot_bytes} bytes, found {}",
                arena.slot_bytes()
            )));
        }
        let planes = (0..ranks).map(|rank| arena.memory(rank));
        Ok(Self(planes.collect::<Result<_>>()?))
    }

    /// Whether these slots exist and hold so many bytes in each plane.
    pub fn hold(&self, slots: &[SlotId], shard_bytes: usize) -> bool {
        self.0.iter().all(|plane| {
            let known = |slot: &SlotId| (slot.0 as usize) < plane.slots();
            let bytes = slots.len().checked_mul(plane.slot_bytes());
            slots.iter().all(known) && bytes.is_some_and(|bytes| bytes >= shard_bytes)
        })
    }

    /// Reads a part of a shard.
    ///
    /// # Safety
    /// Nobody writes these slots meanwhile.
    pub unsafe fn gather(&self, rank: usize, slots: &[SlotId], offset: usize, bytes: &mut [u8]) {
        let mut done = 0;
        self.runs(rank, slots, offset, bytes.len(), |slot, length| {
            let to = bytes[done..done + length].as_mut_ptr();
            // SAFETY: `runs` stays inside the plane, which the slot memory keeps mapped; the caller sees
            // to it that nobody writes there, and the buffer is other memory.
            unsafe { slot.copy_to_nonoverlapping(to, length) };
            done += length;
        });
    }

    /// Writes a part of a shard.
    ///
    /// # Safety
    /// Nobody else uses these slots meanwhile.
    pub unsafe fn scatter(&self, rank: usize, slots: &[SlotId], offset: usize, bytes: &[u8]) {
        let mut done = 0;
        self.runs(rank, slots, offset, bytes.len(), |slot, length| {
            let from = bytes[done..done + length].as_ptr();
            // SAFETY: as in `gather`.
            unsafe { slot.copy_from_nonoverlapping(from, length) };
            done += length;
        });
    }

    /// Where a part of a shard lies.
    ///
    /// # Panics
    /// If it is not inside the slots.
    fn runs(
        &self,
        rank: usize,
        slots: &[SlotId],
        offset: usize,
        length: usize,
        mut each: impl FnMut(*mut u8, usize),
    ) {
        let plane = &self.0[rank];
        let part = plane.slot_bytes();
        let (mut offset, mut left) = (offset, length);
        while left > 0 {
            let slot = slots[offset / part].0 as usize;
            assert!(slot < plane.slots(), "expected a slot of the plane");
            let inside = offset % part;
            let length = left.min(part - inside);
            let first = plane.region().address().as_ptr();
            each(first.wrapping_add(slot * part + inside), length);
            offset += length;
            left -= length;
        }
    }
}
