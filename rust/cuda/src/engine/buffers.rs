//! Memory that batches use besides the bytes that move: lists of pieces and staging buffers on the device, digests of
//! tiles and completion words on the host. It is allocated when an engine starts.
//!
//! A *staging buffer* holds the payload of a batch in one piece, between a kernel that reaches the small pieces of the
//! engine's memory and the copies from or to the slots.
//!
//! A *completion word* is 64 bits of host memory. The device writes a batch's number there when the batch has ended.

use std::mem::size_of_val;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{Device, DeviceMemory, DevicePointer, HostMemory, Stream};
use crate::error::Result;
use crate::kernels::abi::{Packed, Strided, TILE_BYTES};

/// Most batches of one direction that are under way. Each has buffers of its own.
pub(super) const MOST_IN_FLIGHT: usize = 4;
/// Staging buffers of one direction: one fills while the other empties.
pub(super) const STAGING_BUFFERS: usize = 2;
/// Bytes from one completion word to the next: a cache line, so that nothing else is written to it.
const WORD: usize = 64;

/// How large the buffers of one batch are, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BufferSizes {
    pub(super) lists: usize,
    pub(super) digests: usize,
    /// Bytes of a staging buffer, whole tiles; 0 without any.
    pub(super) staging: usize,
}

impl BufferSizes {
    /// Enough for most batches: 64 KiB of lists, and digests of 128 MiB.
    const LEAST: usize = 64 << 10;

    /// Sizes that hold at least one entry of so many pieces and tiles. `staging`: bytes of all staging buffers of both
    /// directions.
    pub(super) fn new(strided: usize, packed: usize, tiles: usize, staging: usize) -> Self {
        let lists = strided * size_of::<Strided>() + packed * size_of::<Packed>();
        Self {
            lists: lists.max(Self::LEAST).next_multiple_of(WORD),
            digests: (tiles * size_of::<u64>())
                .max(Self::LEAST)
                .next_multiple_of(WORD),
            staging: staging / (2 * STAGING_BUFFERS) / TILE_BYTES * TILE_BYTES,
        }
    }
}

/// The buffers of one direction: one set for each batch that is under way, by index.
pub(super) struct Buffers {
    sizes: BufferSizes,
    host: HostMemory,
    lists: Option<DeviceMemory>,
    staging: Option<DeviceMemory>,
}

impl Buffers {
    /// Allocates the memory. `kernels`: whether kernels will be launched, which need lists, digests and staging buffers.
    /// If the device has no memory for staging buffers, adds a warning and goes without.
    pub(super) fn new(
        device: &Arc<Device>,
        mut sizes: BufferSizes,
        kernels: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        let each = WORD
            + if kernels {
                sizes.lists + sizes.digests
            } else {
                0
            };
        let lists = kernels.then(|| DeviceMemory::new(device, MOST_IN_FLIGHT * sizes.lists));
        if !kernels {
            sizes.staging = 0;
        }
        let mut staging = None;
        if sizes.staging > 0 {
            match DeviceMemory::new(device, STAGING_BUFFERS * sizes.staging) {
                Ok(memory) => staging = Some(memory),
                Err(error) if error.is_sticky() => return Err(error),
                Err(error) => {
                    warnings.push(format!(
                        "small pieces move slower: expected {} MiB of the device's memory for staging, found none: \
                         {error}; set less for the engine's caches or for staging",
                        (STAGING_BUFFERS * sizes.staging) >> 20
                    ));
                    sizes.staging = 0;
                }
            }
        }
        Ok(Self {
            sizes,
            host: HostMemory::new(device, MOST_IN_FLIGHT * each)?,
            lists: lists.transpose()?,
            staging,
        })
    }

    pub(super) fn sizes(&self) -> BufferSizes {
        self.sizes
    }

    /// The device's address of a staging buffer.
    pub(super) fn staging_address(&self, buffer: usize) -> Option<DevicePointer> {
        debug_assert!(buffer < STAGING_BUFFERS);
        let memory = self.staging.as_ref()?;
        Some(memory.address() + (buffer * self.sizes.staging) as u64)
    }

    /// The device's address of the completion word of a batch.
    pub(super) fn word_address(&self, index: usize) -> DevicePointer {
        self.host.mapped() + (index * WORD) as u64
    }

    /// The number that the device last wrote to the completion word.
    pub(super) fn word(&self, index: usize) -> u64 {
        debug_assert!(index < MOST_IN_FLIGHT);
        let word = self.host.host().as_ptr().wrapping_add(index * WORD).cast();
        // SAFETY: aligned, inside the memory, and written in one go by the device alone.
        unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire)
    }

    fn lists_at(&self, index: usize) -> usize {
        MOST_IN_FLIGHT * WORD + index * self.sizes.lists
    }

    fn digests_at(&self, index: usize) -> usize {
        self.lists_at(MOST_IN_FLIGHT) + index * self.sizes.digests
    }

    /// Copies both lists to the device; returns their addresses there.
    pub(super) fn upload(
        &self,
        device: &Device,
        index: usize,
        strided: &[Strided],
        packed: &[Packed],
        stream: &Stream,
    ) -> Result<(DevicePointer, DevicePointer)> {
        let (first, second) = (size_of_val(strided), size_of_val(packed));
        let memory = self.lists.as_ref().expect("made where kernels are");
        let target = memory.address() + (index * self.sizes.lists) as u64;
        debug_assert!(first + second <= self.sizes.lists);
        let host = self.host.host().as_ptr().wrapping_add(self.lists_at(index));
        // SAFETY: both lists fit. The last batch with this index has ended, so nothing reads this memory now. The
        // stream is live, and the memory stays until the engine ends.
        unsafe {
            host.copy_from_nonoverlapping(strided.as_ptr().cast(), first);
            host.add(first)
                .copy_from_nonoverlapping(packed.as_ptr().cast(), second);
            let (driver, bytes) = (device.driver(), first + second);
            driver.copy_to_device(target, host.cast(), bytes, stream.handle())?;
        }
        Ok((target, target + first as u64))
    }

    /// The device's address of the digests of a batch.
    pub(super) fn digests_address(&self, index: usize) -> DevicePointer {
        self.host.mapped() + self.digests_at(index) as u64
    }

    /// The digests of the first tiles, which the device has written.
    pub(super) fn digests(&self, index: usize, tiles: usize) -> &[u64] {
        debug_assert!(tiles * size_of::<u64>() <= self.sizes.digests);
        let first = self
            .host
            .host()
            .as_ptr()
            .wrapping_add(self.digests_at(index));
        // SAFETY: aligned to a cache line, inside the buffer, and no launch writes to it any more.
        unsafe { std::slice::from_raw_parts(first.cast(), tiles) }
    }
}
