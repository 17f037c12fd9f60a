//! Several engines and devices in one process, and forks of it.
#![cfg(target_os = "linux")]

mod cuda_support;
mod mock_cuda;
#[path = "../shared/transfer_support.rs"]
mod transfer_support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cuda_support::{Bench, Load, Plain, Store, WAYS, Way, options};
use hybrid_pages::error::Error;
use hybrid_pages::transfer::Engine;
use hybrid_pages_cuda::CudaError;
use hybrid_pages_cuda::engine::{CudaEngine, CudaOptions};
use mock_cuda::{Mock, Mode};
use transfer_support::{Memory, expecting};

fn argument_error<T>(result: hybrid_pages_cuda::Result<T>) -> String {
    match result.map(drop) {
        Err(CudaError::Core(Error::InvalidArgument(why))) => why,
        other => panic!("expected an invalid argument, found {other:?}"),
    }
}

fn of_device(device: usize, way: Way) -> CudaOptions {
    CudaOptions {
        device,
        ..options(way)
    }
}

#[test]
fn engines_on_two_devices_share_an_arena_that_is_pinned_once() {
    let mock = Mock::new();
    let before = mock.live();
    {
        let first = Bench::new(&mock);
        mock.enter(1);
        let second = first.beside(&mock);
        for way in WAYS {
            let there = second.engine(&of_device(1, way)).unwrap();
            mock.enter(0);
            let here = first.engine(&of_device(0, way)).unwrap();
            let beside = first.engine(&of_device(0, way)).unwrap();
            assert_eq!(mock.count("registrations"), 1);
            assert!(
                [&here, &there, &beside]
                    .iter()
                    .all(|plain| plain.engine.facts().pinned)
            );

            // One device loads the entries that the other has stored.
            let payload = here.payload(0);
            let stream = mock.stream();
            let stored = here.run(Store, vec![Plain::entry(0, 0)], &stream).unwrap();
            mock.enter(1);
            let stream = mock.stream();
            let load = vec![expecting(Plain::entry(0, 6), stored.checksums[0])];
            assert_eq!(there.run(Load, load, &stream).unwrap().error, None);
            assert!(there.payload(6) == payload);

            // Who pinned it may leave before the others.
            drop(there);
            assert_eq!(mock.count("registrations"), 1);
            mock.enter(0);
            beside.round_trip(&mock.stream()).unwrap();
            drop(here);
            beside.round_trip(&mock.stream()).unwrap();
            drop(beside);
            assert_eq!(mock.count("registrations"), 0);
            mock.enter(1);
        }
    }
    mock.enter(0);
    assert_eq!(mock.count("violations"), 0);
    assert_eq!(mock.live(), before);
}

#[test]
fn an_arena_that_somebody_else_has_pinned_stays_theirs() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    assert!(mock.pin(bench.arena.planes()[0].region()));
    let plain = bench.engine(&options(Way::Kernel)).unwrap();
    plain.round_trip(&mock.stream()).unwrap();
    drop(plain);
    assert!(mock.unpin(bench.arena.planes()[0].region()), "still pinned");
}

#[test]
fn layers_that_the_device_cannot_reach_are_refused() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    mock.enter(1);
    let why = argument_error(bench.beside(&mock).engine(&options(Way::Usual)));
    assert!(
        why.contains("expected memory of device 0, found memory of device 1"),
        "{why}"
    );
    let memory = Arc::new(Memory::new(bench.memory.bytes()));
    let on_host = Bench { memory, ..bench };
    let why = argument_error(on_host.engine(&options(Way::Usual)));
    assert!(
        why.contains("expected memory of device 0, found memory of the host"),
        "{why}"
    );
}

#[test]
fn impossible_options_are_refused() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    for share in [0.0, -1.0, 1.5, f64::NAN] {
        let why = argument_error(bench.engine(&CudaOptions {
            share,
            ..options(Way::Usual)
        }));
        assert!(
            why.contains("share: expected more than 0, at most 1"),
            "{why}"
        );
    }
    match bench.engine(&of_device(2, Way::Copies)).map(drop) {
        Err(CudaError::Unavailable(why)) => assert!(why.contains("one of 2"), "{why}"),
        other => panic!("expected no such device, found {other:?}"),
    }
    let other = transfer_support::geometry(&[(hybrid_pages::ids::ClassKind::Window, &[8])], 1);
    let arena = Arc::new(hybrid_pages_arena::Arena::create(&other, 8, 4).unwrap());
    let layout = Plain::layout(&bench.geometry, &bench.memory);
    match CudaEngine::new(layout, arena.memory(0).unwrap(), &options(Way::Usual)).map(drop) {
        Err(CudaError::Core(Error::Foreign(_))) => {}
        other => panic!("expected a foreign arena, found {other:?}"),
    }
}

#[test]
fn an_engine_that_is_closed_refuses_more_and_has_ended_all() {
    let mock = Mock::new();
    let stream = mock.stream();
    let plain = Plain::new(&mock, &options(Way::Copies)).unwrap();
    mock.delay(2000, 3);
    let ticket = plain
        .submit(Store, vec![Plain::entry(0, 0)], &stream)
        .unwrap();
    plain.engine.close();
    assert_eq!(plain.engine.in_flight(), 0);
    assert_eq!(plain.engine.poll()[0].ticket, ticket);
    match plain.submit(Store, vec![Plain::entry(0, 0)], &stream) {
        Err(CudaError::Core(Error::Transfer(why))) => assert!(why.contains("closed"), "{why}"),
        other => panic!("expected a closed engine, found {other:?}"),
    }
    plain.engine.close();
}

#[test]
fn threads_may_submit_to_one_engine_at_the_same_time() {
    let mock = Mock::new();
    for way in WAYS {
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let payloads: Vec<_> = (0..4).map(|block| plain.payload(block)).collect();
        mock.delay(300, 5);
        std::thread::scope(|scope| {
            for (number, payload) in payloads.iter().enumerate() {
                let plain = &plain;
                scope.spawn(move || {
                    for _ in 0..8 {
                        // On the default stream, from threads without a context of their own.
                        let there = plain
                            .engine
                            .submit(Store, vec![Plain::entry(number, number)]);
                        assert!(plain.engine.wait(there.unwrap(), None).unwrap());
                        assert!(plain.stored(number) == *payload);
                        let back = plain
                            .engine
                            .submit(Load, vec![Plain::entry(number, number + 4)]);
                        assert!(plain.engine.wait(back.unwrap(), None).unwrap());
                        assert!(plain.payload(number + 4) == *payload);
                    }
                });
            }
        });
        let ended = plain.engine.poll();
        assert_eq!(ended.len(), 64);
        assert!(ended.iter().all(|completion| completion.error.is_none()));
        mock.delay(0, 1);
    }
    assert_eq!(mock.count("violations"), 0);
}

#[test]
fn a_thread_is_left_as_it_was() {
    let mock = Mock::new();
    let stream = mock.stream();
    let before = mock.thread();
    let plain = Plain::new(&mock, &options(Way::Usual)).unwrap();
    plain.round_trip(&stream).unwrap();
    plain.fence(&stream).unwrap();
    assert_eq!(mock.thread(), before);
    for function in ["cuStreamIsCapturing", "cuEventRecord"] {
        mock.fail(function, 1, 999, Mode::Once);
        plain.fence(&stream).unwrap_err();
        assert_eq!(mock.thread(), before, "{function}");
    }
    mock.fail("cuThreadExchangeStreamCaptureMode", 1, 999, Mode::Once);
    plain.fence(&stream).unwrap_err();
    drop(plain);
    assert_eq!(mock.thread(), before);
}

#[test]
fn a_fork_is_told_that_it_has_no_device_and_touches_none() {
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
        fn alarm(seconds: u32) -> u32;
        fn _exit(status: i32) -> !;
    }
    let mock = Mock::new();
    let stream = mock.stream();
    let bench = Bench::new(&mock);
    let plain = bench.engine(&options(Way::Usual)).unwrap();
    plain.round_trip(&stream).unwrap();
    plain.fence(&stream).unwrap();
    // SAFETY: the child makes no use of what other threads hold, and leaves by `_exit`.
    unsafe {
        let child = fork();
        if child == 0 {
            alarm(30);
            // A panic that left the child's only thread would end it as if all were well.
            let right = catch_unwind(AssertUnwindSafe(|| {
                let refused = plain.submit(Store, vec![Plain::entry(0, 0)], &stream);
                drop(plain);
                let why = refused.unwrap_err().to_string();
                assert!(why.contains("fork"), "{why}");
                assert_eq!(mock.all_calls(), 0, "calls of the driver");
            }));
            _exit(i32::from(right.is_err()));
        }
        let mut status = -1;
        assert_eq!(waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0, "the child's status");
    }
    plain.round_trip(&stream).unwrap();
}
