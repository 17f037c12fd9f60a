//! Errors of the driver, injected one by one: each is told, and nothing else comes to harm.
#![cfg(target_os = "linux")]

mod cuda_support;
mod mock_cuda;
#[path = "../shared/transfer_support.rs"]
mod transfer_support;

use cuda_support::{Bench, Load, Plain, Store, WAYS, Way, options};
use hybrid_pages::error::Error;
use hybrid_pages::transfer::Engine;
use hybrid_pages_cuda::CudaError;
use hybrid_pages_cuda::driver::{Device, Driver};
use mock_cuda::{ILLEGAL_ADDRESS, Mock, Mode, Stream, UNKNOWN};
use transfer_support::expecting;

/// Every function that an engine may call after the driver has started.
const FUNCTIONS: [&str; 36] = [
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxGetStreamPriorityRange",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuStreamWriteValue64_v2",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemHostGetDevicePointer_v2",
    "cuPointerGetAttribute",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyBatchAsync",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuLaunchKernel",
];

/// Those that put something into a stream.
const QUEUED: [&str; 7] = [
    "cuStreamWaitEvent",
    "cuStreamWriteValue64_v2",
    "cuEventRecord",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyBatchAsync",
    "cuLaunchKernel",
];

/// Those by which an engine looks at its device: where one fails, there is no telling what has ended,
/// and the engine may stop.
const LOOKS: [&str; 4] = [
    "cuCtxPushCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventQuery",
    "cuStreamQuery",
];

/// Which calls of a function fail.
const TIMES: [usize; 7] = [1, 2, 3, 4, 6, 11, 22];

/// As errors name it: without its version.
fn base(function: &str) -> &str {
    function.split("_v").next().unwrap()
}

/// Makes an engine, lets it move bytes there and back twice, and drops it: what failed.
fn live(bench: &Bench, stream: &Stream<'_>, way: Way) -> Vec<String> {
    let plain = match bench.engine(&options(way)) {
        Ok(plain) => plain,
        Err(error) => return vec![error.to_string()],
    };
    let trips = [plain.round_trip(stream), plain.round_trip(stream)];
    trips.into_iter().filter_map(Result::err).collect()
}

#[test]
fn every_error_of_every_function_is_told_and_harms_nothing_else() {
    let mock = Mock::new();
    let (bench, stream) = (Bench::new(&mock), mock.stream());
    let before = mock.live();
    let ways = WAYS.map(|way| (way, true));
    let pageable = [(Way::Copies, false)];
    for (way, pinned) in ways.into_iter().chain(pageable) {
        for function in FUNCTIONS {
            for nth in TIMES {
                mock.reset();
                mock.fail(function, nth, UNKNOWN, Mode::Once);
                mock.set("NO_PINNING", usize::from(!pinned));
                let failures = live(&bench, &stream, way);
                if mock.calls(function) < nth {
                    break;
                }
                let case = format!("{way:?}, {pinned}: call {nth} of {function}: {failures:?}");
                let told = format!("{} failed: CUDA_ERROR_UNKNOWN (999)", base(function));
                assert!(failures.iter().all(|why| why.contains(&told)), "{case}");
                // Nothing was wrong but that call.
                assert!(failures.len() <= 1 || LOOKS.contains(&function), "{case}");
                assert_eq!(mock.live(), before, "{case}: what was taken is given back");
                assert_eq!(mock.count("violations"), 0, "{case}");
            }
        }
    }
}

#[test]
fn a_broken_device_ends_every_transfer_and_refuses_more() {
    let mock = Mock::new();
    let (bench, stream) = (Bench::new(&mock), mock.stream());
    let before = mock.live();
    for way in WAYS {
        for (mode, functions) in [(Mode::Sticky, &FUNCTIONS[..]), (Mode::Late, &QUEUED[..])] {
            for function in functions {
                for nth in [1, 3, 9] {
                    mock.reset();
                    mock.fail(function, nth, ILLEGAL_ADDRESS, mode);
                    let failures = live(&bench, &stream, way);
                    if mock.calls(function) < nth {
                        break;
                    }
                    let case = format!("{way:?}: call {nth} of {function}, {mode:?}: {failures:?}");
                    let told = "CUDA_ERROR_ILLEGAL_ADDRESS (700)";
                    assert!(failures.iter().all(|why| why.contains(told)), "{case}");
                    mock.reset();
                    assert_eq!(mock.live(), before, "{case}: what was taken is given back");
                }
            }
        }
    }
}

#[test]
fn all_that_wait_fail_when_the_device_breaks() {
    let mock = Mock::new();
    for way in WAYS {
        let stream = mock.stream();
        let plain = Plain::new(&mock, &options(way)).unwrap();
        let sum = plain.fill(7, &plain.payload(0));
        plain.fence(&stream).unwrap();
        let hold = stream.hold();
        // In one batch: a second one might be given to the held stream after the failure is set.
        let stores = (0..4).map(|number| Plain::entry(number, number)).collect();
        let function = match way {
            Way::Copies => "cuMemcpyBatchAsync",
            _ => "cuLaunchKernel",
        };
        let calls = mock.calls(function);
        let mut tickets = vec![plain.submit(Store, stores, &stream).unwrap()];
        cuda_support::until("the stores are given to streams", || {
            mock.calls(function) > calls
        });
        mock.fail(function, 1, ILLEGAL_ADDRESS, Mode::Late);
        let load = vec![expecting(Plain::entry(7, 7), sum)];
        tickets.push(plain.submit(Load, load, &stream).unwrap());
        let ended = plain.finish_all(&tickets);
        assert_eq!(ended.len(), tickets.len());
        for completion in ended {
            let why = completion.error.unwrap();
            assert!(why.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{why}");
            assert_eq!(completion.bytes, 0);
        }
        assert_eq!(plain.engine.in_flight(), 0);
        plain.engine.close();
        let calls = mock.all_calls();
        let refused = plain
            .engine
            .submit(Store, vec![Plain::entry(0, 0)])
            .unwrap_err();
        let told = matches!(&refused, Error::Transfer(why) if why.contains("(700)"));
        assert!(told, "{refused}");
        assert!(plain.fence(&stream).unwrap_err().is_sticky());
        assert_eq!(mock.all_calls(), calls, "what is broken is left alone");
        drop(hold);
        mock.reset();
    }
}

#[test]
fn what_is_not_begun_yet_fails_with_the_device() {
    let mock = Mock::new();
    mock.set("NO_PINNING", 1);
    let stream = mock.stream();
    let plain = Plain::new(&mock, &options(Way::Copies)).unwrap();
    let hold = stream.hold();
    let tickets = [0, 1].map(|number| {
        let entry = vec![Plain::entry(number, number)];
        plain.submit(Store, entry, &stream).unwrap()
    });
    mock.fail("cuEventQuery", 1, ILLEGAL_ADDRESS, Mode::Sticky);
    for completion in plain.finish_all(&tickets) {
        let why = completion.error.unwrap();
        assert!(why.contains("cuEventQuery failed"), "{why}");
    }
    plain.engine.close();
    drop(hold);
}

#[test]
fn a_missing_function_is_a_reason_and_no_crash() {
    for function in [
        "cuInit",
        "cuDevicePrimaryCtxRelease_v2",
        "cuEventQuery",
        "cuMemHostRegister_v2",
        "cuLaunchKernel",
    ] {
        let _mock = Mock::unused(&[function]);
        match Driver::get().map(drop) {
            Err(CudaError::Unavailable(why)) => assert!(why.contains(function), "{why}"),
            other => panic!("expected no driver, found {other:?}"),
        }
    }
}

#[test]
fn a_missing_library_is_a_reason() {
    let _mock = Mock::unused(&[]);
    for path in [
        "/nowhere/libcuda.so.1",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    ] {
        // SAFETY: the tests of a process that use the driver follow each other.
        unsafe { std::env::set_var("HYBRID_PAGES_LIBCUDA", path) };
        match Driver::get().map(drop) {
            Err(CudaError::Unavailable(why)) => assert!(why.contains("NVIDIA driver"), "{why}"),
            other => panic!("expected no driver, found {other:?}"),
        }
    }
}

#[test]
fn a_driver_that_does_not_start_says_why_and_may_start_later() {
    // A library of its own: this test's driver has not started yet.
    let mock = Mock::unused(&["cuEventElapsedTime"]);
    for (function, nth) in [("cuInit", 1), ("cuDriverGetVersion", 1)] {
        mock.fail(function, nth, UNKNOWN, Mode::Once);
        let why = Driver::get().map(drop).unwrap_err();
        assert_eq!(cuda_support::of_driver(&why), Some((function, UNKNOWN)));
    }
    mock.set("DEVICES", 0);
    let why = Driver::get().map(drop).unwrap_err().to_string();
    assert!(why.contains("CUDA_ERROR_NO_DEVICE"), "{why}");
    mock.set("DEVICES", Mock::DEVICES);
    let driver = Driver::get().unwrap();
    assert_eq!(Device::count(&driver).unwrap(), Mock::DEVICES);
    let why = Device::open(&driver, Mock::DEVICES)
        .unwrap_err()
        .to_string();
    assert!(why.contains("expected one of 2, found number 2"), "{why}");
}

#[test]
fn functions_that_older_drivers_lack_are_done_without() {
    let mock = Mock::without(&[
        "cuGetProcAddress_v2",
        "cuGetErrorName",
        "cuGetErrorString",
        "cuStreamWriteValue64_v2",
    ]);
    assert!(!Driver::get().unwrap().has_copy_batch());
    let stream = mock.stream();
    let bench = Bench::new(&mock);
    for way in WAYS {
        let plain = bench.engine(&options(way)).unwrap();
        let why = plain.engine.facts().warnings.join("\n");
        assert!(why.contains("writes no words to the host"), "{why}");
        plain.round_trip(&stream).unwrap();
    }
    // The first stream is that of the kernels' proof.
    mock.fail("cuStreamCreateWithPriority", 2, UNKNOWN, Mode::Once);
    let why = bench.engine(&options(Way::Usual)).map(drop).unwrap_err();
    let why = why.to_string();
    assert!(why.contains("unknown result (999)"), "{why}");
}

#[test]
fn a_device_that_writes_no_words_is_asked() {
    let mock = Mock::new();
    mock.set("NO_WORDS", 1);
    let stream = mock.stream();
    for way in WAYS {
        let plain = Plain::new(&mock, &options(way)).unwrap();
        plain.round_trip(&stream).unwrap();
    }
    assert!(mock.calls("cuEventQuery") > 0);
}

#[test]
fn without_kernels_copies_go_on_and_the_host_hashes() {
    let mock = Mock::new();
    let before = mock.live();
    mock.set("NO_CUBIN", 1);
    mock.set("NO_PTX", 1);
    {
        let stream = mock.stream();
        let plain = Plain::new(&mock, &options(Way::Usual)).unwrap();
        let facts = plain.engine.facts();
        assert!(!facts.kernels);
        let why = facts.warnings.join("\n");
        assert!(
            why.contains("no kernels for compute capability 9.0"),
            "{why}"
        );
        plain.round_trip(&stream).unwrap();
        // Verified before a byte moves.
        let (payload, untouched) = (plain.payload(0), plain.payload(5));
        let sum = plain.fill(3, &payload);
        let failed = plain
            .run(Load, vec![expecting(Plain::entry(3, 5), sum ^ 1)], &stream)
            .unwrap();
        assert!(failed.error.unwrap().contains("checksum of entry 0"));
        assert!(plain.payload(5) == untouched);
        assert_eq!(mock.calls("cuLaunchKernel"), 0);
    }
    assert_eq!(mock.live(), before);
}

#[test]
fn a_device_that_uses_the_memory_of_the_host_is_warned_of() {
    let mock = Mock::new();
    mock.set("INTEGRATED", 1);
    let stream = mock.stream();
    let plain = Plain::new(&mock, &options(Way::Usual)).unwrap();
    let why = plain.engine.facts().warnings.join("\n");
    assert!(why.contains("Mock GPU: its memory is the host's"), "{why}");
    plain.round_trip(&stream).unwrap();
}

#[test]
fn the_next_best_image_is_loaded_where_one_is_refused() {
    let mock = Mock::new();
    let stream = mock.stream();
    mock.set("NO_CUBIN", 1);
    let plain = Plain::new(&mock, &options(Way::Kernel)).unwrap();
    plain.round_trip(&stream).unwrap();
    assert!(mock.calls("cuModuleLoadDataEx") > 1);
    mock.set("NO_CUBIN", 0);
    // Devices of every architecture find one at once.
    for capability in [75, 80, 86, 87, 89, 90, 100, 103, 120] {
        mock.set("CAPABILITY", capability);
        let calls = mock.calls("cuModuleLoadDataEx");
        let plain = Plain::new(&mock, &options(Way::Copies)).unwrap();
        assert!(plain.engine.facts().warnings.is_empty());
        plain.round_trip(&stream).unwrap();
        assert_eq!(mock.calls("cuModuleLoadDataEx"), calls + 1, "{capability}");
    }
}
