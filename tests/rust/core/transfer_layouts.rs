//! Layouts of transfers: which maps fit a geometry, and what is rejected.
#![cfg(target_os = "linux")]

use crate::transfer_plain;
use crate::transfer_support;

use std::sync::Arc;

use hybrid_pages::error::Error;
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::transfer::{
    Direction, EntryCopy, HostEngine, LayerMap, Plan, Region, TransferLayout, checksum,
};
use hybrid_pages_arena::Arena;
use transfer_plain::{argument_error, geometry_error, map};
use transfer_support::{Memory, entry, expecting, geometry, geometry_of, run};

const ATTENTION: ClassKind = ClassKind::Attention;
const RECURRENT: ClassKind = ClassKind::Recurrent;

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
    let layout =
        |maps: Vec<LayerMap>| TransferLayout::new(Arc::clone(&geometry), 1, &[4, 4], &maps);
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
    let elsewhere = |group, layer| map(group, layer, memory.region(), 0, &[]);
    assert!(layout(vec![elsewhere(0, 0), whole(0, 1, 4), elsewhere(1, 0)]).is_ok());
    for stray in [whole(0, 2, 4), whole(2, 0, 4)] {
        let why = argument_error(layout([all(), vec![stray]].concat()));
        assert!(why.contains("expected a layer of the geometry"), "{why}");
    }
    let rank = argument_error(TransferLayout::new(
        Arc::clone(&geometry),
        2,
        &[4, 4],
        &all(),
    ));
    assert!(rank.contains("rank: expected below 2, found 2"), "{rank}");
}

#[test]
fn every_group_has_a_number_of_blocks_of_its_own() {
    let geometry = geometry_of(&[(ATTENTION, &[4], 2), (RECURRENT, &[8], 1)], 1);
    let memory = Memory::new(vec![0; 32]);
    let whole = |group, bytes| map(group, 0, memory.region(), bytes, &[(0, bytes)]);
    let maps = [whole(0, 4), whole(1, 8)];
    let layout =
        |num_blocks: &[usize]| TransferLayout::new(Arc::clone(&geometry), 0, num_blocks, &maps);
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
    let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[10, 6], &maps).unwrap();
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
    let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[10, 5], &maps).unwrap();
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
        why.contains("a store needs every block that has tokens, found one left out"),
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
        TransferLayout::new(Arc::clone(&geometry), 0, &[blocks], &maps)
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
    let layout = TransferLayout::new(Arc::clone(&ours), 0, &[4], &maps).unwrap();
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
        let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[4], &maps).unwrap();
        argument_error(HostEngine::new(layout, arena.memory(0).unwrap(), threads).map(drop));
    }
}
