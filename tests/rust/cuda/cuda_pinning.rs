//! Slots pinned piece by piece, beside engines that come and go.
#![cfg(target_os = "linux")]

use crate::cuda_support;
use crate::mock_cuda;
use crate::transfer_support;

use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;
use std::time::Duration;

use cuda_support::{Bench, Load, Plain, Store, WAYS, Way, options, until};
use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::SlotId;
use hybrid_pages::transfer::{Region, SlotMemory};
use hybrid_pages_cuda::engine::{CudaEngine, CudaOptions};
use hybrid_pages_cuda::{Pinning, PinningOptions, driver};
use mock_cuda::{Mock, Mode, Stream};
use transfer_support::{entry, expecting};

const PAGE: usize = 4096;

fn pieces(piece_bytes: usize) -> PinningOptions {
    PinningOptions {
        piece_bytes,
        retry_after: Duration::from_millis(1),
        ..PinningOptions::default()
    }
}

/// Pieces of 16 pages, which are halved down to a page.
fn halved() -> PinningOptions {
    PinningOptions {
        least_bytes: PAGE,
        ..pieces(16 * PAGE)
    }
}

fn begun(bench: &Bench, options: &PinningOptions) -> Arc<Pinning> {
    let pinning = Pinning::new(bench.arena.memory(0).unwrap(), 0, options).unwrap();
    pinning.start().unwrap();
    Arc::new(pinning)
}

fn pinning(bench: &Bench, piece_bytes: usize) -> Arc<Pinning> {
    begun(bench, &pieces(piece_bytes))
}

/// How many slots are pinned, not pinned, and usable.
fn counts(pinning: &Pinning) -> (usize, usize, usize) {
    (
        pinning.pinned_slots(),
        pinning.unpinned_slots(),
        pinning.usable_slots(),
    )
}

/// Memory of an arena's slots.
fn part(bench: &Bench, first: usize, nbytes: usize) -> Region {
    let slots = bench.arena.memory(0).unwrap().region();
    // SAFETY: a part of the slots, which the arena keeps.
    unsafe { Region::new(slots.address().as_ptr().wrapping_add(first), nbytes).unwrap() }
}

/// Stores every block into its slots and loads it again: alone, then with the others.
fn round_trips(bench: &Bench, pinning: &Arc<Pinning>, stream: &Stream<'_>) {
    for way in WAYS {
        let plain = bench.engine(&over(pinning, way)).unwrap();
        plain.round_trip(stream).unwrap();
        for batch in [1, Plain::BLOCKS] {
            for first in (0..Plain::BLOCKS).step_by(batch) {
                let numbers = || first..first + batch;
                let payloads: Vec<_> = numbers().map(|block| plain.payload(block)).collect();
                let entries = numbers().map(|block| Plain::entry(block, block)).collect();
                let stored = plain.run(Store, entries, stream).unwrap();
                assert_eq!(stored.error, None);
                for (block, payload) in std::iter::zip(numbers(), &payloads) {
                    plain.compute(stream, block, &vec![0; Plain::BYTES]);
                    assert!(plain.stored(block) == *payload, "{way:?}, entry {block}");
                }
                let entries = std::iter::zip(numbers(), &stored.checksums);
                let entries =
                    entries.map(|(block, sum)| expecting(Plain::entry(block, block), *sum));
                let loaded = plain.run(Load, entries.collect(), stream).unwrap();
                assert_eq!(loaded.error, None);
                for (block, payload) in std::iter::zip(numbers(), &payloads) {
                    assert!(plain.payload(block) == *payload, "{way:?}, block {block}");
                }
            }
        }
    }
}

fn over(pinning: &Arc<Pinning>, way: Way) -> CudaOptions {
    CudaOptions {
        pinning: Some(Arc::clone(pinning)),
        ..options(way)
    }
}

#[test]
fn pieces_that_no_copy_spans_bring_back_every_byte() {
    let mock = Mock::new();
    let before = mock.live();
    let stream = mock.stream();
    for way in WAYS {
        // Slots of odd sizes: most of them lie in two pieces.
        let bench = Bench::new(&mock);
        let pinning = pinning(&bench, PAGE);
        assert!(pinning.wait(None));
        let pieces = bench.arena.nbytes().div_ceil(PAGE);
        assert_eq!(mock.count("registrations"), pieces);
        assert_eq!(
            (pinning.pinned_slots(), pinning.error()),
            (pinning.slots(), None)
        );
        for _ in 0..3 {
            let plain = bench.engine(&over(&pinning, way)).unwrap();
            plain.round_trip(&stream).unwrap();
            drop(plain);
            // Sleep and wake keep what is pinned.
            assert_eq!(mock.count("registrations"), pieces);
        }
        pinning.close().unwrap();
        assert_eq!(
            (mock.count("registrations"), pinning.pinned_slots()),
            (0, 0)
        );
    }
    assert_eq!(mock.count("violations"), 0);
    drop(stream);
    assert_eq!(mock.live(), before);
}

#[test]
fn slots_are_usable_as_they_are_pinned_and_not_before() {
    let mock = Mock::new();
    let stream = mock.stream();
    let bench = Bench::new(&mock);
    mock.set("REGISTER_US", 2_000);
    let pinning = pinning(&bench, 2 * PAGE);
    let plain = bench.engine(&over(&pinning, Way::Copies)).unwrap();
    let mut seen = vec![pinning.pinned_slots()];
    let last = pinning.slots() as u32 - 1;
    while *seen.last().unwrap() < pinning.slots() {
        let usable = pinning.usable_slots() as u32;
        if usable >= 3 {
            let entry = entry(0, &[usable - 1, usable - 2, usable - 3], &[1]);
            let stored = plain.run(Store, vec![entry], &stream).unwrap();
            assert_eq!(stored.error, None);
        }
        if pinning.usable_slots() < pinning.slots() {
            let refused = plain.submit(Store, vec![entry(0, &[last, 0, 1], &[1])], &stream);
            // It may have been pinned just now.
            if pinning.usable_slots() < pinning.slots() {
                let why = refused.unwrap_err().to_string();
                assert!(
                    why.contains(&format!("slot {last}: expected one below")),
                    "{why}"
                );
            } else if let Ok(ticket) = refused {
                plain.finish(ticket);
            }
        }
        seen.push(pinning.pinned_slots());
    }
    assert!(seen.is_sorted(), "{seen:?}");
    assert!(pinning.wait(None) && pinning.seconds() > 0.0);
    let why = pinning.close().unwrap_err().to_string();
    assert!(
        why.contains("expected no engine that uses it, found 1"),
        "{why}"
    );
    drop(plain);
    pinning.close().unwrap();
    let why = bench
        .engine(&over(&pinning, Way::Copies))
        .map(drop)
        .unwrap_err();
    assert!(why.to_string().contains("one that is closed"), "{why}");
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn a_failure_that_goes_away_costs_nothing() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    mock.fail("cuMemHostRegister_v2", 2, 2, Mode::Once);
    let pinning = begun(&bench, &halved());
    assert!(pinning.wait(None));
    let pieces = bench.arena.nbytes().div_ceil(16 * PAGE);
    assert_eq!(mock.count("registrations"), pieces);
    assert_eq!(mock.calls("cuMemHostRegister_v2"), pieces + 1);
    assert_eq!(counts(&pinning), (24, 0, 24));
    assert_eq!(pinning.error(), None);
}

#[test]
fn what_cannot_be_pinned_costs_its_own_slots_alone() {
    let mock = Mock::new();
    let stream = mock.stream();
    let bench = Bench::new(&mock);
    // Two pages of the third piece, which hold bytes of an entry.
    let unpinnable = (2 * 16) * PAGE..(2 * 16 + 2) * PAGE;
    mock.refuse_to_pin(Some(part(&bench, unpinnable.start, unpinnable.len())));
    let pinning = begun(&bench, &halved());
    assert!(pinning.wait(None));
    let lost = (unpinnable.end - 1) / Plain::SLOT_BYTES - unpinnable.start / Plain::SLOT_BYTES + 1;
    assert_eq!(counts(&pinning), (24 - lost, lost, 24));
    let why = pinning.error().unwrap();
    let said = format!("pinning failed for {lost} of 24 slots");
    assert!(
        why.contains(&said) && why.contains("CUDA_ERROR_OPERATING_SYSTEM"),
        "{why}"
    );
    // Of the third piece, 14 pages are pinned: 2, 4, and the other half.
    let pieces = bench.arena.nbytes().div_ceil(16 * PAGE);
    assert_eq!(mock.count("registrations"), pieces - 1 + 3);
    round_trips(&bench, &pinning, &stream);
    assert!(mock.calls("cuLaunchKernel") > 0 && mock.calls("cuMemcpyBatchAsync") > 0);
    assert!(
        !bench
            .engine(&over(&pinning, Way::Kernel))
            .unwrap()
            .engine
            .facts()
            .pinned
    );
    pinning.close().unwrap();
    assert_eq!(mock.count("registrations"), 0);
    assert_eq!(mock.count("violations"), 0);
    mock.refuse_to_pin(None);
}

#[test]
fn a_size_that_the_system_refuses_is_halved() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    mock.set("REGISTER_MOST", 5 * PAGE);
    let pinning = begun(&bench, &halved());
    assert!(pinning.wait(None));
    assert_eq!((counts(&pinning), pinning.error()), ((24, 0, 24), None));
    pinning.close().unwrap();
    assert_eq!(mock.count("registrations"), 0);
}

#[test]
fn where_nothing_can_be_pinned_all_is_pageable() {
    let mock = Mock::new();
    let stream = mock.stream();
    mock.set("NO_PINNING", 1);
    let bench = Bench::new(&mock);
    let pinning = begun(&bench, &halved());
    assert!(pinning.wait(None));
    assert_eq!(counts(&pinning), (0, 24, 24));
    // The first piece is tried again and halved, the others are tried once.
    let pieces = bench.arena.nbytes().div_ceil(16 * PAGE);
    assert_eq!(
        mock.calls("cuMemHostRegister_v2"),
        2 + (2 + 4 + 8 + 16) + pieces - 1
    );
    round_trips(&bench, &pinning, &stream);
    for options in [over(&pinning, Way::Kernel), options(Way::Kernel)] {
        let plain = bench.engine(&options).unwrap();
        assert!(!plain.engine.facts().pinned);
        let why = plain.engine.facts().warnings.join("\n");
        assert!(why.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{why}");
        plain.round_trip(&stream).unwrap();
    }
    assert_eq!(mock.calls("cuMemcpyBatchAsync"), 0);
    assert_eq!(mock.count("registrations"), 0);
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn pieces_of_a_system_with_other_pages_share_none() {
    let mock = Mock::new();
    let stream = mock.stream();
    const PAGES: usize = 64 << 10;
    mock.set("PAGE_BYTES", PAGES);
    // Slots begin on a page of this machine. Of several arenas, some begin on one of those pages.
    let starts = |bench: &Bench| part(bench, 0, 1).address().addr().get();
    let benches: Vec<_> = (0..64).map(|_| Bench::new(&mock)).collect();
    let found = benches.iter().find(|bench| starts(bench) % PAGES == 0);
    let bench = found.expect("one of 64 arenas begins on a multiple of 64 KiB");
    let large = |page_bytes| PinningOptions {
        page_bytes,
        ..pieces(25 * PAGE)
    };
    let pinning = begun(bench, &large(PAGES));
    assert!(pinning.wait(None));
    assert_eq!((counts(&pinning), pinning.error()), ((24, 0, 24), None));
    assert_eq!(
        mock.count("registrations"),
        bench.arena.nbytes().div_ceil(PAGES)
    );
    round_trips(bench, &pinning, &stream);
    pinning.close().unwrap();
    // With pages of another size, a piece whose neighbour has a page of it is not taken for pinned.
    let pinning = begun(bench, &large(PAGE));
    assert!(pinning.wait(None));
    let (pinned, unpinned, usable) = counts(&pinning);
    assert!(pinned > 0 && unpinned > 0 && usable == 24);
    let why = pinning.error().unwrap();
    assert!(why.contains("HOST_MEMORY_ALREADY_REGISTERED"), "{why}");
    round_trips(bench, &pinning, &stream);
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn what_others_have_pinned_counts_only_as_a_whole() {
    let mock = Mock::new();
    let stream = mock.stream();
    let bench = Bench::new(&mock);
    // Whoever else pins the second piece, and then all of it but its last bytes, up to the end of a slot.
    let second = 16 * PAGE..32 * PAGE;
    let most = second.end / Plain::SLOT_BYTES * Plain::SLOT_BYTES - second.start;
    for (nbytes, whole) in [(second.len(), true), (most, false)] {
        let theirs = part(&bench, second.start, nbytes);
        assert!(mock.pin(theirs));
        let pinning = begun(&bench, &pieces(16 * PAGE));
        assert!(pinning.wait(None));
        let (pinned, unpinned, usable) = counts(&pinning);
        assert_eq!((unpinned == 0, pinned + unpinned, usable), (whole, 24, 24));
        match pinning.error() {
            Some(why) => assert!(!whole && why.contains("ALREADY_REGISTERED"), "{why}"),
            None => assert!(whole),
        }
        round_trips(&bench, &pinning, &stream);
        pinning.close().unwrap();
        // What is not ours stays.
        assert_eq!(mock.count("registrations"), 1);
        assert!(mock.unpin(theirs));
    }
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn two_pinnings_of_the_same_slots_hold_what_they_use() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    let first = begun(&bench, &halved());
    assert!(first.wait(None));
    let same = begun(&bench, &halved());
    assert!(same.wait(None));
    assert_eq!(counts(&same), (24, 0, 24));
    // Its pieces are those of the first, which may go: they are not taken for somebody else's.
    let other = begun(&bench, &pieces(1 << 30));
    assert!(other.wait(None));
    assert_eq!(counts(&other), (0, 24, 24));
    first.close().unwrap();
    assert_eq!(
        mock.count("registrations"),
        bench.arena.nbytes().div_ceil(16 * PAGE)
    );
    same.close().unwrap();
    assert_eq!(mock.count("registrations"), 0);
}

#[test]
fn an_engine_is_complete_before_pinning_starts() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    let made = [
        "cuStreamCreateWithPriority",
        "cuEventCreate",
        "cuModuleLoadDataEx",
        "cuMemHostAlloc",
    ];
    for pins in [true, false] {
        mock.reset();
        let memory = bench.arena.memory(0).unwrap();
        let pinning = Arc::new(Pinning::new(memory, 0, &halved()).unwrap());
        mock.fail("cuMemHostRegister_v2", 1, 700, Mode::Sticky);
        let options = if pins {
            options(Way::Kernel)
        } else {
            over(&pinning, Way::Kernel)
        };
        // The device breaks with the first registration: nothing that an engine needs comes after it.
        let plain = bench.engine(&options).unwrap();
        let calls = made.map(|function| mock.calls(function));
        assert!(calls.iter().all(|calls| *calls > 0), "{calls:?}");
        assert_eq!(mock.calls("cuMemHostRegister_v2") > 0, pins);
        mock.reset();
        drop(plain);
        pinning.start().unwrap();
        assert!(pinning.wait(None));
        assert_eq!(counts(&pinning), (24, 0, 24));
    }
}

/// Slots that the system has no memory for: behind the end of their file.
fn without_memory(geometry: &Geometry, slots: usize) -> SlotMemory {
    unsafe extern "C" {
        fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
        fn mmap(
            at: *mut u8,
            bytes: usize,
            may: c_int,
            flags: c_int,
            file: c_int,
            from: i64,
        ) -> *mut u8;
    }
    const READ_WRITE: c_int = 1 | 2;
    const SHARED: c_int = 1;
    let nbytes = slots * Plain::SLOT_BYTES;
    // SAFETY: a new mapping, which stays for ever.
    let region = unsafe {
        let file = memfd_create(c"empty".as_ptr(), 0);
        let first = mmap(std::ptr::null_mut(), nbytes, READ_WRITE, SHARED, file, 0);
        Region::new(first, nbytes).unwrap()
    };
    SlotMemory::new(
        region,
        Plain::SLOT_BYTES,
        slots,
        *geometry.fingerprint(),
        Arc::new(()),
    )
    .unwrap()
}

#[test]
fn slots_without_memory_are_never_touched() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    let memory = without_memory(&bench.geometry, 24);
    let pinning = Pinning::new(memory.clone(), 0, &pieces(PAGE)).unwrap();
    pinning.start().unwrap();
    assert!(pinning.wait(None));
    assert_eq!((pinning.pinned_slots(), pinning.usable_slots()), (0, 0));
    let why = pinning.error().unwrap();
    assert!(
        why.contains("the system has no memory") && why.contains("0 of 24 slots"),
        "{why}"
    );
    // An engine that pins for itself has nothing to work with.
    let layout = Plain::layout(&bench.geometry, &bench.memory);
    let why = CudaEngine::new(layout, memory, &options(Way::Kernel))
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(why.contains("the system has no memory"), "{why}");
    assert_eq!(
        (mock.count("registrations"), mock.count("violations")),
        (0, 0)
    );
}

#[test]
fn closing_ends_what_is_under_way() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    mock.set("REGISTER_US", 20_000);
    let pinning = pinning(&bench, PAGE);
    until("a piece is pinned", || mock.count("registrations") > 0);
    assert!(!pinning.wait(Some(std::time::Duration::ZERO)));
    pinning.close().unwrap();
    assert!(pinning.wait(None));
    assert!(mock.calls("cuMemHostRegister_v2") < bench.arena.nbytes() / PAGE);
    assert_eq!(mock.count("registrations"), 0);
    assert_eq!(
        bench.arena.read(SlotId(0)).unwrap().len(),
        Plain::SLOT_BYTES
    );
}

#[test]
fn closing_ends_a_pause() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    mock.fail("cuMemHostRegister_v2", 2, 2, Mode::Once);
    let day = PinningOptions {
        retry_after: Duration::from_secs(86_400),
        ..halved()
    };
    let pinning = begun(&bench, &day);
    until("the second piece has failed", || {
        mock.calls("cuMemHostRegister_v2") == 2
    });
    pinning.close().unwrap();
    assert!(pinning.wait(None));
    assert_eq!(mock.calls("cuMemHostRegister_v2"), 2);
    assert_eq!(
        (mock.count("registrations"), counts(&pinning)),
        (0, (0, 0, 0))
    );
    // One that never started ends, too, and cannot be started any more.
    let pinning = Pinning::new(bench.arena.memory(0).unwrap(), 0, &day).unwrap();
    pinning.close().unwrap();
    pinning.start().unwrap();
    assert!(pinning.wait(None));
    assert_eq!(mock.calls("cuMemHostRegister_v2"), 2);
}

#[test]
fn impossible_pinnings_are_refused() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    let why = Pinning::new(bench.arena.memory(0).unwrap(), 0, &pieces(100))
        .map(drop)
        .unwrap_err();
    assert!(
        why.to_string()
            .contains("piece_bytes: expected at least 4096"),
        "{why}"
    );
    let why = Pinning::new(bench.arena.memory(0).unwrap(), 9, &pieces(PAGE))
        .map(drop)
        .unwrap_err();
    assert!(why.to_string().contains("found number 9"), "{why}");
    let other = pinning(&Bench::new(&mock), PAGE);
    let why = bench
        .engine(&over(&other, Way::Copies))
        .map(drop)
        .unwrap_err();
    assert!(why.to_string().contains("one of other slots"), "{why}");
}

#[test]
fn a_device_has_a_numa_node_or_none() {
    let mock = Mock::new();
    let driver = driver::Driver::get().unwrap();
    // Neither the driver knows the attribute nor the system the device.
    assert_eq!(driver::numa_node(&driver, 0).unwrap(), None);
    mock.set("NUMA_NODE", 3);
    assert_eq!(driver::numa_node(&driver, 1).unwrap(), Some(3));
    driver::numa_node(&driver, 5).unwrap_err();
}
