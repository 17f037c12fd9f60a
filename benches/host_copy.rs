//! Pages and checkpoints as large as Qwen3.6-27B's through the host engine, against a plain memcpy of as
//! many bytes by as many threads. The hot path: one store or load of one or two entries on two threads, from
//! submission to completion. Everything is larger than a cache, and touched before it is measured.
//!
//! Criterion measures one after the other; then rounds of all four, in turn, give the shares of memcpy that
//! are printed last: they count on a machine whose speed drifts.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::transfer::{
    ByteRun, Direction, Engine, EntryCopy, HostEngine, LayerMap, Region, TransferLayout,
};
use hybrid_pages_arena::Arena;
use rustix::time::{ClockId, clock_gettime};

const LAYERS: usize = 16;
const RECURRENT_GROUPS: usize = 3;
const CONV_BYTES: usize = 61_440;
const SSM_BYTES: usize = 3_145_728;
/// An attention block of one layer; the recurrent ones are padded to it.
const BLOCK_BYTES: usize = 784 * 4096;
const BLOCKS: usize = 8;
const THREADS: usize = 2;
const PAGE_BYTES: usize = 4096;

fn geometry() -> Geometry {
    let bytes = |name: &str, bytes| Segment::new(name, Dtype::Uint8, vec![bytes]).unwrap();
    let group = |kind, name: &str, segments: Vec<Segment>| {
        let layer = |i| Layer::new(format!("{name}.{i}"), segments.clone()).unwrap();
        Group::new(kind, (0..LAYERS).map(layer).collect(), None).unwrap()
    };
    let mut groups = vec![group(
        ClassKind::Attention,
        "attention",
        vec![bytes("kv", BLOCK_BYTES)],
    )];
    for index in 0..RECURRENT_GROUPS {
        let segments = vec![bytes("conv", CONV_BYTES), bytes("ssm", SSM_BYTES)];
        groups.push(group(
            ClassKind::Recurrent,
            &format!("recurrent{index}"),
            segments,
        ));
    }
    Geometry::new(784, groups, 1, BTreeMap::new()).unwrap()
}

/// All groups overlaid: a layer's blocks back to back, layer after layer.
fn layout(geometry: &Arc<Geometry>, memory: &mut [u8]) -> TransferLayout {
    let mut maps = Vec::new();
    for (group, layers) in geometry.groups().iter().enumerate() {
        for (layer, bytes) in layers
            .layers()
            .iter()
            .map(|layer| layer.bytes())
            .enumerate()
        {
            let memory = &mut memory[layer * BLOCKS * BLOCK_BYTES..][..BLOCKS * BLOCK_BYTES];
            // SAFETY: the memory outlives the engine, and nothing else touches it meanwhile.
            let region = unsafe { Region::new(memory.as_mut_ptr(), memory.len()).unwrap() };
            let runs = vec![ByteRun {
                offset: 0,
                length: bytes,
            }];
            maps.push(LayerMap {
                group,
                layer,
                region,
                block_stride: BLOCK_BYTES,
                runs,
                tokens: None,
            });
        }
    }
    TransferLayout::new(
        Arc::clone(geometry),
        0,
        &vec![BLOCKS; geometry.groups().len()],
        &maps,
    )
    .unwrap()
}

fn entries(geometry: &Geometry, slot_bytes: usize, classes: &[usize]) -> Vec<EntryCopy> {
    let mut slots = (0..).map(SlotId);
    let mut blocks = 0..BLOCKS;
    let mut entry = |class: usize| EntryCopy {
        class,
        slots: slots
            .by_ref()
            .take(geometry.slots_per_entry(class, slot_bytes).unwrap())
            .collect(),
        blocks: blocks
            .by_ref()
            .take(geometry.classes()[class].groups.len())
            .map(Some)
            .collect(),
        checksum: None,
        tokens: None,
    };
    classes.iter().map(|class| entry(*class)).collect()
}

fn transfer(engine: &HostEngine, direction: Direction, entries: &[EntryCopy]) -> Vec<u64> {
    let ticket = engine.submit(direction, entries.to_vec()).unwrap();
    engine.wait(ticket, None).unwrap();
    let completion = engine.poll().remove(0);
    assert_eq!(completion.error, None);
    completion.checksums
}

/// On a page of its own, as frameworks and `malloc` place what is large.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

fn aligned(bytes: impl ExactSizeIterator<Item = u8>) -> Aligned {
    let mut all: Vec<u8> = Vec::with_capacity(bytes.len() + PAGE_BYTES);
    let start = all.as_ptr().align_offset(PAGE_BYTES);
    all.resize(start, 0);
    all.extend(bytes);
    Aligned { bytes: all, start }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

/// Threads that wait to copy a share each of one buffer to another.
struct Memcpy {
    from: Aligned,
    to: Aligned,
}

impl Memcpy {
    fn new(bytes: usize) -> Self {
        Self {
            from: aligned((0..bytes).map(|i| i as u8)),
            to: aligned((0..bytes).map(|_| 2)),
        }
    }

    /// Calls `body` with the copy.
    fn with<R>(&mut self, body: impl FnOnce(&dyn Fn()) -> R) -> R {
        let Self { from, to } = self;
        let share = from.len().div_ceil(THREADS);
        let barrier = Barrier::new(THREADS + 1);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (from, to) in std::iter::zip(from.chunks(share), to.chunks_mut(share)) {
                let (barrier, done) = (&barrier, &done);
                scope.spawn(move || {
                    loop {
                        barrier.wait();
                        if done.load(Ordering::Relaxed) {
                            return;
                        }
                        black_box(&mut *to).copy_from_slice(black_box(from));
                        barrier.wait();
                    }
                });
            }
            let result = body(&|| {
                barrier.wait();
                barrier.wait();
            });
            done.store(true, Ordering::Relaxed);
            barrier.wait();
            result
        })
    }
}

/// Seconds by the clock and of all threads' processor time, which other programs lengthen less.
fn now() -> [f64; 2] {
    [ClockId::Monotonic, ClockId::ProcessCPUTime].map(|clock| {
        let now = clock_gettime(clock);
        now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
    })
}

/// Rounds of all, in turn; of each but the first, the medians of its rounds' shares of the first's speed.
fn shares(rounds: usize, all: &[(&str, &dyn Fn())]) -> Vec<(String, [f64; 2])> {
    let mut times = vec![Vec::new(); all.len()];
    for round in 0..rounds {
        for turn in 0..all.len() {
            let index = (round + turn) % all.len();
            let start = now();
            all[index].1();
            let end = now();
            times[index].push([end[0] - start[0], end[1] - start[1]]);
        }
    }
    let share = |index: usize| {
        let medians = [0, 1].map(|clock| {
            let rounds = std::iter::zip(&times[0], &times[index]);
            let mut shares: Vec<f64> = rounds
                .map(|(memcpy, this)| memcpy[clock] / this[clock])
                .collect();
            shares.sort_by(f64::total_cmp);
            shares[shares.len() / 2]
        });
        (all[index].0.to_owned(), medians)
    };
    (1..all.len()).map(share).collect()
}

fn host_copy(c: &mut Criterion) {
    let geometry = Arc::new(geometry());
    let slot_bytes = geometry.suggest_slot_bytes();
    let mut memory = aligned((0..LAYERS * BLOCKS * BLOCK_BYTES).map(|i| (i / 61) as u8));
    let slots = 2 * geometry.slots_per_entry(1, slot_bytes).unwrap();
    let arena = Arc::new(Arena::create(&geometry, slot_bytes, slots).unwrap());
    let engine = |memory: &mut [u8], plain: bool| {
        let layout = layout(&geometry, memory);
        let new = if plain {
            HostEngine::without_checksums
        } else {
            HostEngine::new
        };
        new(layout, arena.memory(0).unwrap(), THREADS).unwrap()
    };
    let hashing = engine(&mut memory, false);
    let plain = engine(&mut memory, true);
    let measures = !std::env::args().any(|argument| argument == "--test" || argument == "--list");
    let rounds = if measures { 41 } else { 1 };
    let mut report = Vec::new();

    let cases = [
        ("page", &[0][..]),
        ("two_pages", &[0, 0]),
        ("checkpoint", &[1]),
    ];
    for (name, classes) in cases {
        let entries = entries(&geometry, slot_bytes, classes);
        let bytes: usize = classes
            .iter()
            .map(|c| geometry.classes()[*c].rank_bytes)
            .sum();
        let mut group = c.benchmark_group(format!("host_copy/{name}"));
        group.throughput(Throughput::Bytes(bytes as u64));
        let checksums = transfer(&hashing, Direction::Store, &entries);
        let verified = entries.iter().cloned().zip(checksums);
        let verified: Vec<_> = verified
            .map(|(entry, sum)| EntryCopy {
                checksum: Some(sum),
                ..entry
            })
            .collect();
        let store = || drop(transfer(&hashing, Direction::Store, &entries));
        let store_unhashed = || drop(transfer(&plain, Direction::Store, &entries));
        let load = || drop(transfer(&hashing, Direction::Load, &entries));
        let load_verified = || drop(transfer(&hashing, Direction::Load, &verified));
        let shares = Memcpy::new(bytes).with(|memcpy| {
            let all: [(&str, &dyn Fn()); 5] = [
                ("memcpy", memcpy),
                ("store", &store),
                ("store_unhashed", &store_unhashed),
                ("load", &load),
                ("load_verified", &load_verified),
            ];
            for (name, act) in all {
                group.bench_function(name, |b| b.iter(act));
            }
            shares(rounds, &all)
        });
        report.extend(shares.into_iter().map(|share| (name, share)));
        group.finish();
    }
    let instructions = hashing.instructions();
    println!(
        "{THREADS} threads each, {instructions}; median of {rounds} shares of memcpy's speed,"
    );
    println!("by the clock and by processor time:");
    for (case, (name, [clock, processor])) in report {
        println!(
            "{:30} {clock:.2} {processor:.2}",
            format!("host_copy/{case}/{name}")
        );
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    targets = host_copy
}
criterion_main!(benches);
