//! A CUDA engine on the mock driver, with one group of plain blocks.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::ClassKind;
use hybrid_pages::transfer::{
    ByteRun, Completion, Direction, Engine, EntryCopy, LayerMap, Ticket, TransferLayout, checksum,
};
use hybrid_pages_arena::Arena;
use hybrid_pages_cuda::engine::{CudaEngine, CudaOptions};
use hybrid_pages_cuda::{CudaError, Result};

use super::mock_cuda::{Mock, Stream};
use super::transfer_support::{Dice, Memory, entry, expecting, geometry};

pub use Direction::{Load, Store};

/// Whatever is not there after this while will never be.
const PATIENCE: Duration = Duration::from_secs(60);
/// Whatever happens too early happens within this while.
const HASTE: Duration = Duration::from_millis(30);

/// The ways that bytes can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By the sizes of the pieces.
    Usual,
    Copies,
    Staged,
    Kernel,
}

pub const WAYS: [Way; 3] = [Way::Copies, Way::Staged, Way::Kernel];

/// Everything goes one way.
pub fn options(way: Way) -> CudaOptions {
    let usual = CudaOptions::default();
    CudaOptions {
        kernel_below: match way {
            Way::Usual => usual.kernel_below,
            Way::Copies => 0,
            Way::Staged | Way::Kernel => usize::MAX,
        },
        staging: match way {
            // Four buffers, each for eight payloads.
            Way::Staged => 4 * 8 * Plain::BYTES.next_multiple_of(16384),
            Way::Kernel => 0,
            // Far less than usual: the mock writes to all that it allocates.
            Way::Usual | Way::Copies => 4 << 20,
        },
        ..usual
    }
}

/// The places that an engine works on: the memory of one attention layer, and an arena for it.
#[derive(Clone)]
pub struct Bench {
    pub geometry: Arc<Geometry>,
    pub arena: Arc<Arena>,
    pub memory: Arc<Memory>,
}

impl Bench {
    /// On this thread's device.
    pub fn new(mock: &Mock) -> Self {
        let geometry = geometry(&[(ClassKind::Attention, &[Plain::BYTES])], 1);
        let slots = Plain::BLOCKS * Plain::SLOTS;
        Self {
            arena: Arc::new(Arena::create(&geometry, Plain::SLOT_BYTES, slots).unwrap()),
            geometry,
            memory: Self::memory(mock),
        }
    }

    /// Another engine's memory, on this thread's device, for the same arena.
    pub fn beside(&self, mock: &Mock) -> Self {
        Self {
            memory: Self::memory(mock),
            ..self.clone()
        }
    }

    pub fn engine(&self, options: &CudaOptions) -> Result<Plain> {
        let layout = Plain::layout(&self.geometry, &self.memory);
        Ok(Plain {
            engine: CudaEngine::new(layout, self.arena.memory(0).unwrap(), options)?,
            arena: Arc::clone(&self.arena),
            memory: Arc::clone(&self.memory),
        })
    }

    fn memory(mock: &Mock) -> Arc<Memory> {
        Arc::new(mock.memory(&Dice::new(7).bytes(Plain::STRIDE * Plain::BLOCKS)))
    }
}

/// An engine for one attention layer whose blocks are two runs with padding between.
pub struct Plain {
    pub engine: CudaEngine,
    pub arena: Arc<Arena>,
    pub memory: Arc<Memory>,
}

impl Plain {
    pub const BLOCKS: usize = 8;
    /// A payload: three tiles and a bit, in slots of odd sizes.
    pub const BYTES: usize = 3 * 16384 + 100;
    pub const SLOT_BYTES: usize = 20_011;
    /// Slots of an entry.
    pub const SLOTS: usize = 3;
    const STRIDE: usize = Self::BYTES + 64;
    const FIRST: usize = 20_000;

    pub fn new(mock: &Mock, options: &CudaOptions) -> Result<Self> {
        Bench::new(mock).engine(options)
    }

    pub fn layout(geometry: &Arc<Geometry>, memory: &Memory) -> TransferLayout {
        let run = |offset, length| ByteRun { offset, length };
        let map = LayerMap {
            group: 0,
            layer: 0,
            region: memory.region(),
            block_stride: Self::STRIDE,
            runs: vec![
                run(0, Self::FIRST),
                run(Self::FIRST + 32, Self::BYTES - Self::FIRST),
            ],
            tokens: None,
        };
        TransferLayout::new(Arc::clone(geometry), 0, &[Self::BLOCKS], &[map]).unwrap()
    }

    /// The entry of a number in slots of its own, from or to a block.
    pub fn entry(number: usize, block: usize) -> EntryCopy {
        let first = (number * Self::SLOTS) as u32;
        // Not in order, so that slots do not merge.
        entry(0, &[first + 2, first, first + 1], &[block])
    }

    pub fn payload(&self, block: usize) -> Vec<u8> {
        let bytes = self.memory.bytes();
        let block = &bytes[block * Self::STRIDE..][..Self::STRIDE];
        [
            &block[..Self::FIRST],
            &block[Self::FIRST + 32..][..Self::BYTES - Self::FIRST],
        ]
        .concat()
    }

    /// The bytes in the slots of an entry.
    pub fn stored(&self, number: usize) -> Vec<u8> {
        let slots = Self::entry(number, 0).slots;
        let bytes = slots
            .iter()
            .flat_map(|slot| self.arena.read(*slot).unwrap());
        bytes.take(Self::BYTES).collect()
    }

    /// Writes a payload into the slots of an entry; its checksum.
    pub fn fill(&self, number: usize, payload: &[u8]) -> u64 {
        for (slot, bytes) in Self::entry(number, 0)
            .slots
            .iter()
            .zip(payload.chunks(Self::SLOT_BYTES))
        {
            let mut whole = bytes.to_vec();
            whole.resize(Self::SLOT_BYTES, 0);
            self.arena.write(*slot, &whole).unwrap();
        }
        checksum(payload)
    }

    /// Lets a stream write a whole block, when it comes to it.
    pub fn compute(&self, stream: &Stream<'_>, block: usize, payload: &[u8]) {
        let at = |offset: usize| {
            let base = self.memory.region().address().as_ptr();
            base.wrapping_add(block * Self::STRIDE + offset)
        };
        stream.write(at(0), &payload[..Self::FIRST]);
        stream.write(at(Self::FIRST + 32), &payload[Self::FIRST..]);
    }

    pub fn submit(
        &self,
        direction: Direction,
        entries: Vec<EntryCopy>,
        stream: &Stream<'_>,
    ) -> Result<Ticket> {
        // SAFETY: the stream is live and of the engine's device.
        unsafe { self.engine.submit_on(direction, entries, stream.handle()) }
    }

    pub fn fence(&self, stream: &Stream<'_>) -> Result<()> {
        // SAFETY: the stream is live and of the engine's device.
        unsafe { self.engine.fence(stream.handle()) }
    }

    /// Whether a transfer ends though it should wait for something.
    pub fn is_hasty(&self, ticket: Ticket) -> bool {
        self.engine.wait(ticket, Some(HASTE)).unwrap()
    }

    /// How a transfer has ended. Nothing else may be in flight.
    pub fn finish(&self, ticket: Ticket) -> Completion {
        let mut all = self.finish_all(&[ticket]);
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    pub fn finish_all(&self, tickets: &[Ticket]) -> Vec<Completion> {
        for ticket in tickets {
            let ended = self.engine.wait(*ticket, Some(PATIENCE)).unwrap();
            assert!(ended, "{ticket} has not ended after {PATIENCE:?}");
        }
        self.engine.poll()
    }

    pub fn run(
        &self,
        direction: Direction,
        entries: Vec<EntryCopy>,
        stream: &Stream<'_>,
    ) -> Result<Completion> {
        Ok(self.finish(self.submit(direction, entries, stream)?))
    }

    /// Stores a few blocks and loads them into others: that every byte arrived, or what failed.
    pub fn round_trip(&self, stream: &Stream<'_>) -> std::result::Result<(), String> {
        let told = |completion: Completion| match completion.error {
            Some(why) => Err(why),
            None => Ok(completion.checksums),
        };
        let payloads: Vec<_> = (0..4).map(|block| self.payload(block)).collect();
        let store = (0..4).map(|block| Self::entry(block, block)).collect();
        let stored = self
            .run(Store, store, stream)
            .map_err(|error| error.to_string())?;
        let sums = told(stored)?;
        assert_eq!(
            sums,
            payloads
                .iter()
                .map(|bytes| checksum(bytes))
                .collect::<Vec<_>>()
        );
        let load = sums.iter().enumerate();
        let load = load.map(|(number, sum)| expecting(Self::entry(number, 7 - number), *sum));
        let loaded = self
            .run(Load, load.collect(), stream)
            .map_err(|error| error.to_string())?;
        told(loaded)?;
        for (number, payload) in payloads.iter().enumerate() {
            assert!(
                self.stored(number) == *payload,
                "entry {number} is not what was stored"
            );
            assert!(
                self.payload(7 - number) == *payload,
                "block {number} is not what was loaded"
            );
        }
        Ok(())
    }
}

/// Waits until something holds.
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Of a driver function's error: call and code.
pub fn of_driver(error: &CudaError) -> Option<(&str, i32)> {
    match error {
        CudaError::Driver { call, code, .. } => Some((call, *code)),
        _ => None,
    }
}
