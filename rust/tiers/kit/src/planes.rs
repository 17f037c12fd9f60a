//! Access to the host's slots for the copies of tiers.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::ptr::null_mut;

use hybrid_pages::error::{Error, Result};
use hybrid_pages::ids::SlotId;
use hybrid_pages::transfer::{SlotMemory, Tile, fence};
use hybrid_pages_arena::Arena;

/// The most parts that one system call writes.
const MOST_PARTS: usize = 1024;

/// The planes of an arena, one per rank.
#[derive(Debug)]
pub struct Planes(Vec<SlotMemory>);

impl Planes {
    /// The planes of an arena, which must have all of them.
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

    /// Whether these slots exist and have room for `shard_bytes` bytes in each plane.
    pub fn hold(&self, slots: &[SlotId], shard_bytes: usize) -> bool {
        self.0.iter().all(|plane| {
            let known = |slot: &SlotId| (slot.0 as usize) < plane.slots();
            let bytes = slots.len().checked_mul(plane.slot_bytes());
            slots.iter().all(known) && bytes.is_some_and(|bytes| bytes >= shard_bytes)
        })
    }

    /// Copies a tile of a shard out of slots. Returns the tile's digest.
    ///
    /// # Safety
    /// Nobody writes these slots at the same time.
    pub unsafe fn gather(
        &self,
        rank: usize,
        slots: &[SlotId],
        offset: usize,
        to: &mut [u8],
    ) -> u64 {
        let mut tile = Tile::through_caches();
        let mut done = 0;
        self.runs(rank, slots, offset, to.len(), |slot, length| {
            let to = to[done..done + length].as_mut_ptr();
            // SAFETY: `runs` stays inside the plane, which the slot memory keeps mapped; the caller sees
            // to it that nobody writes there, and the buffer is other memory.
            unsafe { tile.pass(slot, to, length) };
            done += length;
        });
        tile.digest()
    }

    /// The digest of a tile of a shard in slots.
    ///
    /// # Safety
    /// Nobody writes these slots at the same time.
    pub unsafe fn digest(
        &self,
        rank: usize,
        slots: &[SlotId],
        offset: usize,
        length: usize,
    ) -> u64 {
        let mut tile = Tile::through_caches();
        self.runs(rank, slots, offset, length, |slot, length| {
            // SAFETY: as in `gather`; nothing is written.
            unsafe { tile.pass(slot, null_mut(), length) };
        });
        tile.digest()
    }

    /// Writes a tile of a shard into slots, past the processor's caches. Returns the tile's digest.
    ///
    /// # Safety
    /// Nobody else uses these slots at the same time.
    pub unsafe fn scatter(&self, rank: usize, slots: &[SlotId], offset: usize, from: &[u8]) -> u64 {
        let mut tile = Tile::past_caches();
        let mut done = 0;
        self.runs(rank, slots, offset, from.len(), |slot, length| {
            let from = from[done..done + length].as_ptr();
            // SAFETY: as in `gather`.
            unsafe { tile.pass(from, slot, length) };
            done += length;
        });
        fence();
        tile.digest()
    }

    /// Appends a part of a shard to a file. The call may hang with the file system. If the slots are written
    /// meanwhile, the bytes in the file are undefined.
    ///
    /// # Errors
    /// The errors of the file system; any part of the bytes may have been written.
    pub fn write(
        &self,
        rank: usize,
        slots: &[SlotId],
        offset: usize,
        length: usize,
        file: &File,
    ) -> io::Result<()> {
        let mut parts: Vec<libc::iovec> = Vec::new();
        self.runs(rank, slots, offset, length, |slot, length| {
            parts.push(libc::iovec {
                iov_base: slot.cast(),
                iov_len: length,
            });
        });
        let mut left = &mut parts[..];
        while let Some(first) = left.first_mut() {
            if first.iov_len == 0 {
                left = &mut left[1..];
                continue;
            }
            let count = left.len().min(MOST_PARTS) as libc::c_int;
            // SAFETY: the parts lie inside the plane, which the slot memory keeps mapped.
            let written = unsafe { libc::writev(file.as_raw_fd(), left.as_ptr(), count) };
            let Ok(mut written) = usize::try_from(written) else {
                let error = io::Error::last_os_error();
                if error.kind() == ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            };
            if written == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            for part in left.iter_mut() {
                let done = written.min(part.iov_len);
                part.iov_base = part.iov_base.wrapping_byte_add(done);
                part.iov_len -= done;
                written -= done;
            }
        }
        Ok(())
    }

    /// Calls `each` with address and length of each run of adjacent bytes in a part of a shard.
    ///
    /// # Panics
    /// If the part is not inside the slots.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
    use hybrid_pages::ids::ClassKind;
    use hybrid_pages::transfer::{TILE_BYTES, tile_digest};

    #[test]
    fn tiles_move_through_any_slots_with_their_digests() {
        const SLOT: usize = 24;
        let slots: Vec<SlotId> = (0..TILE_BYTES.div_ceil(SLOT) as u32 + 1)
            .rev()
            .map(SlotId)
            .collect();
        assert!(slots.len() < MOST_PARTS && 2 * slots.len() > MOST_PARTS);
        let segment = Segment::new("data", Dtype::Uint8, vec![SLOT]).unwrap();
        let layer = Layer::new("layer", vec![segment]).unwrap();
        let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
        let geometry = Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap();
        let arena = Arena::create(&geometry, SLOT, slots.len()).unwrap();
        let planes = Planes::of(&arena, 1, SLOT).unwrap();
        let bytes: Vec<u8> = (0..TILE_BYTES).map(|at| (at * 7 / 3) as u8).collect();
        let (digest, from) = (tile_digest(&bytes), 5);
        let mut back = vec![0; TILE_BYTES];
        let twice: Vec<SlotId> = slots.iter().chain(&slots).copied().collect();
        let mut file = tempfile::tempfile().unwrap();
        // SAFETY: nobody else has the arena.
        unsafe {
            assert_eq!(planes.scatter(0, &slots, from, &bytes), digest);
            assert_eq!(planes.digest(0, &slots, from, TILE_BYTES), digest);
            assert_eq!(planes.gather(0, &slots, from, &mut back), digest);
        }
        assert!(back == bytes);
        let shard = slots.len() * SLOT;
        planes
            .write(0, &twice, from, shard + TILE_BYTES, &file)
            .unwrap();
        let mut written = Vec::new();
        io::Seek::rewind(&mut file).unwrap();
        io::Read::read_to_end(&mut file, &mut written).unwrap();
        assert_eq!(written.len(), shard + TILE_BYTES);
        assert!(written[..TILE_BYTES] == bytes && written[shard..] == bytes);
    }
}
