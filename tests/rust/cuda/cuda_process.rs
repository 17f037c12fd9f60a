//! Several engines and devices in one process, forks of it, and what is kept between processes.
#![cfg(target_os = "linux")]

mod cuda_support;
mod mock_cuda;
#[path = "../shared/transfer_support.rs"]
mod transfer_support;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use cuda_support::{Bench, Load, Plain, Store, options};
use hybrid_pages::error::Error;
use hybrid_pages::transfer::Engine;
use hybrid_pages_cuda::CudaError;
use hybrid_pages_cuda::engine::{CudaEngine, Method, Options};
use mock_cuda::{Mock, Mode};
use transfer_support::{Memory, expecting};

fn argument_error<T>(result: hybrid_pages_cuda::Result<T>) -> String {
    match result.map(drop) {
        Err(CudaError::Core(Error::InvalidArgument(why))) => why,
        other => panic!("expected an invalid argument, found {other:?}"),
    }
}

fn of_device(device: usize, method: Method) -> Options {
    Options {
        device,
        ..options(Some(method))
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
        for method in Method::ALL {
            let there = second.engine(&of_device(1, method)).unwrap();
            mock.enter(0);
            let here = first.engine(&of_device(0, method)).unwrap();
            let beside = first.engine(&of_device(0, method)).unwrap();
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
    let plain = bench.engine(&options(Some(Method::Kernel))).unwrap();
    plain.round_trip(&mock.stream()).unwrap();
    drop(plain);
    assert!(mock.unpin(bench.arena.planes()[0].region()), "still pinned");
}

#[test]
fn layers_that_the_device_cannot_reach_are_refused() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    mock.enter(1);
    let why = argument_error(bench.beside(&mock).engine(&options(None)));
    assert!(
        why.contains("expected memory of device 0, found memory of device 1"),
        "{why}"
    );
    let memory = Arc::new(Memory::new(bench.memory.bytes()));
    let on_host = Bench { memory, ..bench };
    let why = argument_error(on_host.engine(&options(None)));
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
        let why = argument_error(bench.engine(&Options {
            share,
            ..options(None)
        }));
        assert!(
            why.contains("share: expected more than 0, at most 1"),
            "{why}"
        );
    }
    match bench.engine(&of_device(2, Method::Copy)).map(drop) {
        Err(CudaError::Unavailable(why)) => assert!(why.contains("one of 2"), "{why}"),
        other => panic!("expected no such device, found {other:?}"),
    }
    let other = transfer_support::geometry(&[(hybrid_pages::ids::ClassKind::Window, &[8])], 1);
    let arena = Arc::new(hybrid_pages::tier::Arena::create(&other, 8, 4).unwrap());
    let layout = Plain::layout(&bench.geometry, &bench.memory);
    match CudaEngine::new(layout, arena.memory(0).unwrap(), &options(None)).map(drop) {
        Err(CudaError::Core(Error::Foreign(_))) => {}
        other => panic!("expected a foreign arena, found {other:?}"),
    }
}

#[test]
fn an_engine_that_is_closed_refuses_more_and_has_ended_all() {
    let mock = Mock::new();
    let stream = mock.stream();
    let plain = Plain::new(&mock, &options(Some(Method::Staged))).unwrap();
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
    for method in Method::ALL {
        let plain = Plain::new(&mock, &options(Some(method))).unwrap();
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
fn an_engine_takes_the_method_that_its_calibration_finds_cheapest() {
    let mock = Mock::new();
    let stream = mock.stream();
    let bench = Bench::new(&mock);
    let cache = folder("choice");
    let options = Options {
        cache_dir: Some(cache.clone()),
        ..options(None)
    };
    drop(bench.engine(&options).unwrap());
    let file = fs::read_dir(&cache)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut kept: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for cheapest in Method::ALL {
        for measured in kept["calibration"]["costs"].as_array_mut().unwrap() {
            let price = if measured["method"] == cheapest.name() {
                1.0
            } else {
                2.0
            };
            measured["costs"]["fixed"] = price.into();
            measured["costs"]["per_copy"] = 0.0.into();
            measured["costs"]["per_byte"] = 0.0.into();
        }
        fs::write(&file, kept.to_string()).unwrap();
        let plain = bench.engine(&options).unwrap();
        let calls = ["cuLaunchKernel", "cuMemcpyBatchAsync"].map(|name| (name, mock.calls(name)));
        let ended = plain.run(Store, vec![Plain::entry(0, 0)], &stream).unwrap();
        assert_eq!(ended.error, None);
        // Of four tiles on a ring of places of one; digests are a launch.
        let [launches, batches] = calls.map(|(name, before)| mock.calls(name) - before);
        let expected = match cheapest {
            Method::Copy => (1, 1),
            Method::Kernel => (1, 0),
            Method::Staged => (4, batches),
        };
        assert_eq!((launches, batches), expected, "{cheapest}");
    }
}

#[test]
fn a_thread_is_left_as_it_was() {
    let mock = Mock::new();
    let stream = mock.stream();
    let before = mock.thread();
    let plain = Plain::new(&mock, &options(None)).unwrap();
    plain.round_trip(&stream).unwrap();
    plain.fence(&stream).unwrap();
    assert_eq!(mock.thread(), before);
    for function in ["cuEventCreate", "cuStreamIsCapturing", "cuEventRecord"] {
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
    let plain = bench.engine(&options(None)).unwrap();
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

/// An empty folder of this test's.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("mock-cuda")
        .join(name);
    if path.is_dir() {
        fs::remove_dir_all(&path).unwrap();
    }
    path
}

#[test]
fn a_device_is_measured_once_and_again_where_the_file_is_damaged() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    let cache = folder("calibration");
    let options = Options {
        cache_dir: Some(cache.clone()),
        ..options(None)
    };
    let launches = || {
        let before = mock.calls("cuLaunchKernel");
        let engine = bench.engine(&options).unwrap();
        let facts = engine.engine.facts();
        assert!(
            facts.calibration.is_some() && facts.warnings.is_empty(),
            "{:?}",
            facts.warnings
        );
        mock.calls("cuLaunchKernel") - before
    };
    assert!(launches() > 0);
    assert_eq!(launches(), 0, "it was kept");
    let files: Vec<_> = fs::read_dir(&cache)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let whole = fs::read_to_string(&files[0]).unwrap();
    let damaged = [
        whole[..whole.len() / 2].to_owned(),
        whole.replace("\"share\": 0.1", "\"share\": 0.2"),
        whole.replace("\"per_byte\": ", "\"per_byte\": -"),
    ];
    for text in damaged {
        assert_ne!(text, whole);
        fs::write(&files[0], text).unwrap();
        assert!(launches() > 0, "it was measured again");
        assert_eq!(launches(), 0, "and kept");
    }
}

#[test]
fn a_calibration_that_cannot_be_kept_is_told() {
    let mock = Mock::new();
    let cache = folder("not-a-folder");
    fs::write(&cache, "a file").unwrap();
    let plain = Plain::new(
        &mock,
        &Options {
            cache_dir: Some(cache),
            ..options(None)
        },
    )
    .unwrap();
    let why = plain.engine.facts().warnings.join("\n");
    assert!(why.contains("the calibration could not be kept"), "{why}");
    plain.round_trip(&mock.stream()).unwrap();
}

#[test]
fn a_device_with_little_memory_gets_a_smaller_ring() {
    let mock = Mock::new();
    let bench = Bench::new(&mock);
    let stream = mock.stream();
    let large = Options {
        staging_bytes: 1 << 20,
        ..options(Some(Method::Staged))
    };
    mock.fail("cuMemAlloc_v2", 1, 2, Mode::Once);
    let plain = bench.engine(&large).unwrap();
    assert_eq!(plain.engine.facts().methods, [Method::Staged]);
    plain.round_trip(&stream).unwrap();
}
