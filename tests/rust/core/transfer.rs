//! Transfers: what is rejected before a byte moves, how copies merge, and how transfers end.
#![cfg(target_os = "linux")]

#[path = "../shared/transfer_support.rs"]
mod transfer_support;

use std::sync::Arc;
use std::time::Duration;

use hybrid_pages::error::{Error, Result};
use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::tier::Arena;
use hybrid_pages::transfer::{
    Direction, Engine, EntryCopy, HostEngine, LayerMap, Layout, Plan, Region, Run, TILE_BYTES,
    Ticket, checksum,
};
use transfer_support::{Dice, Memory, entry, expecting, geometry, geometry_of, run};

const ATTENTION: ClassKind = ClassKind::Attention;
const RECURRENT: ClassKind = ClassKind::Recurrent;

fn map(
    group: usize,
    layer: usize,
    region: Region,
    stride: usize,
    runs: &[(usize, usize)],
) -> LayerMap {
    let runs = runs
        .iter()
        .map(|&(offset, length)| Run { offset, length })
        .collect();
    LayerMap {
        group,
        layer,
        region,
        block_stride: stride,
        runs,
    }
}

/// One attention layer of `bytes`, blocks back to back, and an arena for it.
struct Plain {
    engine: HostEngine,
    arena: Arc<Arena>,
    memory: Memory,
}

impl Plain {
    const BLOCKS: usize = 4;

    fn new(bytes: usize, slot_bytes: usize, slots: usize, threads: usize) -> Self {
        let geometry = geometry(&[(ClassKind::Attention, &[bytes])], 1);
        let memory = Memory::new(Dice::new(7).bytes(bytes * Self::BLOCKS));
        let maps = [map(0, 0, memory.region(), bytes, &[(0, bytes)])];
        let arena = Arc::new(Arena::create(&geometry, slot_bytes, slots).unwrap());
        let layout = Layout::new(geometry, 0, &[Self::BLOCKS], &maps).unwrap();
        let engine = HostEngine::new(layout, arena.memory(0).unwrap(), threads).unwrap();
        Self {
            engine,
            arena,
            memory,
        }
    }
}

fn geometry_error<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::Geometry(why)) => why,
        other => panic!("expected a geometry error, found {other:?}"),
    }
}

fn argument_error<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::InvalidArgument(why)) => why,
        other => panic!("expected an invalid argument, found {other:?}"),
    }
}

#[test]
fn regions_without_memory_are_refused() {
    let mut byte = 0_u8;
    for (address, nbytes) in [
        (std::ptr::null_mut(), 1),
        (&raw mut byte, 0),
        (&raw mut byte, usize::MAX),
    ] {
        // SAFETY: nothing is copied.
        argument_error(unsafe { Region::new(address, nbytes) });
    }
}

#[test]
fn every_layer_needs_exactly_one_map() {
    let geometry = geometry(&[(ATTENTION, &[4, 4]), (RECURRENT, &[8])], 2);
    let memory = Memory::new(vec![0; 64]);
    let whole = |group, layer, bytes| map(group, layer, memory.region(), 16, &[(0, bytes)]);
    let all = || vec![whole(0, 0, 4), whole(0, 1, 4), whole(1, 0, 8)];
    let layout = |maps: Vec<LayerMap>| Layout::new(Arc::clone(&geometry), 1, &[4, 4], &maps);
    assert!(layout(all()).is_ok());
    let missing = argument_error(layout(all()[..2].to_vec()));
    assert!(
        missing.contains("group 1 layer 0 ('1.0'), found none"),
        "{missing}"
    );
    let twice = argument_error(layout([all(), vec![whole(0, 1, 4)]].concat()));
    assert!(
        twice.contains("group 0 layer 1 ('0.1'), found two"),
        "{twice}"
    );
    for stray in [whole(0, 2, 4), whole(2, 0, 4)] {
        let why = argument_error(layout([all(), vec![stray]].concat()));
        assert!(why.contains("expected a layer of the geometry"), "{why}");
    }
    let rank = argument_error(Layout::new(Arc::clone(&geometry), 2, &[4, 4], &all()));
    assert!(rank.contains("rank: expected below 2, found 2"), "{rank}");
}

#[test]
fn every_group_has_a_number_of_blocks_of_its_own() {
    let geometry = geometry_of(&[(ATTENTION, &[4], 2), (RECURRENT, &[8], 1)], 1);
    let memory = Memory::new(vec![0; 32]);
    let whole = |group, bytes| map(group, 0, memory.region(), bytes, &[(0, bytes)]);
    let maps = [whole(0, 4), whole(1, 8)];
    let layout = |num_blocks: &[usize]| Layout::new(Arc::clone(&geometry), 0, num_blocks, &maps);
    assert_eq!(layout(&[8, 4]).unwrap().num_blocks(), [8, 4]);
    let cases: [(&[usize], &str); 4] = [
        (&[8], "num_blocks: expected one per group, 2, found 1"),
        (&[8, 4, 1], "num_blocks: expected one per group, 2, found 3"),
        (&[1, 4], "num_blocks: group 0: expected at least 2, found 1"),
        (&[8, 0], "num_blocks: group 1: expected at least 1, found 0"),
    ];
    for (num_blocks, expected) in cases {
        let why = argument_error(layout(num_blocks));
        assert!(why.contains(expected), "{why}");
    }
    let beyond = geometry_error(layout(&[9, 4]));
    assert!(
        beyond.contains("layer '0.0': expected a region for 9 blocks"),
        "{beyond}"
    );
    let beyond = geometry_error(layout(&[8, 5]));
    assert!(
        beyond.contains("layer '1.0': expected a region for 5 blocks"),
        "{beyond}"
    );
}

/// Two groups, the second with half the blocks of the first and none of them in common.
#[test]
fn an_entry_of_several_blocks_per_group_lies_block_after_block() {
    let geometry = geometry_of(&[(ATTENTION, &[2, 3], 3), (ATTENTION, &[4], 2)], 1);
    let memory = Memory::new((0..120).collect());
    // Blocks of 6 bytes from 0 on, and of 10 from 60 on.
    let tail = memory.region().address().as_ptr().wrapping_add(60);
    // SAFETY: the tail lies inside the memory, which outlives it.
    let tail = unsafe { Region::new(tail, 60).unwrap() };
    let maps = [
        map(0, 0, memory.region(), 6, &[(0, 2)]),
        map(0, 1, memory.region(), 6, &[(3, 3)]),
        map(1, 0, tail, 10, &[(8, 2), (0, 2)]),
    ];
    let arena = Arc::new(Arena::create(&geometry, 23, 2).unwrap());
    let layout = Layout::new(Arc::clone(&geometry), 0, &[10, 6], &maps).unwrap();
    let engine = HostEngine::new(layout, arena.memory(0).unwrap(), 2).unwrap();
    let stored = run(
        &engine,
        Direction::Store,
        vec![entry(0, &[1], &[9, 0, 4, 5, 2])],
    );
    let pages: [&[u8]; 5] = [
        &[54, 55, 57, 58, 59],
        &[0, 1, 3, 4, 5],
        &[24, 25, 27, 28, 29],
        &[118, 119, 110, 111],
        &[88, 89, 80, 81],
    ];
    let expected = pages.concat();
    assert_eq!(arena.read(SlotId(1)).unwrap(), expected);
    assert_eq!(stored.checksums, [checksum(&expected)]);

    let before = memory.bytes();
    let back = expecting(entry(0, &[1], &[1, 3, 2, 0, 1]), checksum(&expected));
    assert_eq!(run(&engine, Direction::Load, vec![back]).error, None);
    let mut wanted = before;
    for (at, page) in [(6, pages[0]), (18, pages[1]), (12, pages[2])] {
        wanted[at..at + 2].copy_from_slice(&page[..2]);
        wanted[at + 3..at + 6].copy_from_slice(&page[2..]);
    }
    for (at, page) in [(60, pages[3]), (70, pages[4])] {
        wanted[at + 8..at + 10].copy_from_slice(&page[..2]);
        wanted[at..at + 2].copy_from_slice(&page[2..]);
    }
    assert_eq!(memory.bytes(), wanted);
}

#[test]
fn blocks_of_an_entry_are_checked_group_by_group() {
    let geometry = geometry_of(&[(ATTENTION, &[2], 3), (ATTENTION, &[4], 2)], 1);
    let memory = Memory::new(vec![0; 20]);
    let maps = [
        map(0, 0, memory.region(), 2, &[(0, 2)]),
        map(1, 0, memory.region(), 4, &[(0, 4)]),
    ];
    let arena = Arc::new(Arena::create(&geometry, 14, 2).unwrap());
    let slots = arena.memory(0).unwrap();
    let layout = Layout::new(Arc::clone(&geometry), 0, &[10, 5], &maps).unwrap();
    let plan = |direction, entries: &[EntryCopy]| {
        Plan::new(&layout, &slots, direction, entries.to_vec()).map(drop)
    };
    let cases: [(&[usize], &str); 5] = [
        (
            &[0, 1, 2, 3],
            "blocks: expected 5 (3 of group 0, 2 of group 1), found 4",
        ),
        (
            &[0, 1, 2, 3, 4, 5],
            "blocks: expected 5 (3 of group 0, 2 of group 1), found 6",
        ),
        (
            &[0, 1, 10, 3, 4],
            "block of group 0: expected below 10, found 10",
        ),
        (
            &[0, 9, 5, 0, 5],
            "block of group 1: expected below 5, found 5",
        ),
        (
            &[0, 9, 5, 7, 4],
            "block of group 1: expected below 5, found 7",
        ),
    ];
    for (blocks, expected) in cases {
        for direction in [Direction::Store, Direction::Load] {
            let why = argument_error(plan(direction, &[entry(0, &[0], blocks)]));
            assert!(why.contains(expected), "{why}");
        }
    }
    let mut part = entry(0, &[0], &[0, 1, 2, 0, 1]);
    part.blocks[1] = None;
    assert_eq!(plan(Direction::Load, std::slice::from_ref(&part)), Ok(()));
    let why = argument_error(plan(Direction::Store, &[part]));
    assert!(
        why.contains("a store needs every block, found one left out"),
        "{why}"
    );
    let load = |entries: &[EntryCopy]| plan(Direction::Load, entries);
    assert_eq!(load(&[entry(0, &[0], &[0, 1, 2, 0, 1])]), Ok(()));
    let twice = argument_error(load(&[entry(0, &[0], &[0, 1, 2, 3, 3])]));
    assert!(
        twice.contains("block 3 of group 1: expected once in a load, found twice"),
        "{twice}"
    );
}

#[test]
fn maps_that_do_not_fit_their_layer_or_region_are_refused() {
    let geometry = geometry(&[(ATTENTION, &[8])], 1);
    let memory = Memory::new(vec![0; 64]);
    let layout = |stride, blocks, runs: &[(usize, usize)]| {
        let maps = [map(0, 0, memory.region(), stride, runs)];
        Layout::new(Arc::clone(&geometry), 0, &[blocks], &maps)
    };
    assert!(layout(16, 4, &[(0, 8)]).is_ok());
    assert!(layout(16, 4, &[(8, 4), (0, 4)]).is_ok());
    // The last block needs no full stride, and a single one none at all.
    assert!(layout(18, 4, &[(0, 8)]).is_ok());
    assert!(layout(0, 1, &[(56, 8)]).is_ok());
    let short = geometry_error(layout(19, 4, &[(0, 8)]));
    assert!(
        short.contains(
            "layer '0.0': expected a region for 4 blocks of stride 19, 65 bytes, found 64"
        ),
        "{short}"
    );
    let cases = [
        (16, 5, vec![(0, 8)], "expected a region"),
        (
            16,
            4,
            vec![(0, 7)],
            "expected runs of 8 bytes in all, found 7",
        ),
        (16, 4, vec![], "found 0"),
        (16, 4, vec![(0, 8), (8, 0)], "non-empty runs"),
        (16, 4, vec![(0, 5), (4, 3)], "disjoint runs"),
        (
            16,
            4,
            vec![(9, 8)],
            "within a block stride of 16 bytes, found one that ends at 17",
        ),
        (0, 2, vec![(0, 8)], "within a block stride"),
        (16, 1, vec![(usize::MAX, 8)], "non-empty runs"),
        (usize::MAX, 4, vec![(0, 8)], "too many"),
    ];
    for (stride, blocks, runs, expected) in cases {
        let why = geometry_error(layout(stride, blocks, &runs));
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn an_arena_of_another_geometry_is_refused() {
    let memory = Memory::new(vec![0; 64]);
    let ours = geometry(&[(ATTENTION, &[8])], 1);
    let other = geometry(&[(ATTENTION, &[8])], 2);
    let arena = Arc::new(Arena::create(&other, 8, 4).unwrap());
    let maps = [map(0, 0, memory.region(), 16, &[(0, 8)])];
    let layout = Layout::new(Arc::clone(&ours), 0, &[4], &maps).unwrap();
    match HostEngine::new(layout, arena.memory(0).unwrap(), 1).map(drop) {
        Err(Error::Foreign(why)) => assert!(why.contains(&ours.fingerprint().to_string())),
        found => panic!("expected foreign bytes, found {found:?}"),
    }
}

#[test]
fn impossible_thread_counts_are_refused() {
    let memory = Memory::new(vec![0; 64]);
    let geometry = geometry(&[(ATTENTION, &[8])], 1);
    let arena = Arc::new(Arena::create(&geometry, 8, 4).unwrap());
    for threads in [0, HostEngine::MAX_THREADS + 1] {
        let maps = [map(0, 0, memory.region(), 16, &[(0, 8)])];
        let layout = Layout::new(Arc::clone(&geometry), 0, &[4], &maps).unwrap();
        argument_error(HostEngine::new(layout, arena.memory(0).unwrap(), threads).map(drop));
    }
}

#[test]
fn entries_that_are_wrong_are_refused_before_any_byte_moves() {
    let plain = Plain::new(10, 4, 8, 2);
    let before = plain.memory.bytes();
    let good = || entry(0, &[0, 1, 2], &[0]);
    let cases: [(EntryCopy, &str); 8] = [
        (
            entry(1, &[0, 1, 2], &[0]),
            "class: expected an index below 1, found 1",
        ),
        (entry(0, &[0, 1], &[0]), "slots: expected 3, found 2"),
        (entry(0, &[0, 1, 2, 3], &[0]), "slots: expected 3, found 4"),
        (
            entry(0, &[0, 1, 8], &[0]),
            "slot: expected below 8, found 8",
        ),
        (entry(0, &[0, 1, 1], &[0]), "slot 1: expected once"),
        (
            entry(0, &[3, 4, 5], &[]),
            "blocks: expected 1 (1 of group 0), found 0",
        ),
        (entry(0, &[3, 4, 5], &[0, 1]), "found 2"),
        (
            entry(0, &[3, 4, 5], &[4]),
            "block of group 0: expected below 4, found 4",
        ),
    ];
    for (bad, expected) in cases {
        for direction in [Direction::Store, Direction::Load] {
            let why = argument_error(plain.engine.submit(direction, vec![bad.clone()]));
            assert!(
                why.starts_with("entry 0: ") && why.contains(expected),
                "{why}"
            );
            // Not even the entries before it.
            let other = entry(0, &[5, 6, 7], &[1]);
            let why = argument_error(plain.engine.submit(direction, vec![other, bad.clone()]));
            assert!(why.starts_with("entry 1: "), "{why}");
        }
    }
    let store = |entries| argument_error(plain.engine.submit(Direction::Store, entries));
    assert!(store(vec![expecting(good(), 1)]).contains("checksum"));
    assert!(store(vec![good(), entry(0, &[3, 4, 2], &[1])]).contains("slot 2: expected once"));
    let load = |entries| argument_error(plain.engine.submit(Direction::Load, entries));
    let why = load(vec![good(), entry(0, &[3, 4, 5], &[0])]);
    assert!(
        why.contains("block 0 of group 0: expected once in a load, found twice"),
        "{why}"
    );
    assert_eq!(plain.engine.in_flight(), 0);
    assert_eq!(plain.engine.poll(), []);
    assert_eq!(plain.memory.bytes(), before);
    assert!((0..8).all(|slot| plain.arena.read(SlotId(slot)).unwrap() == [0; 4]));
}

#[test]
fn one_slot_may_be_loaded_into_two_blocks() {
    let plain = Plain::new(10, 10, 2, 2);
    assert!(
        run(&plain.engine, Direction::Store, vec![entry(0, &[1], &[0])])
            .error
            .is_none()
    );
    let both = vec![entry(0, &[1], &[2]), entry(0, &[1], &[3])];
    assert_eq!(run(&plain.engine, Direction::Load, both).bytes, 20);
    let bytes = plain.memory.bytes();
    assert_eq!((&bytes[20..30], &bytes[30..]), (&bytes[..10], &bytes[..10]));
}

#[test]
fn adjacent_runs_and_slots_are_copied_in_one_go() {
    let geometry = geometry(&[(ATTENTION, &[8, 8, 8])], 1);
    let arena = Arc::new(Arena::create(&geometry, 4, 16).unwrap());
    let slots = arena.memory(0).unwrap();
    let memory = Memory::new(vec![0; 256]);
    let region = memory.region();
    let lengths = |maps: &[LayerMap], entry: EntryCopy| -> Vec<usize> {
        let layout = Layout::new(Arc::clone(&geometry), 0, &[2], maps).unwrap();
        let plan = Plan::new(&layout, &slots, Direction::Store, vec![entry]).unwrap();
        plan.pieces(&layout, &slots, 0, 0..24)
            .map(|piece| piece.length)
            .collect()
    };
    // All layers of a block side by side in one region, then two of them with a gap between.
    let side_by_side: Vec<_> = (0..3)
        .map(|i| map(0, i, region, 24, &[(8 * i, 8)]))
        .collect();
    assert_eq!(
        lengths(&side_by_side, entry(0, &[3, 4, 5, 6, 7, 8], &[1])),
        [24]
    );
    assert_eq!(
        lengths(&side_by_side, entry(0, &[4, 3, 5, 6, 8, 7], &[1])),
        [4, 4, 8, 4, 4]
    );
    let gap: Vec<_> = (0..3)
        .map(|i| map(0, i, region, 32, &[(8 * i + i / 2, 8)]))
        .collect();
    assert_eq!(lengths(&gap, entry(0, &[3, 4, 5, 6, 7, 8], &[1])), [16, 8]);
    // One layer's runs merge where they touch, in payload order only.
    let split = [
        map(0, 0, region, 40, &[(0, 3), (3, 5)]),
        map(0, 1, region, 40, &[(24, 4), (20, 4)]),
        map(0, 2, region, 40, &[(32, 8)]),
    ];
    assert_eq!(
        lengths(&split, entry(0, &[0, 1, 2, 3, 4, 5], &[0])),
        [8, 4, 4, 8]
    );
}

#[test]
fn adjacent_bytes_of_two_groups_blocks_or_regions_are_copied_apart() {
    let memory = Memory::new((0..64).collect());
    let lengths = |geometry: &Arc<Geometry>, blocks: &[usize], maps: &[LayerMap], entry| {
        let slots = Arc::new(Arena::create(geometry, 16, 1).unwrap())
            .memory(0)
            .unwrap();
        let layout = Layout::new(Arc::clone(geometry), 0, blocks, maps).unwrap();
        let plan = Plan::new(&layout, &slots, Direction::Store, vec![entry]).unwrap();
        let pieces = plan.pieces(&layout, &slots, 0, 0..16);
        pieces.map(|piece| piece.length).collect::<Vec<_>>()
    };
    // Groups have blocks of their own.
    let groups = geometry(&[(RECURRENT, &[8]), (RECURRENT, &[8])], 1);
    let maps = [0, 1].map(|i| map(i, 0, memory.region(), 16, &[(8 * i, 8)]));
    assert_eq!(
        lengths(&groups, &[4, 4], &maps, entry(0, &[0], &[2, 2])),
        [8, 8]
    );
    // And so have the parts of an entry that takes several blocks, adjacent ones, too.
    let several = geometry_of(&[(RECURRENT, &[8], 2)], 1);
    let maps = [map(0, 0, memory.region(), 8, &[(0, 8)])];
    assert_eq!(
        lengths(&several, &[4], &maps, entry(0, &[0], &[1, 2])),
        [8, 8]
    );
    // A copy never leaves the region that it was promised, whatever other groups have.
    let layers = geometry(&[(ATTENTION, &[8, 8])], 1);
    let maps = [0, 1].map(|i| {
        let address = memory.region().address().as_ptr().wrapping_add(8 * i);
        // SAFETY: both halves lie inside the memory, which outlives them.
        let half = unsafe { Region::new(address, 8).unwrap() };
        map(0, i, half, 8, &[(0, 8)])
    });
    assert_eq!(lengths(&layers, &[1], &maps, entry(0, &[0], &[0])), [8, 8]);
    let second = geometry(&[(RECURRENT, &[8]), (ATTENTION, &[8, 8])], 1);
    let part = |start, nbytes| {
        let address = memory.region().address().as_ptr().wrapping_add(start);
        // SAFETY: the part lies inside the memory, which outlives it.
        unsafe { Region::new(address, nbytes).unwrap() }
    };
    let maps = [
        map(0, 0, part(0, 16), 16, &[(0, 8)]),
        map(1, 0, part(0, 24), 16, &[(0, 8)]),
        map(1, 1, part(8, 24), 16, &[(0, 8)]),
    ];
    assert_eq!(
        lengths(&second, &[1, 2], &maps, entry(0, &[0], &[0])),
        [8, 8]
    );
}

#[test]
fn entries_of_many_steps_come_back_whole_whatever_the_slots() {
    const BYTES: usize = 3 * (1 << 20) + 17;
    let count = BYTES.div_ceil(65_537) as u32;
    let plain = Plain::new(BYTES, 65_537, 4 * count as usize, 3);
    let before = plain.memory.bytes();
    let mut slots: Vec<u32> = (0..4 * count).collect();
    slots[count as usize..].reverse();
    Dice::new(3).shuffle(&mut slots[2 * count as usize..]);
    let entries = |first: usize| {
        let chunks = slots.chunks(count as usize).enumerate();
        chunks
            .map(|(i, slots)| entry(0, slots, &[(first + i) % 4]))
            .collect::<Vec<_>>()
    };
    let stored = run(&plain.engine, Direction::Store, entries(0));
    assert_eq!((stored.error, stored.bytes), (None, 4 * BYTES));
    let sums: Vec<u64> = before.chunks(BYTES).map(checksum).collect();
    assert_eq!(stored.checksums, sums);
    // Back into other blocks.
    let load = entries(1)
        .into_iter()
        .zip(sums)
        .map(|(e, sum)| expecting(e, sum))
        .collect();
    let loaded = run(&plain.engine, Direction::Load, load);
    assert_eq!(
        (loaded.error, loaded.bytes, loaded.checksums),
        (None, 4 * BYTES, vec![])
    );
    let after = plain.memory.bytes();
    assert!(after[BYTES..] == before[..3 * BYTES] && after[..BYTES] == before[3 * BYTES..]);
}

/// It writes what it hashes, but only its own blocks, and says that they are wrong.
#[test]
fn a_load_of_other_bytes_fails_whatever_byte_differs() {
    const BYTES: usize = 3 * TILE_BYTES + 100;
    let plain = Plain::new(BYTES, BYTES, 4, 2);
    let both = || vec![entry(0, &[0], &[0]), entry(0, &[1], &[1])];
    let sums = run(&plain.engine, Direction::Store, both()).checksums;
    let whole = plain.arena.read(SlotId(1)).unwrap();
    let before = plain.memory.bytes();
    let load = || {
        let mut entries = both();
        (entries[0].blocks[0], entries[1].blocks[0]) = (Some(2), Some(3));
        let verified = entries.into_iter().zip(&sums);
        let verified = verified.map(|(entry, sum)| expecting(entry, *sum));
        run(&plain.engine, Direction::Load, verified.collect())
    };
    let mut dice = Dice::new(11);
    for at in [0, TILE_BYTES - 1, TILE_BYTES, BYTES - 1, dice.roll(BYTES)] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << dice.roll(8);
        plain.arena.write(SlotId(1), &damaged).unwrap();
        let failed = load();
        let why = failed.error.unwrap();
        assert!(
            why.contains("checksum of entry 1: expected") && why.contains("found"),
            "{why}"
        );
        assert_eq!((failed.bytes, failed.checksums), (0, vec![]));
        assert_eq!(plain.memory.bytes()[..2 * BYTES], before[..2 * BYTES]);
        // Unverified, they are taken as they are; and the engine still works.
        let mut unverified = both();
        unverified[1].blocks[0] = Some(3);
        assert_eq!(run(&plain.engine, Direction::Load, unverified).error, None);
        assert_eq!(plain.memory.bytes()[3 * BYTES..], damaged);
    }
    plain.arena.write(SlotId(1), &whole).unwrap();
    assert_eq!(load().error, None);
    assert_eq!(plain.memory.bytes()[2 * BYTES..], before[..2 * BYTES]);
}

#[test]
fn bytes_that_a_load_leaves_out_are_verified_all_the_same() {
    let geometry = geometry_of(&[(ATTENTION, &[TILE_BYTES + 3], 2)], 1);
    let bytes = 2 * (TILE_BYTES + 3);
    let memory = Memory::new(Dice::new(5).bytes(2 * bytes));
    let maps = [map(0, 0, memory.region(), bytes / 2, &[(0, bytes / 2)])];
    let arena = Arc::new(Arena::create(&geometry, bytes, 1).unwrap());
    let layout = Layout::new(Arc::clone(&geometry), 0, &[4], &maps).unwrap();
    let engine = HostEngine::new(layout, arena.memory(0).unwrap(), 2).unwrap();
    let stored = run(&engine, Direction::Store, vec![entry(0, &[0], &[0, 1])]);
    let load = || {
        let mut part = expecting(entry(0, &[0], &[2, 3]), stored.checksums[0]);
        part.blocks[1] = None;
        run(&engine, Direction::Load, vec![part])
    };
    let loaded = load();
    assert_eq!((loaded.error, loaded.bytes), (None, bytes / 2));
    let mut slot = arena.read(SlotId(0)).unwrap();
    slot[bytes - 1] ^= 1;
    arena.write(SlotId(0), &slot).unwrap();
    let why = load().error.unwrap();
    assert!(why.contains("checksum of entry 0"), "{why}");
}

#[test]
fn stores_without_checksums_report_none_and_loads_still_verify() {
    let geometry = geometry(&[(ATTENTION, &[100])], 1);
    let memory = Memory::new(Dice::new(9).bytes(400));
    let maps = [map(0, 0, memory.region(), 100, &[(0, 100)])];
    let arena = Arc::new(Arena::create(&geometry, 100, 2).unwrap());
    let layout = Layout::new(Arc::clone(&geometry), 0, &[4], &maps).unwrap();
    let engine = HostEngine::without_checksums(layout, arena.memory(0).unwrap(), 2).unwrap();
    let before = memory.bytes();
    let stored = run(&engine, Direction::Store, vec![entry(0, &[1], &[3])]);
    assert_eq!(
        (stored.error, stored.bytes, stored.checksums),
        (None, 100, vec![])
    );
    assert_eq!(arena.read(SlotId(1)).unwrap(), before[300..]);
    let load = |sum| {
        run(
            &engine,
            Direction::Load,
            vec![expecting(entry(0, &[1], &[0]), sum)],
        )
    };
    assert_eq!(load(checksum(&before[300..])).error, None);
    assert_eq!(memory.bytes()[..100], before[300..]);
    assert!(load(0).error.is_some());
}

#[test]
fn tickets_end_once_and_can_be_waited_for_again() {
    let plain = Plain::new(10, 4, 8, 2);
    let first = plain
        .engine
        .submit(Direction::Store, vec![entry(0, &[0, 1, 2], &[0])])
        .unwrap();
    let empty = plain.engine.submit(Direction::Load, vec![]).unwrap();
    assert!(first < empty);
    assert!(plain.engine.wait(first, None).unwrap());
    assert!(
        plain
            .engine
            .wait(empty, Some(Duration::from_secs(60)))
            .unwrap()
    );
    let mut ended = plain.engine.poll();
    ended.sort_by_key(|completion| completion.ticket);
    let seen: Vec<_> = ended
        .iter()
        .map(|c| (c.ticket, c.error.is_none(), c.bytes))
        .collect();
    assert_eq!(seen, [(first, true, 10), (empty, true, 0)]);
    assert!(ended[0].seconds >= 0.0);
    assert_eq!(plain.engine.poll(), []);
    assert_eq!(plain.engine.in_flight(), 0);
    assert!(plain.engine.wait(first, Some(Duration::ZERO)).unwrap());
    assert!(plain.engine.wait(first, Some(Duration::MAX)).unwrap());
    for unknown in [Ticket(0), Ticket(3)] {
        argument_error(plain.engine.wait(unknown, None));
    }
}

#[test]
fn a_wait_copies_and_one_that_ends_early_leaves_the_rest_to_the_threads() {
    const BYTES: usize = 4 << 20;
    let plain = Plain::new(BYTES, BYTES, Plain::BLOCKS, 1);
    let blocks = || 0..Plain::BLOCKS;
    for timeout in [Duration::ZERO, Duration::from_micros(300), Duration::MAX] {
        let go = |direction, entries| {
            let ticket = plain.engine.submit(direction, entries).unwrap();
            let ended = plain.engine.wait(ticket, Some(timeout)).unwrap();
            assert!(ended || timeout < Duration::MAX);
            assert!(plain.engine.wait(ticket, None).unwrap());
            let done = plain.engine.poll().remove(0);
            assert_eq!((done.ticket, done.error), (ticket, None));
            done.checksums
        };
        let mut before = plain.memory.bytes();
        let stores = blocks().map(|block| entry(0, &[block as u32], &[block]));
        let sums = go(Direction::Store, stores.collect());
        let loads = std::iter::zip(blocks(), sums).map(|(block, sum)| {
            let next = (block + 1) % Plain::BLOCKS;
            expecting(entry(0, &[block as u32], &[next]), sum)
        });
        go(Direction::Load, loads.collect());
        before.rotate_right(BYTES);
        assert!(plain.memory.bytes() == before);
    }
}

#[test]
fn closing_waits_for_what_is_in_flight_and_refuses_more() {
    let plain = Plain::new(1 << 20, 1 << 16, 64, 2);
    let slots: Vec<u32> = (0..64).collect();
    let store = |i: usize| entry(0, &slots[16 * i..][..16], &[i]);
    for i in 0..4 {
        plain
            .engine
            .submit(Direction::Store, vec![store(i)])
            .unwrap();
    }
    plain.engine.close();
    assert_eq!(plain.engine.in_flight(), 0);
    let ended = plain.engine.poll();
    assert!(ended.len() == 4 && ended.iter().all(|c| c.error.is_none()));
    plain.engine.close();
    let refused = plain.engine.submit(Direction::Store, vec![store(0)]);
    assert!(matches!(refused, Err(Error::Transfer(why)) if why.contains("closed")));
    assert!(plain.engine.wait(ended[0].ticket, None).unwrap());
}

#[test]
fn dropping_an_engine_waits_for_its_copies() {
    let Plain {
        engine,
        arena,
        memory,
    } = Plain::new(1 << 20, 1 << 20, 4, 2);
    for i in 0..4 {
        engine
            .submit(Direction::Store, vec![entry(0, &[i], &[i as usize])])
            .unwrap();
    }
    drop(engine);
    let stored: Vec<u8> = (0..4)
        .flat_map(|slot| arena.read(SlotId(slot)).unwrap())
        .collect();
    assert!(stored == memory.bytes());
}

#[test]
fn an_engine_keeps_its_arena_mapped() {
    let Plain {
        engine,
        arena,
        memory,
    } = Plain::new(1 << 16, 1 << 16, 4, 1);
    drop(arena);
    assert_eq!(
        run(&engine, Direction::Store, vec![entry(0, &[3], &[2])]).error,
        None
    );
    assert_eq!(
        run(&engine, Direction::Load, vec![entry(0, &[3], &[0])]).error,
        None
    );
    drop(engine);
    let bytes = memory.bytes();
    assert!(bytes[..1 << 16] == bytes[2 << 16..3 << 16]);
}

#[test]
fn transfers_of_many_threads_end_each_once() {
    let plain = Plain::new(4096, 1024, 4 * 8, 3);
    let done = std::thread::scope(|scope| {
        let submit = |thread: u32| {
            let engine = &plain.engine;
            move || {
                let slots: Vec<u32> = (0..4).map(|i| 4 * thread + i).collect();
                let block = thread as usize % Plain::BLOCKS;
                let store = || vec![entry(0, &slots, &[block])];
                (0..50)
                    .map(|_| {
                        let ticket = engine.submit(Direction::Store, store()).unwrap();
                        assert!(engine.wait(ticket, None).unwrap());
                        ticket
                    })
                    .collect::<Vec<_>>()
            }
        };
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(submit(thread))).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    let mut ended: Vec<_> = plain.engine.poll().into_iter().map(|c| c.ticket).collect();
    ended.sort_unstable();
    let mut done = done;
    done.sort_unstable();
    assert_eq!(ended, done);
    assert_eq!(ended, (1..=400).map(Ticket).collect::<Vec<_>>());
}
