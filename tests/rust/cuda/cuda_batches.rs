//! Batches: how many there are, what goes together, what goes first, and that none stalls the device.
#![cfg(target_os = "linux")]

use crate::cuda_support;
use crate::mock_cuda;
use crate::transfer_support;

use cuda_support::{Load, Plain, Store, WAYS, Way, options, until};
use hybrid_pages::ids::ClassKind;
use hybrid_pages::transfer::{ByteRun, Engine, LayerMap, TransferLayout};
use hybrid_pages_arena::Arena;
use hybrid_pages_cuda::engine::{CudaEngine, CudaOptions};
use mock_cuda::{Mock, Mode};
use std::sync::Arc;
use transfer_support::{Dice, entry, expecting, geometry};

/// Most batches of a direction that are under way.
const BATCHES: usize = 4;
/// Most of them that use staging buffers.
const STAGED: usize = 2;

/// Times that something was given to the device to move bytes.
fn moves(mock: &Mock, way: Way) -> usize {
    match way {
        Way::Kernel => mock.calls("cuLaunchKernel"),
        _ => mock.calls("cuMemcpyBatchAsync"),
    }
}

#[test]
fn while_it_serves_nothing_is_allocated_freed_waited_for_or_asked() {
    let mock = Mock::new();
    let stream = mock.stream();
    for way in WAYS {
        let plain = Plain::new(&mock, &options(way)).unwrap();
        mock.set("SERVING", 1);
        for _ in 0..5 {
            plain.round_trip(&stream).unwrap();
            plain.fence(&stream).unwrap();
        }
        // More at once than there are batches: the stores of a hundred steps.
        let hold = stream.hold();
        let tickets: Vec<_> = (0..100)
            .map(|number| {
                let number = number % Plain::BLOCKS;
                let entry = vec![Plain::entry(number, number)];
                plain.submit(Store, entry, &stream).unwrap()
            })
            .collect();
        drop(hold);
        let ended = plain.finish_all(&tickets);
        assert!(ended.iter().all(|completion| completion.error.is_none()));
        mock.set("SERVING", 0);
        assert_eq!(mock.count("violations"), 0, "{way:?}");
    }
    // And the mock does notice.
    mock.set("SERVING", 1);
    drop(Plain::new(&mock, &options(Way::Usual)).unwrap());
    assert!(mock.count("violations") > 0);
}

#[test]
fn ten_stores_are_five_batches_at_most_and_each_has_its_own_checksum() {
    let mock = Mock::new();
    for way in WAYS {
        let stream = mock.stream();
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let before = moves(&mock, way);
        let at_once = if way == Way::Staged { STAGED } else { BATCHES };
        let hold = stream.hold();
        let store = |number: usize| {
            let entry = vec![Plain::entry(number % Plain::BLOCKS, number % Plain::BLOCKS)];
            plain.submit(Store, entry, &stream).unwrap()
        };
        let first = (0..at_once).map(|number| {
            let ticket = store(number);
            until("it is given to a stream", || {
                moves(&mock, way) - before == number + 1
            });
            ticket
        });
        let first: Vec<_> = first.collect();
        let tickets: Vec<_> = first.into_iter().chain((at_once..10).map(store)).collect();
        drop(hold);
        let mut ended = plain.finish_all(&tickets);
        ended.sort_by_key(|completion| completion.ticket);
        for (number, completion) in ended.iter().enumerate() {
            let payload = plain.payload(number % Plain::BLOCKS);
            let sum = hybrid_pages::transfer::checksum(&payload);
            assert_eq!(
                (&completion.error, &completion.checksums),
                (&None, &vec![sum])
            );
            assert_eq!(completion.bytes, Plain::BYTES);
            assert!(plain.stored(number % Plain::BLOCKS) == payload);
        }
        // Those that waited went together, or nearly so.
        let batches = moves(&mock, way) - before;
        assert!(
            (at_once + 1..=at_once + 3).contains(&batches),
            "{way:?}: {batches}"
        );
    }
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn stores_pause_while_a_load_is_waited_for_and_no_longer() {
    let mock = Mock::new();
    for way in WAYS {
        let (slow, stream) = (mock.stream(), mock.stream());
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let sum = plain.fill(0, &plain.payload(1));
        let hold = slow.hold();
        plain.fence(&slow).unwrap();
        let load = vec![expecting(Plain::entry(0, 2), sum)];
        let load = plain.submit(Load, load, &slow).unwrap();
        until("the load is given to a stream", || {
            moves(&mock, Way::Copies) + moves(&mock, Way::Kernel) > 0
        });
        let store = vec![Plain::entry(3, 3)];
        let store = plain.submit(Store, store, &stream).unwrap();
        assert!(!plain.is_hasty(store), "{way:?}: the bus is the load's");
        drop(hold);
        let ended = plain.finish_all(&[load, store]);
        assert!(ended.iter().all(|completion| completion.error.is_none()));
        assert!(plain.stored(3) == plain.payload(3));
    }
}

#[test]
fn stores_do_not_wait_for_ever() {
    let mock = Mock::new();
    let stream = mock.stream();
    let plain = Plain::new(&mock, &options(Way::Copies)).unwrap();
    let sum = plain.fill(0, &plain.payload(1));
    plain.fence(&stream).unwrap();
    mock.set("COPY_US", 300);
    // There is always another load.
    let load = |block: usize| {
        let load = vec![expecting(Plain::entry(0, block), sum)];
        plain.submit(Load, load, &stream).unwrap()
    };
    let mut last = load(4);
    let store = plain
        .submit(Store, vec![Plain::entry(3, 3)], &stream)
        .unwrap();
    let mut loads = 0;
    while !plain
        .engine
        .wait(store, Some(std::time::Duration::ZERO))
        .unwrap()
    {
        assert!(loads < 2_000, "the store waits behind {loads} loads");
        // Each of a fence of its own: they do not go together.
        plain.fence(&stream).unwrap();
        let next = load(4 + (loads + 1) % 4);
        assert!(plain.engine.wait(last, None).unwrap());
        (last, loads) = (next, loads + 1);
    }
    assert!(plain.engine.wait(last, None).unwrap());
    assert!(
        plain
            .engine
            .poll()
            .iter()
            .all(|completion| completion.error.is_none())
    );
}

#[test]
fn a_load_that_is_waited_for_does_not_wait_behind_a_full_pass() {
    let mock = Mock::new();
    for way in WAYS {
        let stream = mock.stream();
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let payload = plain.payload(1);
        let sum = plain.fill(0, &payload);
        plain.fence(&stream).unwrap();
        let pass = stream.pass();
        let load = vec![expecting(Plain::entry(0, 2), sum)];
        assert_eq!(plain.run(Load, load, &stream).unwrap().error, None);
        assert!(plain.payload(2) == payload, "{way:?}");
        drop(pass);
        stream.finish();
    }
}

#[test]
fn a_batch_that_cannot_begin_fails_its_transfers_alone() {
    let mock = Mock::new();
    for way in WAYS {
        let stream = mock.stream();
        let plain = Plain::new(&mock, &options(way)).unwrap();
        mock.fail("cuStreamWriteValue64_v2", 1, 999, Mode::Once);
        let failed = plain.run(Store, vec![Plain::entry(0, 0)], &stream).unwrap();
        let why = failed.error.unwrap();
        assert!(why.contains("cuStreamWriteValue64 failed"), "{why}");
        plain.round_trip(&stream).unwrap();
    }
}

#[test]
fn a_transfer_that_fails_between_its_batches_ends_and_nothing_else_does() {
    let mock = Mock::new();
    let stream = mock.stream();
    let options = CudaOptions {
        // Each buffer holds one payload.
        staging: 4 * Plain::BYTES.next_multiple_of(16384),
        ..options(Way::Staged)
    };
    let plain = Plain::new(&mock, &options).unwrap();
    mock.fail("cuStreamWriteValue64_v2", 2, 999, Mode::Once);
    let store = (0..4).map(|number| Plain::entry(number, number)).collect();
    let failed = plain.run(Store, store, &stream).unwrap();
    let why = failed.error.unwrap();
    assert!(why.contains("cuStreamWriteValue64 failed"), "{why}");
    let sum = plain.fill(0, &plain.payload(0));
    let load = (0..4).map(|block| expecting(Plain::entry(0, block), sum ^ u64::from(block == 0)));
    let failed = plain.run(Load, load.collect(), &stream).unwrap();
    let why = failed.error.unwrap();
    assert!(why.contains("checksum of entry 0"), "{why}");
    plain.round_trip(&stream).unwrap();
}

#[test]
fn a_transfer_longer_than_a_batch_comes_back_whole() {
    let mock = Mock::new();
    let stream = mock.stream();
    // So many tiny pieces that the lists of one batch do not hold them.
    const BLOCKS: usize = 40;
    let bytes = 64 * 32;
    let geometry = geometry(&[(ClassKind::Attention, &[bytes])], 1);
    for way in WAYS {
        let memory = mock.memory(&Dice::new(3).bytes(BLOCKS * 2 * bytes));
        let before = memory.bytes();
        // Distances that differ: nothing folds.
        let runs = (0..64).map(|run| ByteRun {
            offset: run * 48 + (run * run) % 7,
            length: 32,
        });
        let map = LayerMap {
            group: 0,
            layer: 0,
            region: memory.region(),
            block_stride: 2 * bytes,
            runs: runs.collect(),
            tokens: None,
        };
        let arena = Arc::new(Arena::create(&geometry, 512, 4 * BLOCKS).unwrap());
        let layout = TransferLayout::new(
            Arc::clone(&geometry),
            0,
            &[BLOCKS],
            std::slice::from_ref(&map),
        )
        .unwrap();
        let engine = CudaEngine::new(layout, arena.memory(0).unwrap(), &options(way)).unwrap();
        let all = || {
            (0..BLOCKS as u32).map(|block| {
                let slots: Vec<u32> = (0..4).map(|slot| 4 * block + 3 - slot).collect();
                entry(0, &slots, &[block as usize])
            })
        };
        let stored = transfer_support::run(&engine, Store, all().collect());
        assert_eq!((stored.error, stored.bytes), (None, BLOCKS * bytes));
        assert!(moves(&mock, way) > 1, "{way:?}: more than a batch");
        let load = all()
            .zip(stored.checksums)
            .map(|(entry, sum)| expecting(entry, sum));
        for piece in &map.runs {
            let first = memory
                .region()
                .address()
                .as_ptr()
                .wrapping_add(piece.offset);
            // SAFETY: block 0's run; nothing is in flight.
            unsafe { first.write_bytes(0, piece.length) };
        }
        assert_ne!(memory.bytes(), before);
        let loaded = transfer_support::run(&engine, Load, load.collect());
        assert_eq!((loaded.error, loaded.bytes), (None, BLOCKS * bytes));
        assert!(memory.bytes() == before, "{way:?}");
    }
    stream.finish();
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn kernels_of_stores_are_launched_in_short_pieces() {
    const BYTES: usize = (16 << 20) + 5 * 16384 + 100;
    let mock = Mock::new();
    let geometry = geometry(&[(ClassKind::Attention, &[BYTES])], 1);
    let memory = mock.memory(&Dice::new(5).bytes(2 * BYTES));
    let map = LayerMap {
        group: 0,
        layer: 0,
        region: memory.region(),
        block_stride: BYTES,
        runs: vec![ByteRun {
            offset: 0,
            length: BYTES,
        }],
        tokens: None,
    };
    let arena = Arc::new(Arena::create(&geometry, BYTES, 1).unwrap());
    for way in WAYS {
        let options = CudaOptions {
            staging: if way == Way::Staged { 128 << 20 } else { 0 },
            ..options(way)
        };
        let maps = std::slice::from_ref(&map);
        let layout = TransferLayout::new(Arc::clone(&geometry), 0, &[2], maps).unwrap();
        let engine = CudaEngine::new(layout, arena.memory(0).unwrap(), &options).unwrap();
        let launches = mock.calls("cuLaunchKernel");
        let stored = transfer_support::run(&engine, Store, vec![entry(0, &[0], &[0])]);
        assert_eq!(mock.calls("cuLaunchKernel") - launches, 3, "{way:?}");
        let sum = hybrid_pages::transfer::checksum(&memory.bytes()[..BYTES]);
        assert_eq!((stored.error, stored.checksums), (None, vec![sum]));
        // A load is waited for: in one launch it is faster.
        let load = vec![expecting(entry(0, &[0], &[1]), sum)];
        assert_eq!(transfer_support::run(&engine, Load, load).error, None);
        assert_eq!(mock.calls("cuLaunchKernel") - launches, 4, "{way:?}");
        let bytes = memory.bytes();
        assert!(bytes[..BYTES] == bytes[BYTES..], "{way:?}");
    }
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn the_driver_never_has_much_to_remember() {
    let mock = Mock::new();
    let stream = mock.stream();
    for way in WAYS {
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let tickets: Vec<_> = (0..300)
            .map(|_| {
                plain
                    .submit(Store, vec![Plain::entry(0, 1)], &stream)
                    .unwrap()
            })
            .collect();
        let ended = plain.finish_all(&tickets);
        assert_eq!(ended.len(), 300);
        assert!(ended.iter().all(|completion| completion.error.is_none()));
        assert!(plain.stored(0) == plain.payload(1), "{way:?}");
    }
    let deepest = mock.count("deepest_queue");
    assert!(deepest < 320, "{deepest} operations wait in a stream");
    assert_eq!(mock.count("violations"), 0);
}
