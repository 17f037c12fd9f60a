//! The order of work on the device: stores for the compute stream, loads for the last fence and
//! before stores; how much is in flight; and captures of graphs.
#![cfg(target_os = "linux")]

use crate::cuda_support;
use crate::mock_cuda;
use crate::transfer_support;

use cuda_support::{Load, Plain, Store, WAYS, Way, options};
use hybrid_pages::transfer::{Engine, checksum};
use hybrid_pages_cuda::CudaError;
use mock_cuda::{Mock, Mode};
use transfer_support::{Dice, expecting};

#[test]
fn a_store_reads_what_the_stream_has_written_late() {
    let mock = Mock::new();
    let stream = mock.stream();
    for way in WAYS {
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let late = Dice::new(5).bytes(Plain::BYTES);
        let hold = stream.hold();
        plain.compute(&stream, 2, &late);
        let ticket = plain
            .submit(Store, vec![Plain::entry(0, 2)], &stream)
            .unwrap();
        assert!(
            !plain.is_hasty(ticket),
            "{way:?}: the block is not written yet"
        );
        assert_eq!(plain.engine.in_flight(), 1);
        drop(hold);
        let stored = plain.finish(ticket);
        assert_eq!(
            (stored.error, stored.checksums),
            (None, vec![checksum(&late)])
        );
        assert!(plain.stored(0) == late);
    }
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn a_store_does_not_wait_for_what_the_stream_is_given_later() {
    let mock = Mock::new();
    let stream = mock.stream();
    for way in WAYS {
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let before = plain.payload(2);
        let ticket = plain
            .submit(Store, vec![Plain::entry(0, 2)], &stream)
            .unwrap();
        let _hold = stream.hold();
        assert_eq!(plain.finish(ticket).error, None);
        assert!(plain.stored(0) == before);
    }
}

#[test]
fn a_fenced_store_waits_for_what_was_before_the_fence_and_nothing_later() {
    let mock = Mock::new();
    let stream = mock.stream();
    for way in WAYS {
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let store = || plain.engine.store_fenced(vec![Plain::entry(0, 2)]);
        let why = store().unwrap_err().to_string();
        assert!(why.contains("expected a fence"), "{why}");
        let late = Dice::new(5).bytes(Plain::BYTES);
        let hold = stream.hold();
        plain.compute(&stream, 2, &late);
        plain.fence(&stream).unwrap();
        let ticket = store().unwrap();
        assert!(!plain.is_hasty(ticket), "{way:?}: it is not written yet");
        drop(hold);
        let _pass = stream.hold();
        let stored = plain.finish(ticket);
        assert_eq!(stored.checksums, vec![checksum(&late)], "{way:?}");
        assert_eq!(plain.finish(store().unwrap()).error, None);
    }
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn a_load_waits_for_what_was_before_the_fence_and_nothing_later() {
    let mock = Mock::new();
    let stream = mock.stream();
    for way in WAYS {
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let (early, wanted) = (
            Dice::new(5).bytes(Plain::BYTES),
            Dice::new(6).bytes(Plain::BYTES),
        );
        let sum = plain.fill(0, &wanted);
        let load = |block| vec![expecting(Plain::entry(0, block), sum)];

        let hold = stream.hold();
        plain.compute(&stream, 3, &early);
        plain.fence(&stream).unwrap();
        let ticket = plain.submit(Load, load(3), &stream).unwrap();
        assert!(
            !plain.is_hasty(ticket),
            "{way:?}: the block still belongs to the stream"
        );
        drop(hold);
        assert_eq!(plain.finish(ticket).error, None);
        assert!(
            plain.payload(3) == wanted,
            "{way:?}: the stream's bytes came later"
        );

        // Those of the next step are no concern of blocks that were free when the fence was set.
        let hold = stream.hold();
        for block in 4..6 {
            let ticket = plain.submit(Load, load(block), &stream).unwrap();
            assert_eq!(plain.finish(ticket).error, None);
            assert!(plain.payload(block) == wanted);
        }
        // Stores of that step wait, and loads do not wait for stores.
        let store = plain
            .submit(Store, vec![Plain::entry(1, 6)], &stream)
            .unwrap();
        assert!(!plain.is_hasty(store));
        let ticket = plain.submit(Load, load(7), &stream).unwrap();
        assert_eq!(plain.finish(ticket).error, None);
        assert_eq!(plain.engine.in_flight(), 1);
        drop(hold);
        assert_eq!(plain.finish(store).error, None);
    }
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn pageable_loads_do_not_wait_for_stores_either() {
    let mock = Mock::new();
    let stream = mock.stream();
    mock.set("NO_PINNING", 1);
    {
        let way = Way::Copies;
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let (late, wanted) = (
            Dice::new(5).bytes(Plain::BYTES),
            Dice::new(6).bytes(Plain::BYTES),
        );
        let sum = plain.fill(0, &wanted);
        plain.fence(&stream).unwrap();
        let hold = stream.hold();
        plain.compute(&stream, 6, &late);
        let store = plain
            .submit(Store, vec![Plain::entry(1, 6)], &stream)
            .unwrap();
        assert!(!plain.is_hasty(store));
        let load = vec![expecting(Plain::entry(0, 7), sum)];
        assert_eq!(plain.run(Load, load, &stream).unwrap().error, None);
        assert!(plain.payload(7) == wanted, "{way:?}");
        drop(hold);
        assert_eq!(plain.finish(store).error, None);
        assert!(plain.stored(1) == late, "{way:?}");
    }
}

#[test]
fn a_load_without_a_fence_waits_for_the_whole_stream() {
    let mock = Mock::new();
    for stream in [mock.stream(), mock.legacy()] {
        for way in WAYS {
            let plain = Plain::new(&mock, &options(way)).unwrap();
            let wanted = Dice::new(6).bytes(Plain::BYTES);
            let sum = plain.fill(0, &wanted);
            let hold = stream.hold();
            plain.compute(&stream, 3, &Dice::new(5).bytes(Plain::BYTES));
            let load = vec![expecting(Plain::entry(0, 3), sum)];
            let ticket = plain.submit(Load, load, &stream).unwrap();
            assert!(!plain.is_hasty(ticket));
            drop(hold);
            assert_eq!(plain.finish(ticket).error, None);
            assert!(plain.payload(3) == wanted, "{way:?}");
        }
    }
}

#[test]
fn a_transfer_ends_when_its_last_byte_has_arrived() {
    let mock = Mock::new();
    let stream = mock.stream();
    for (slow, pause) in [("COPY_US", 2000), ("KERNEL_US", 3000)] {
        for way in WAYS {
            let plain = Plain::new(&mock, &options(way)).unwrap();
            let payload = plain.payload(1);
            mock.set(slow, pause);
            let store = plain.run(Store, vec![Plain::entry(0, 1)], &stream).unwrap();
            assert!(plain.stored(0) == payload, "{way:?}: a store, {slow}");
            let load = vec![expecting(Plain::entry(0, 2), store.checksums[0])];
            let loaded = plain.run(Load, load, &stream).unwrap();
            assert_eq!(loaded.error, None);
            assert!(plain.payload(2) == payload, "{way:?}: a load, {slow}");
            mock.set(slow, 0);
        }
    }
}

#[test]
fn an_engine_has_streams_of_its_own_and_loads_go_first() {
    let mock = Mock::new();
    let plain = Plain::new(&mock, &options(Way::Usual)).unwrap();
    let mut streams = mock.streams();
    streams.sort_unstable();
    // Not blocking: none waits for the default stream by itself. Of the priorities, -5 is the greatest.
    assert_eq!(streams, [(1, -5), (1, -5), (1, 0), (1, 0)]);
    drop(plain);
    assert!(mock.streams().is_empty());
}

#[test]
fn a_stream_in_capture_is_refused_and_its_capture_stays_valid() {
    let mock = Mock::new();
    let (captured, other) = (mock.stream(), mock.stream());
    for way in WAYS {
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let entry = || vec![Plain::entry(0, 0)];
        let ((), valid) = captured.capture(|| {
            for direction in [Store, Load] {
                let refused = plain.submit(direction, entry(), &captured).unwrap_err();
                assert_eq!(refused, CudaError::Capturing);
            }
            assert_eq!(plain.fence(&captured).unwrap_err(), CudaError::Capturing);
            // Others go on meanwhile.
            plain.round_trip(&other).unwrap();
            plain.fence(&other).unwrap();
            assert_eq!(plain.run(Load, entry(), &captured).unwrap().error, None);
        });
        assert!(valid, "{way:?}");
        plain.round_trip(&captured).unwrap();
    }
    assert_eq!((mock.count("invalidated"), mock.count("captured")), (0, 0));
}

#[test]
fn the_default_stream_is_refused_while_a_stream_that_waits_for_it_is_captured() {
    let mock = Mock::new();
    let (captured, default) = (mock.blocking_stream(), mock.legacy());
    let plain = Plain::new(&mock, &options(Way::Copies)).unwrap();
    let ((), valid) = captured.capture(|| {
        let entry = vec![Plain::entry(0, 0)];
        let refused = plain.submit(Store, entry, &default).unwrap_err();
        assert_eq!(refused, CudaError::Capturing);
    });
    assert!(valid);
    plain.round_trip(&default).unwrap();
}

#[test]
fn nothing_that_an_engine_does_invalidates_a_capture() {
    let mock = Mock::new();
    let (captured, other) = (mock.stream(), mock.stream());
    let before = mock.live();
    let ((), valid) = captured.capture(|| {
        // From its making to its end, pageable memory and refused copies too.
        for (way, pinned) in [
            (Way::Copies, true),
            (Way::Kernel, true),
            (Way::Copies, false),
        ] {
            mock.set("NO_PINNING", usize::from(!pinned));
            let bench = mock.relaxed(|| cuda_support::Bench::new(&mock));
            let plain = bench.engine(&options(way)).unwrap();
            plain.round_trip(&other).unwrap();
            mock.fail("cuStreamWriteValue64_v2", 2, 1, Mode::Once);
            let _ = plain.round_trip(&other);
            drop(plain);
            mock.relaxed(|| drop(bench));
        }
    });
    assert!(valid);
    assert_eq!(mock.count("invalidated"), 0);
    assert_eq!(mock.live(), before);
    // And the mock does notice.
    let (_, valid) = captured.capture(|| other.finish_in_vain());
    assert!(!valid);
}
