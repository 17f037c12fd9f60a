//! Memory that flights use besides the bytes that move, all taken when an engine starts: lists on the
//! device, digests and words on the host.

use std::mem::size_of_val;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{Device, DeviceMemory, DevicePointer, HostMemory, Stream};
use crate::error::Result;
use crate::kernels::abi::{Packed, Strided};

/// Most flights of a direction.
pub(super) const FLIGHTS: usize = 4;
/// Of a word: whatever else the processor or the device writes is in other lines.
const WORD: usize = 64;

/// What a flight may need, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) lists: usize,
    pub(super) digests: usize,
}

impl Room {
    /// Enough for many flights: 64 KiB of lists, digests of 128 MiB.
    const LEAST: usize = 64 << 10;

    /// At least room for an entry of so many pieces and tiles.
    pub(super) fn new(strided: usize, packed: usize, tiles: usize) -> Self {
        let lists = strided * size_of::<Strided>() + packed * size_of::<Packed>();
        Self {
            lists: lists.max(Self::LEAST).next_multiple_of(WORD),
            digests: (tiles * size_of::<u64>())
                .max(Self::LEAST)
                .next_multiple_of(WORD),
        }
    }
}

/// The memory of one direction's flights, by their places.
pub(super) struct Buffers {
    room: Room,
    host: HostMemory,
    lists: Option<DeviceMemory>,
}

impl Buffers {
    /// `kernels`: whether any will be launched.
    pub(super) fn new(device: &Arc<Device>, room: Room, kernels: bool) -> Result<Self> {
        let each = WORD
            + if kernels {
                room.lists + room.digests
            } else {
                0
            };
        let lists = kernels.then(|| DeviceMemory::new(device, FLIGHTS * room.lists));
        Ok(Self {
            room,
            host: HostMemory::new(device, FLIGHTS * each)?,
            lists: lists.transpose()?,
        })
    }

    pub(super) fn room(&self) -> Room {
        self.room
    }

    /// Where the device writes when a flight has ended.
    pub(super) fn word_address(&self, place: usize) -> DevicePointer {
        self.host.mapped() + (place * WORD) as u64
    }

    /// The last word that the device has written there.
    pub(super) fn word(&self, place: usize) -> u64 {
        debug_assert!(place < FLIGHTS);
        let word = self.host.host().as_ptr().wrapping_add(place * WORD).cast();
        // SAFETY: aligned, inside the memory, and written in one go by the device alone.
        unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire)
    }

    fn lists_at(&self, place: usize) -> usize {
        FLIGHTS * WORD + place * self.room.lists
    }

    fn digests_at(&self, place: usize) -> usize {
        self.lists_at(FLIGHTS) + place * self.room.digests
    }

    /// Gives the lists to the device; where the strided and where the packed ones lie there.
    pub(super) fn upload(
        &self,
        device: &Device,
        place: usize,
        strided: &[Strided],
        packed: &[Packed],
        stream: &Stream,
    ) -> Result<(DevicePointer, DevicePointer)> {
        let (first, second) = (size_of_val(strided), size_of_val(packed));
        let memory = self.lists.as_ref().expect("made where kernels are");
        let target = memory.address() + (place * self.room.lists) as u64;
        debug_assert!(first + second <= self.room.lists);
        let host = self.host.host().as_ptr().wrapping_add(self.lists_at(place));
        // SAFETY: both lists fit; no copy from here is under way, since the place's last flight has
        // ended; the stream is live and the memory stays until the engine ends.
        unsafe {
            host.copy_from_nonoverlapping(strided.as_ptr().cast(), first);
            host.add(first)
                .copy_from_nonoverlapping(packed.as_ptr().cast(), second);
            let (driver, bytes) = (device.driver(), first + second);
            driver.copy_to_device(target, host.cast(), bytes, stream.handle())?;
        }
        Ok((target, target + first as u64))
    }

    /// Where the device writes digests.
    pub(super) fn digests_address(&self, place: usize) -> DevicePointer {
        self.host.mapped() + self.digests_at(place) as u64
    }

    /// The digests of that many tiles, which the device has written.
    pub(super) fn digests(&self, place: usize, tiles: usize) -> &[u64] {
        debug_assert!(tiles * size_of::<u64>() <= self.room.digests);
        let first = self
            .host
            .host()
            .as_ptr()
            .wrapping_add(self.digests_at(place));
        // SAFETY: aligned to a word's line, as long as its room, and no launch writes any more.
        unsafe { std::slice::from_raw_parts(first.cast(), tiles) }
    }
}
