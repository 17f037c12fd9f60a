//! Slots pinned piece by piece, beside engines that come and go.
#![cfg(target_os = "linux")]

use crate::cuda_support;
use crate::mock_cuda;
use crate::transfer_support;

use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;

use cuda_support::{Bench, Plain, Store, WAYS, Way, options, until};
use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::SlotId;
use hybrid_pages::transfer::{Region, SlotMemory};
use hybrid_pages_cuda::engine::{CudaEngine, CudaOptions};
use hybrid_pages_cuda::{Pinning, driver};
use mock_cuda::{Mock, Mode};
use transfer_support::entry;

const PAGE: usize = 4096;

fn pinning(bench: &Bench, piece_bytes: usize) -> Arc<Pinning> {
    Arc::new(Pinning::new(bench.arena.memory(0).unwrap(), 0, piece_bytes).unwrap())
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
fn a_piece_that_fails_leaves_the_slots_before_it() {
    let mock = Mock::new();
    let stream = mock.stream();
    let bench = Bench::new(&mock);
    mock.fail("cuMemHostRegister_v2", 60, 2, Mode::Once);
    let pinning = pinning(&bench, PAGE);
    assert!(pinning.wait(None));
    let kept = 59 * PAGE / Plain::SLOT_BYTES;
    assert_eq!(
        (pinning.pinned_slots(), pinning.usable_slots()),
        (kept, kept)
    );
    let why = pinning.error().unwrap();
    assert!(
        why.contains(&format!("{kept} of 24 slots are used")),
        "{why}"
    );
    let plain = bench.engine(&over(&pinning, Way::Kernel)).unwrap();
    assert!(plain.engine.facts().pinned);
    // Four entries of three slots are what is left.
    plain.round_trip(&stream).unwrap();
    let refused = plain.submit(Store, vec![Plain::entry(4, 0)], &stream);
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("expected one below 12"), "{why}");
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn where_nothing_can_be_pinned_all_is_pageable() {
    let mock = Mock::new();
    let stream = mock.stream();
    // Above some size, registering fails; the engine's own pinning gives back what it had.
    for (most, piece) in [(PAGE - 1, PAGE), (1, 2 << 30)] {
        mock.set("REGISTER_MOST", most);
        let bench = Bench::new(&mock);
        let pinning = pinning(&bench, piece);
        assert!(pinning.wait(None));
        assert_eq!(
            (pinning.pinned_slots(), pinning.usable_slots()),
            (0, pinning.slots())
        );
        for options in [over(&pinning, Way::Kernel), options(Way::Kernel)] {
            let plain = bench.engine(&options).unwrap();
            assert!(!plain.engine.facts().pinned);
            let why = plain.engine.facts().warnings.join("\n");
            assert!(why.contains("CUDA_ERROR_OPERATING_SYSTEM"), "{why}");
            plain.round_trip(&stream).unwrap();
        }
        assert_eq!(mock.count("registrations"), 0);
    }
    assert_eq!(mock.count("violations"), 0);
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
    let pinning = Pinning::new(memory.clone(), 0, PAGE).unwrap();
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
fn impossible_pinnings_are_refused() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    let why = Pinning::new(bench.arena.memory(0).unwrap(), 0, 100)
        .map(drop)
        .unwrap_err();
    assert!(
        why.to_string()
            .contains("piece_bytes: expected at least 4096"),
        "{why}"
    );
    let why = Pinning::new(bench.arena.memory(0).unwrap(), 9, PAGE)
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
