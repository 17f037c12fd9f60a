//! Transfers: what is rejected before a byte moves, how copies merge, and what they verify.
#![cfg(target_os = "linux")]

use crate::transfer_plain;
use crate::transfer_support;

use std::sync::Arc;

use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::transfer::{
    Direction, Engine, EntryCopy, HostEngine, LayerMap, Plan, Region, TILE_BYTES, TransferLayout,
    checksum,
};
use hybrid_pages_arena::Arena;
use transfer_plain::{Plain, argument_error, map};
use transfer_support::{Dice, Memory, entry, expecting, geometry, geometry_of, run};

const ATTENTION: ClassKind = ClassKind::Attention;
const RECURRENT: ClassKind = ClassKind::Recurrent;

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
        let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[2], maps).unwrap();
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
        let layout = TransferLayout::new(Arc::clone(geometry), 0, blocks, maps).unwrap();
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
    let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[4], &maps).unwrap();
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
    let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[4], &maps).unwrap();
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
