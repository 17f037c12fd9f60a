//! Pages and checkpoints as large as Qwen3.6-27B's through the host engine, against one plain
//! memcpy of as many bytes in the same run. The hot path: one store or load of one or two entries
//! on two threads, from submission to completion. Everything is larger than a cache, and touched
//! before it is measured.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::tier::Arena;
use hybrid_pages::transfer::{
    Direction, Engine, EntryCopy, HostEngine, LayerMap, Layout, Region, Run,
};

const LAYERS: usize = 16;
const RECURRENT_GROUPS: usize = 3;
const CONV_BYTES: usize = 61_440;
const SSM_BYTES: usize = 3_145_728;
/// An attention block of one layer; the recurrent ones are padded to it.
const BLOCK_BYTES: usize = 784 * 4096;
const BLOCKS: usize = 8;
const THREADS: usize = 2;

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
fn layout(geometry: &Arc<Geometry>, memory: &mut [u8]) -> Layout {
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
            let runs = vec![Run {
                offset: 0,
                length: bytes,
            }];
            maps.push(LayerMap {
                group,
                layer,
                region,
                block_stride: BLOCK_BYTES,
                runs,
            });
        }
    }
    Layout::new(
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

fn host_copy(c: &mut Criterion) {
    let geometry = Arc::new(geometry());
    let slot_bytes = geometry.suggest_slot_bytes();
    let mut memory: Vec<u8> = (0..LAYERS * BLOCKS * BLOCK_BYTES)
        .map(|i| (i / 61) as u8)
        .collect();
    let slots = 2 * geometry.slots_per_entry(1, slot_bytes).unwrap();
    let arena = Arc::new(Arena::create(&geometry, slot_bytes, slots).unwrap());
    let layout = layout(&geometry, &mut memory);
    let engine = HostEngine::new(layout, arena.memory(0).unwrap(), THREADS).unwrap();

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

        let from = vec![1_u8; bytes];
        let mut to = vec![2_u8; bytes];
        group.bench_function("memcpy", |b| {
            b.iter(|| black_box(&mut to).copy_from_slice(black_box(&from)))
        });

        let checksums = transfer(&engine, Direction::Store, &entries);
        let verified = entries.iter().cloned().zip(checksums);
        let verified: Vec<_> = verified
            .map(|(entry, sum)| EntryCopy {
                checksum: Some(sum),
                ..entry
            })
            .collect();
        group.bench_function("store", |b| {
            b.iter(|| transfer(&engine, Direction::Store, &entries))
        });
        group.bench_function("load", |b| {
            b.iter(|| transfer(&engine, Direction::Load, &entries))
        });
        group.bench_function("load_verified", |b| {
            b.iter(|| transfer(&engine, Direction::Load, &verified));
        });
        group.finish();
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
