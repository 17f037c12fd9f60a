//! Proves kernels on their device: each moves and hashes three odd tiles, as its twin does on the host.

use std::mem::size_of_val;
use std::sync::Arc;

use hybrid_pages::error::Error;

use crate::driver::{Device, DeviceMemory, HostMemory, Priority, Stream};
use crate::error::{CudaError, Result};

use super::abi::{Packed, Paging, Strided, TILE_BYTES};
use super::module::{Kernel, Module, Width};
use super::twin;

const TILES: usize = 3;
/// Tiles of the first launch of each kernel; the second launch takes the others.
const FIRST: usize = 2;
/// Bytes of the side with strided pieces, and of the side with packed ones.
const ENGINE_BYTES: usize = 80 << 10;
const SLOT_BYTES: usize = TILES * TILE_BYTES;
/// Bytes of both lists at most.
const LIST_BYTES: usize = 1 << 10;

/// The strided and the packed list for memory at these addresses: every width of words, negative strides, gaps, and
/// cuts that differ. The last tile is not full.
fn lists(engine: u64, slots: u64) -> (Vec<Strided>, Vec<Packed>) {
    let strided = |position, offset, run: u32, runs: u32, stride| Strided {
        bytes: u64::from(run) * u64::from(runs),
        stride,
        ..Strided::once(position, engine + offset, run)
    };
    let packed = |position, end, offset| Packed {
        position,
        address: slots + offset,
        bytes: end - position,
    };
    (
        vec![
            strided(0, 0, 4096, 3, 4144),
            strided(12_293, 12_501, 7, 300, 11),
            strided(14_400, 16_001, 1, 1, 0),
            strided(14_404, 26_005, 9001, 2, -9009),
            strided(32_776, 36_008, 8, 1000, 24),
            strided(40_776, 60_002, 2, 501, 6),
            strided(41_780, 64_004, 4, 250, 12),
        ],
        vec![
            packed(0, 8192, 64),
            packed(8192, 9992, 8264),
            packed(9992, 20_001, 10_065),
            packed(20_001, 32_768, 20_080),
            packed(32_768, 42_780, 33_000),
        ],
    )
}

fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(next).collect()
}

/// Runs all kernels of a module over the same lists as their twins, and compares bytes and digests.
///
/// # Errors
/// [`CudaError::Core`] with the first difference, [`CudaError::Driver`].
pub(crate) fn prove(device: &Arc<Device>, module: &Module) -> Result<()> {
    let proof = Proof {
        stream: Stream::new(device, Priority::Greatest)?,
        engine: DeviceMemory::new(device, ENGINE_BYTES + LIST_BYTES)?,
        host: HostMemory::new(device, DIGESTS + TILES * size_of::<u64>())?,
        device,
        module,
    };
    let outcome = proof.run();
    // Nothing may use the memory when it is freed.
    let _entered = device.enter()?;
    proof.stream.synchronize().and(outcome)
}

/// Offsets in the memory of the host: an image of the device's memory, the slots, the digests.
const IMAGE: usize = 0;
const SLOTS: usize = IMAGE + ENGINE_BYTES + LIST_BYTES;
const DIGESTS: usize = SLOTS + SLOT_BYTES;

struct Proof<'a> {
    stream: Stream,
    engine: DeviceMemory,
    host: HostMemory,
    device: &'a Device,
    module: &'a Module,
}

impl Proof<'_> {
    fn run(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        let (engine, slots) = (random(1, ENGINE_BYTES), random(2, SLOT_BYTES));
        self.upload(&engine)?;

        self.put(SLOTS, &slots);
        self.launch(Kernel::Gather)?;
        let mut expected = TwinBytes::new(&engine, &slots);
        expected.run(Kernel::Gather);
        self.compare(Kernel::Gather, SLOTS, &expected.slots, &expected.digests)?;

        self.launch(Kernel::Digest)?;
        expected.run(Kernel::Digest);
        self.compare(Kernel::Digest, SLOTS, &expected.slots, &expected.digests)?;

        let slots = random(3, SLOT_BYTES);
        self.put(SLOTS, &slots);
        self.launch(Kernel::Scatter)?;
        self.download()?;
        let mut expected = TwinBytes::new(&engine, &slots);
        expected.run(Kernel::Scatter);
        self.compare(Kernel::Scatter, IMAGE, &expected.engine, &expected.digests)
    }

    /// Copies the bytes of the engine's side to the device, and the lists behind them.
    fn upload(&self, engine: &[u8]) -> Result<()> {
        let (strided, packed) = self.lists();
        self.put(IMAGE, engine);
        self.put(IMAGE + ENGINE_BYTES, &strided);
        self.put(IMAGE + ENGINE_BYTES + size_of_val(&*strided), &packed);
        let (driver, bytes) = (self.device.driver(), ENGINE_BYTES + LIST_BYTES);
        let (to, from) = (self.engine.address(), self.at(IMAGE).cast());
        // SAFETY: both sides are as long as said, and live until the stream has ended.
        unsafe { driver.copy_to_device(to, from, bytes, self.stream.handle())? };
        self.stream.synchronize()
    }

    /// Copies the engine's side back to its image.
    fn download(&self) -> Result<()> {
        let (driver, from) = (self.device.driver(), self.engine.address());
        let to = self.at(IMAGE).cast();
        // SAFETY: both sides are as long as said, and live until the stream has ended.
        unsafe { driver.copy_to_host(to, from, ENGINE_BYTES, self.stream.handle())? };
        self.stream.synchronize()
    }

    fn lists(&self) -> (Vec<Strided>, Vec<Packed>) {
        lists(self.engine.address(), self.host.mapped() + SLOTS as u64)
    }

    /// Launches a kernel in two parts, and waits for both.
    fn launch(&self, kernel: Kernel) -> Result<()> {
        let (strided, packed) = self.lists();
        let at = self.engine.address() + ENGINE_BYTES as u64;
        self.put(DIGESTS, &[0_u64; TILES]);
        for (first, tiles) in [(0, FIRST), (FIRST, TILES - FIRST)] {
            let paging = Paging {
                strided: at,
                packed: at + size_of_val(&*strided) as u64,
                strided_count: strided.len() as u32,
                packed_count: packed.len() as u32,
                first_tile: first as u64,
                tile_count: tiles as u64,
                digests: self.host.mapped() + (DIGESTS + first * size_of::<u64>()) as u64,
            };
            // SAFETY: lists, digests and all bytes of the tiles live until the stream has ended.
            unsafe {
                self.module
                    .launch(kernel, paging, Width::All, &self.stream)?
            };
        }
        self.stream.synchronize()
    }

    /// Compares memory of the host, and the digests, with what is expected there.
    fn compare(&self, kernel: Kernel, at: usize, bytes: &[u8], digests: &[u64]) -> Result<()> {
        let found = self.get(at, bytes.len());
        let differs = |what: String| {
            let text = format!("{kernel:?} kernel, tried on known bytes: {what}");
            Err(CudaError::Core(Error::transfer(text)))
        };
        let mut pairs = bytes.iter().zip(&found);
        if let Some(index) = pairs.position(|(expected, found)| expected != found) {
            let (expected, found) = (bytes[index], found[index]);
            return differs(format!(
                "byte {index}: expected {expected:#04x}, found {found:#04x}"
            ));
        }
        let found = self.get(DIGESTS, size_of_val(digests));
        for (tile, (expected, found)) in digests.iter().zip(found.chunks(8)).enumerate() {
            if expected.to_ne_bytes() != found {
                return differs(format!("digest of tile {tile}: expected {expected:016x}"));
            }
        }
        Ok(())
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.host.host().as_ptr().wrapping_add(offset)
    }

    fn put<T: Copy>(&self, offset: usize, values: &[T]) {
        let bytes = size_of_val(values);
        // SAFETY: within the memory, which the device does not use now.
        unsafe {
            self.at(offset)
                .copy_from_nonoverlapping(values.as_ptr().cast(), bytes);
        }
    }

    fn get(&self, offset: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: within the memory, which is initialised and which the device does not use now.
        unsafe { std::slice::from_raw_parts(self.at(offset), bytes) }.to_vec()
    }
}

/// The same memory on the host, for the twins.
struct TwinBytes {
    engine: Vec<u8>,
    slots: Vec<u8>,
    digests: [u64; TILES],
}

impl TwinBytes {
    fn new(engine: &[u8], slots: &[u8]) -> Self {
        Self {
            engine: engine.to_vec(),
            slots: slots.to_vec(),
            digests: [0; TILES],
        }
    }

    fn run(&mut self, kernel: Kernel) {
        let address = |bytes: &mut [u8]| bytes.as_mut_ptr().expose_provenance() as u64;
        let (strided, packed) = lists(address(&mut self.engine), address(&mut self.slots));
        debug_assert!(twin::check(&strided, &packed).is_ok());
        let digests = &mut self.digests;
        let tiles = TILES as u64;
        // SAFETY: the lists are well formed, and their pieces lie in the two vectors.
        unsafe {
            match kernel {
                Kernel::Gather => twin::gather(&strided, &packed, 0, tiles, Some(digests)),
                Kernel::Scatter => twin::scatter(&strided, &packed, 0, tiles, Some(digests)),
                Kernel::Digest => twin::digest(&strided, 0, tiles, digests),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_sound_and_lie_in_their_memory() {
        let (base, slots) = (1 << 20, 1 << 30);
        let (strided, packed) = lists(base, slots);
        twin::check(&strided, &packed).unwrap();
        let lists = size_of_val(&*strided) + size_of_val(&*packed);
        assert!(lists <= LIST_BYTES);
        let mut reached = vec![false; ENGINE_BYTES];
        for piece in &strided {
            for run in 0..piece.runs() {
                let at = piece
                    .address
                    .wrapping_add((run as i64 * piece.stride) as u64)
                    - base;
                for byte in at..at + u64::from(piece.run) {
                    let before = std::mem::replace(&mut reached[byte as usize], true);
                    assert!(!before, "byte {byte} lies in two runs");
                }
            }
        }
        let ends = packed
            .iter()
            .map(|piece| piece.address + piece.bytes - slots);
        assert!(ends.max().unwrap() <= SLOT_BYTES as u64);
    }
}
