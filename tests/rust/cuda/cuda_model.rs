//! The CUDA engine on the mock driver against models that move one byte at a time.
#![cfg(target_os = "linux")]

use crate::cuda_support;
use crate::mock_cuda;
use crate::transfer_random;
use crate::transfer_support;

use cuda_support::{Load, Plain, Store, Way, options};
use hybrid_pages::ids::ClassKind;
use hybrid_pages::transfer::{
    ByteRun, Engine, EntryCopy, LayerMap, Ticket, TokenDim, TokenPart, TransferLayout, checksum,
};
use hybrid_pages_arena::Arena;
use hybrid_pages_cuda::engine::{CudaEngine, CudaOptions};
use mock_cuda::Mock;
use std::collections::HashMap;
use std::sync::Arc;
use transfer_random::{Case, check};
use transfer_support::{Dice, entry, expecting, geometry, run};

const KINDS: [ClassKind; 3] = [
    ClassKind::Attention,
    ClassKind::Window,
    ClassKind::Recurrent,
];
const BLOCK_TOKENS: usize = 12;
const WAYS: [Way; 4] = [Way::Usual, Way::Copies, Way::Staged, Way::Kernel];

fn random_case(number: u64) -> Case {
    // Neighbouring seeds begin alike.
    let seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut dice = Dice::new(seed);
    // Layers of bytes, of parts of a tile, or of several tiles.
    let most = [60, 3000, 20_000][dice.roll(3)];
    // Mostly with equally many bytes of each token of a block.
    let even = !number.is_multiple_of(4);
    let groups = (0..1 + dice.roll(3)).map(|_| {
        // Alike every other time, as they mostly are: what repeats is folded.
        let (alike, bytes) = (dice.roll(2) == 0, 1 + dice.roll(most));
        let count = 1 + dice.roll(3);
        let (kind, blocks) = (KINDS[dice.roll(3)], 1 + dice.roll(3));
        let unit = if even { BLOCK_TOKENS / blocks } else { 1 };
        let mut layer = |_| {
            let bytes = if alike { bytes } else { 1 + dice.roll(most) };
            bytes.next_multiple_of(unit)
        };
        let layers = (0..count).map(&mut layer).collect();
        (kind, layers, blocks)
    });
    let groups: Vec<(ClassKind, Vec<usize>, usize)> = groups.collect();
    Case {
        groups,
        block_tokens: BLOCK_TOKENS,
        ranks: 1 + dice.roll(2),
        rank_slot_bytes: most / 4 + 1 + dice.roll(2 * most),
        entries: dice.roll(6),
        overlaid: dice.roll(2) == 0,
        seed,
    }
}

#[test]
fn every_method_brings_back_every_byte_of_any_layout() {
    let mock = Mock::new();
    let before = mock.live();
    let mut parts = 0;
    for seed in 0..20 {
        mock.delay(if seed % 2 == 0 { 0 } else { 200 }, seed + 1);
        for way in WAYS {
            parts += check(
                &random_case(seed),
                |bytes| mock.memory(&bytes),
                |layout, slots| {
                    let mut options = options(way);
                    if way == Way::Staged {
                        // Few entries fit a buffer, or none.
                        options.staging = 4 * 16384 * (1 + seed as usize % 5);
                    }
                    let engine = CudaEngine::new(layout, slots, &options).unwrap();
                    assert!(engine.facts().pinned && engine.facts().warnings.is_empty());
                    engine
                },
            );
        }
    }
    assert!(parts >= 5, "{parts} pages without all of their tokens");
    assert_eq!(mock.count("violations"), 0);
    assert_eq!(mock.live(), before, "what an engine takes it gives back");
}

#[test]
fn memory_that_cannot_be_pinned_is_told_and_moves_all_the_same() {
    let mock = Mock::new();
    let before = mock.live();
    mock.set("NO_PINNING", 1);
    let mut parts = 0;
    for seed in 100..120 {
        for way in WAYS {
            parts += check(
                &random_case(seed),
                |bytes| mock.memory(&bytes),
                |layout, slots| {
                    let engine = CudaEngine::new(layout, slots, &options(way)).unwrap();
                    let facts = engine.facts();
                    assert!(!facts.pinned);
                    let why = facts.warnings.join("\n");
                    assert!(
                        why.contains("cuMemHostRegister failed: CUDA_ERROR_OUT_OF_MEMORY"),
                        "{why}"
                    );
                    engine
                },
            );
        }
    }
    assert!(parts >= 5, "{parts} pages without all of their tokens");
    assert_eq!(mock.count("violations"), 0);
    assert_eq!(mock.live(), before);
}

#[test]
fn without_kernels_every_byte_moves_all_the_same() {
    let mock = Mock::new();
    mock.set("NO_CUBIN", 1);
    mock.set("NO_PTX", 1);
    let mut parts = 0;
    for seed in 200..240 {
        mock.set("NO_PINNING", seed % 2);
        parts += check(
            &random_case(seed as u64),
            |bytes| mock.memory(&bytes),
            |layout, slots| {
                let engine = CudaEngine::new(layout, slots, &options(Way::Usual)).unwrap();
                assert!(!engine.facts().kernels);
                engine
            },
        );
    }
    assert!(parts >= 5, "{parts} pages without all of their tokens");
    assert_eq!(mock.calls("cuLaunchKernel"), 0);
    assert_eq!(mock.count("violations"), 0);
}

/// Two tokens that alternate, byte by byte, between tokens that lie together.
#[test]
fn a_page_in_more_pieces_than_the_buffers_hold_fails_alone() {
    const EACH: usize = 2000;
    let mock = Mock::new();
    let bytes = 16 * EACH;
    let geometry = geometry(&[(ClassKind::Attention, &[bytes])], 1);
    let memory = mock.memory(&Dice::new(3).bytes(2 * bytes));
    let part = |first, dims: &[(usize, usize)], bytes| TokenPart {
        first,
        dims: dims
            .iter()
            .map(|&(extent, tokens)| TokenDim { extent, tokens })
            .collect(),
        bytes,
    };
    let map = LayerMap {
        group: 0,
        layer: 0,
        region: memory.region(),
        block_stride: bytes,
        runs: vec![ByteRun {
            offset: 0,
            length: bytes,
        }],
        tokens: Some(vec![
            part(0, &[], EACH),
            part(1, &[(EACH, 0), (2, 1)], 1),
            part(3, &[(13, 1)], EACH),
        ]),
    };
    let arena = Arc::new(Arena::create(&geometry, bytes, 2).unwrap());
    let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[2], &[map]).unwrap();
    let options = options(Way::Usual);
    let engine = CudaEngine::new(layout, arena.memory(0).unwrap(), &options).unwrap();
    let store = |tokens: &[usize]| {
        let entries = tokens.iter().enumerate().map(|(slot, &tokens)| EntryCopy {
            tokens: Some(tokens),
            ..entry(0, &[slot as u32], &[slot])
        });
        run(&engine, Store, entries.collect())
    };
    let failed = store(&[3, 2]);
    let why = failed.error.unwrap();
    assert!(
        why.contains("entry 1: expected pieces for buffers of 65536 bytes, found 200"),
        "{why}"
    );
    let stored = store(&[3, 1]);
    assert_eq!(stored.error, None);
    let all = memory.bytes();
    let expected = |slot: usize, tokens: usize| {
        let mut page = all[slot * bytes..][..bytes].to_vec();
        page[tokens * EACH..].fill(0);
        checksum(&page)
    };
    assert_eq!(stored.checksums, [expected(0, 3), expected(1, 1)]);
    assert_eq!(mock.count("violations"), 0);
}

/// Heads apart and tokens apart, the payload in the other order, K and V of several layers overlaid
/// in one buffer: what folds into pieces of several dimensions.
#[test]
fn nested_and_transposed_runs_come_back_whole() {
    let (heads, tokens, bytes_of_head, layers) = (3, 8, 48, 3);
    let mock = Mock::new();
    let stream = mock.stream();
    let bytes = 2 * heads * tokens * bytes_of_head;
    let geometry = geometry(&[(ClassKind::Attention, &vec![bytes; layers])], 1);
    for (blocks, way) in std::iter::zip([70, 5, 70, 70], WAYS) {
        let stride = layers * (bytes + 16) + 32;
        let memory = mock.memory(&Dice::new(3).bytes(blocks * stride));
        // From layer, half, head and token to a place in the block.
        let place = |layer, half, head, token| {
            layer * (bytes + 16) + ((token * 2 + half) * heads + head) * bytes_of_head
        };
        let maps: Vec<_> = (0..layers)
            .map(|layer| {
                let mut runs = Vec::new();
                for half in 0..2 {
                    for head in 0..heads {
                        runs.extend((0..tokens).map(|token| ByteRun {
                            offset: place(layer, half, head, token),
                            length: bytes_of_head,
                        }));
                    }
                }
                LayerMap {
                    group: 0,
                    layer,
                    region: memory.region(),
                    block_stride: stride,
                    runs,
                    tokens: None,
                }
            })
            .collect();
        let arena = Arc::new(Arena::create(&geometry, layers * bytes, blocks).unwrap());
        let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[blocks], &maps).unwrap();
        let engine = CudaEngine::new(layout, arena.memory(0).unwrap(), &options(way)).unwrap();
        let payload = |block: usize| -> Vec<u8> {
            let all = memory.bytes();
            let runs = maps.iter().flat_map(|map| &map.runs);
            runs.flat_map(|run| all[block * stride + run.offset..][..run.length].to_vec())
                .collect()
        };
        let wanted: Vec<_> = (0..blocks).map(payload).collect();
        let entries = |from: usize| {
            (0..blocks).map(move |slot| entry(0, &[slot as u32], &[(slot + from) % blocks]))
        };
        let stored = run(&engine, Store, entries(0).collect());
        assert_eq!(stored.error, None);
        assert_eq!(
            stored.checksums,
            wanted
                .iter()
                .map(|bytes| checksum(bytes))
                .collect::<Vec<_>>()
        );
        let before = memory.bytes();
        let load = entries(1)
            .zip(stored.checksums)
            .map(|(entry, sum)| expecting(entry, sum));
        assert_eq!(run(&engine, Load, load.collect()).error, None);
        for (block, wanted) in wanted.iter().enumerate() {
            assert!(payload((block + 1) % blocks) == *wanted);
        }
        let padding = stride - 32;
        assert_eq!(memory.bytes()[padding..][..32], before[padding..][..32]);
    }
    stream.finish();
    assert_eq!(mock.count("violations"), 0);
}

/// Blocks and slots as they come and go in a serving engine: many transfers in flight both ways, a
/// compute stream that writes blocks late, and a model of every byte.
struct Serving<'a> {
    plain: &'a Plain,
    dice: Dice,
    /// The bytes of each block once everything given so far has ended; none while a load writes.
    blocks: Vec<Vec<u8>>,
    /// Payload and checksum of each entry's slots.
    entries: Vec<Option<(Vec<u8>, u64)>>,
    /// Blocks that the stream was told to write since the last fence.
    written: Vec<bool>,
    busy_blocks: Vec<bool>,
    busy_entries: Vec<bool>,
    flights: HashMap<Ticket, Vec<(usize, usize)>>,
    loads: HashMap<Ticket, bool>,
}

impl<'a> Serving<'a> {
    fn new(plain: &'a Plain, seed: u64) -> Self {
        Self {
            plain,
            dice: Dice::new(seed),
            blocks: (0..Plain::BLOCKS)
                .map(|block| plain.payload(block))
                .collect(),
            entries: vec![None; Plain::BLOCKS],
            written: vec![true; Plain::BLOCKS],
            busy_blocks: vec![false; Plain::BLOCKS],
            busy_entries: vec![false; Plain::BLOCKS],
            flights: HashMap::new(),
            loads: HashMap::new(),
        }
    }

    fn pick(&mut self, from: impl Fn(&Self, usize) -> bool) -> Vec<usize> {
        let mut free: Vec<_> = (0..Plain::BLOCKS)
            .filter(|index| from(self, *index))
            .collect();
        self.dice.shuffle(&mut free);
        free.truncate(1 + self.dice.roll(3));
        free
    }

    fn step(&mut self, stream: &mock_cuda::Stream<'_>) {
        let blocks = self.pick(|this, block| !this.busy_blocks[block]);
        match self.dice.roll(4) {
            0 => {
                for block in blocks {
                    let payload = self.dice.bytes(Plain::BYTES);
                    self.plain.compute(stream, block, &payload);
                    self.blocks[block] = payload;
                    self.written[block] = true;
                }
            }
            1 => {
                let entries = self.pick(|this, entry| !this.busy_entries[entry]);
                let pairs: Vec<_> = entries.into_iter().zip(blocks).collect();
                for (entry, block) in &pairs {
                    let payload = self.blocks[*block].clone();
                    let sum = checksum(&payload);
                    self.entries[*entry] = Some((payload, sum));
                }
                self.submit(false, pairs, stream);
            }
            2 => {
                let entries = self
                    .pick(|this, entry| !this.busy_entries[entry] && this.entries[entry].is_some());
                let pairs: Vec<_> = entries.into_iter().zip(blocks).collect();
                for (entry, block) in &pairs {
                    self.blocks[*block] = self.entries[*entry].as_ref().unwrap().0.clone();
                }
                // One fence serves until a block is written that a load is to write again.
                if pairs.iter().any(|(_, block)| self.written[*block]) {
                    self.plain.fence(stream).unwrap();
                    self.written.fill(false);
                }
                self.submit(true, pairs, stream);
            }
            _ => self.poll(),
        }
    }

    fn submit(&mut self, load: bool, pairs: Vec<(usize, usize)>, stream: &mock_cuda::Stream<'_>) {
        let entries = pairs.iter().map(|(number, block)| {
            let entry = Plain::entry(*number, *block);
            match &self.entries[*number] {
                Some((_, sum)) if load => expecting(entry, *sum),
                _ => entry,
            }
        });
        let direction = if load { Load } else { Store };
        let ticket = self
            .plain
            .submit(direction, entries.collect(), stream)
            .unwrap();
        for (entry, block) in &pairs {
            (self.busy_entries[*entry], self.busy_blocks[*block]) = (true, true);
        }
        self.flights.insert(ticket, pairs);
        self.loads.insert(ticket, load);
    }

    fn poll(&mut self) {
        for completion in self.plain.engine.poll() {
            assert_eq!(completion.error, None);
            let pairs = self.flights.remove(&completion.ticket).expect("ends once");
            assert_eq!(completion.bytes, pairs.len() * Plain::BYTES);
            if !self.loads[&completion.ticket] {
                let sums = pairs
                    .iter()
                    .map(|(entry, _)| self.entries[*entry].as_ref().unwrap().1);
                assert_eq!(completion.checksums, sums.collect::<Vec<_>>());
            }
            for (entry, block) in pairs {
                (self.busy_entries[entry], self.busy_blocks[block]) = (false, false);
            }
        }
    }

    fn end(mut self, stream: &mock_cuda::Stream<'_>) {
        let tickets: Vec<_> = self.flights.keys().copied().collect();
        for ticket in tickets {
            assert!(self.plain.engine.wait(ticket, None).unwrap());
        }
        self.poll();
        stream.finish();
        for (block, wanted) in self.blocks.iter().enumerate() {
            assert!(self.plain.payload(block) == *wanted, "block {block}");
        }
        for (entry, wanted) in self.entries.iter().enumerate() {
            if let Some((payload, _)) = wanted {
                assert!(self.plain.stored(entry) == *payload, "entry {entry}");
            }
        }
    }
}

#[test]
fn transfers_both_ways_beside_a_compute_stream_never_mix() {
    let mock = Mock::new();
    let before = mock.live();
    for seed in 1..=40 {
        let stream = mock.stream();
        let way = WAYS[seed as usize % WAYS.len()];
        let pinned = seed % 5 > 0;
        mock.set("NO_PINNING", usize::from(!pinned));
        let plain = Plain::new(&mock, &options(way)).unwrap();
        assert_eq!(plain.engine.facts().pinned, pinned);
        mock.delay(500, seed);
        let mut serving = Serving::new(&plain, seed);
        for _ in 0..60 {
            serving.step(&stream);
        }
        serving.end(&stream);
    }
    assert_eq!(mock.count("violations"), 0);
    assert_eq!(mock.live(), before);
}

#[test]
fn damaged_slots_are_refused() {
    let mock = Mock::new();
    let stream = mock.stream();
    for way in WAYS {
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let payload = plain.payload(0);
        for damaged in [0, 20_011, Plain::BYTES - 1] {
            let sum = plain.fill(1, &payload);
            let good = expecting(Plain::entry(1, 4), sum);
            assert_eq!(
                plain.run(Load, vec![good.clone()], &stream).unwrap().error,
                None
            );
            let mut bytes = payload.clone();
            bytes[damaged] ^= 1;
            let other = plain.fill(1, &bytes);
            let failed = plain
                .run(
                    Load,
                    vec![
                        expecting(Plain::entry(0, 3), plain.fill(0, &payload)),
                        good.clone(),
                    ],
                    &stream,
                )
                .unwrap();
            let why = failed.error.unwrap();
            let expected = format!("checksum of entry 1: expected {sum:016x}, found {other:016x}");
            assert!(why.contains(&expected), "{why}");
            assert_eq!((failed.bytes, failed.checksums), (0, vec![]));
            // Unverified, they are taken as they are.
            assert_eq!(
                plain
                    .run(Load, vec![Plain::entry(1, 5)], &stream)
                    .unwrap()
                    .error,
                None
            );
            assert!(plain.payload(5) == bytes);
        }
    }
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn kernels_take_no_more_of_the_device_than_they_may() {
    let mock = Mock::new();
    let stream = mock.stream();
    for (share, most) in [(1.0, 40), (0.25, 10), (0.001, 1)] {
        mock.reset();
        mock.set("MULTIPROCESSORS", 40);
        let few = CudaOptions {
            share,
            ..options(Way::Kernel)
        };
        let plain = Plain::new(&mock, &few).unwrap();
        plain.round_trip(&stream).unwrap();
        let largest = mock.count("largest_grid");
        assert!(
            (1..=most).contains(&largest),
            "{largest} blocks at a share of {share}"
        );
    }
}
