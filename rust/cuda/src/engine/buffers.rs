//! Memory that kernels use besides the bytes that move: lists on the device, digests on the host.

use std::mem::size_of_val;
use std::sync::Arc;

use crate::driver::{Device, DeviceMemory, DevicePointer, HostMemory, Stream};
use crate::error::Result;
use crate::kernels::abi::{Packed, Strided};

const LEAST: usize = 64 << 10;

/// The lists of one transfer, and a digest for each of its tiles. Kept for another transfer
/// when it has ended.
pub(super) struct Buffers {
    host: HostMemory,
    device: DeviceMemory,
    digests: HostMemory,
}

impl Buffers {
    fn new(device: &Arc<Device>, lists: usize, digests: usize) -> Result<Self> {
        let size = |needed: usize| needed.next_power_of_two().max(LEAST);
        Ok(Self {
            host: HostMemory::new(device, size(lists))?,
            device: DeviceMemory::new(device, size(lists))?,
            digests: HostMemory::new(device, size(digests))?,
        })
    }

    /// Gives the lists to the device; where the strided and where the packed ones lie there.
    pub(super) fn upload(
        &mut self,
        device: &Device,
        strided: &[Strided],
        packed: &[Packed],
        stream: &Stream,
    ) -> Result<(DevicePointer, DevicePointer)> {
        let (first, second) = (size_of_val(strided), size_of_val(packed));
        let host = self.host.host().as_ptr();
        debug_assert!(first + second <= self.host.nbytes());
        // SAFETY: both lists fit, by `Pool::take`; no copy from here is under way; the stream is
        // live and the memory stays until the transfer has ended.
        unsafe {
            host.copy_from_nonoverlapping(strided.as_ptr().cast(), first);
            host.add(first)
                .copy_from_nonoverlapping(packed.as_ptr().cast(), second);
            device.driver().copy_to_device(
                self.device.address(),
                host.cast(),
                first + second,
                stream.handle(),
            )?;
        }
        Ok((self.device.address(), self.device.address() + first as u64))
    }

    /// Where the device writes digests.
    pub(super) fn digests_address(&self) -> DevicePointer {
        self.digests.mapped()
    }

    /// The digests of that many tiles, which the device has written.
    pub(super) fn digests(&self, tiles: usize) -> &[u64] {
        debug_assert!(tiles * 8 <= self.digests.nbytes());
        // SAFETY: aligned to a page, as long by `Pool::take`, and no launch writes any more.
        unsafe { std::slice::from_raw_parts(self.digests.host().as_ptr().cast(), tiles) }
    }
}

/// Buffers of transfers that have ended.
#[derive(Default)]
pub(super) struct Pool {
    free: Vec<Buffers>,
}

impl Pool {
    const MOST: usize = 8;

    /// Room for so many bytes of lists and so many tiles.
    pub(super) fn take(
        &mut self,
        device: &Arc<Device>,
        lists: usize,
        tiles: usize,
    ) -> Result<Buffers> {
        let digests = tiles * size_of::<u64>();
        let fits = |b: &Buffers| b.host.nbytes() >= lists && b.digests.nbytes() >= digests;
        match self.free.iter().position(fits) {
            Some(index) => Ok(self.free.swap_remove(index)),
            None => Buffers::new(device, lists, digests),
        }
    }

    pub(super) fn give_back(&mut self, buffers: Buffers) {
        if self.free.len() == Self::MOST {
            self.free.remove(0);
        }
        self.free.push(buffers);
    }
}
