//! What a driver refuses or a kernel gets wrong costs speed, and neither the engine nor a byte.
#![cfg(target_os = "linux")]

use crate::cuda_support;
use crate::mock_cuda;

use cuda_support::{Bench, Plain, Way, options};
use hybrid_pages_cuda::engine::CudaOptions;
use mock_cuda::{Mock, Mode, UNKNOWN};

const BATCH: &str = "cuMemcpyBatchAsync";
const INVALID_VALUE: usize = 1;
const NOT_SUPPORTED: usize = 801;

/// Lets an engine that copies move bytes three times there and back.
fn move_by_copies(mock: &Mock) -> Plain {
    let stream = mock.stream();
    mock.delay(300, 11);
    let plain = Plain::new(mock, &options(Way::Copies)).unwrap();
    for _ in 0..3 {
        plain.round_trip(&stream).unwrap();
    }
    assert_eq!(mock.count("violations"), 0);
    plain
}

#[test]
fn a_batch_that_is_refused_is_copied_one_by_one_and_after_two_no_more_are_tried() {
    let mock = Mock::new();
    for (setting, code) in [
        ("REFUSE_BATCH", INVALID_VALUE),
        ("REFUSE_BATCH", NOT_SUPPORTED),
        // Some of its copies are under way when the others are refused.
        ("HALVE_BATCH", INVALID_VALUE),
    ] {
        mock.reset();
        mock.set(setting, code);
        let plain = move_by_copies(&mock);
        assert_eq!(plain.engine.refused_batch_copies(), 2, "{setting} {code}");
        assert_eq!(mock.calls(BATCH), 2, "{setting} {code}");
        let warnings = plain.engine.warnings();
        let told = "cuMemcpyBatchAsync failed: CUDA_ERROR_";
        assert!(
            warnings.len() == 1
                && warnings[0].contains(told)
                && warnings[0].contains(&format!("({code})")),
            "{warnings:?}"
        );
    }
}

#[test]
fn a_batch_that_is_refused_once_is_no_reason_to_stop_using_batches() {
    let mock = Mock::new();
    mock.fail(BATCH, 2, UNKNOWN, Mode::Once);
    let plain = move_by_copies(&mock);
    assert_eq!(plain.engine.refused_batch_copies(), 1);
    assert_eq!(plain.engine.warnings().len(), 1);
    assert_eq!(mock.calls(BATCH), 6);
}

#[test]
fn batches_are_not_used_where_the_settings_say_so() {
    let mock = Mock::new();
    let stream = mock.stream();
    let plain = Plain::new(
        &mock,
        &CudaOptions {
            batch_copies: false,
            ..options(Way::Copies)
        },
    )
    .unwrap();
    plain.round_trip(&stream).unwrap();
    assert_eq!(mock.calls(BATCH), 0);
    assert!(plain.engine.warnings().is_empty());
}

#[test]
fn a_kernel_that_goes_wrong_at_the_start_is_not_used() {
    let mock = Mock::new();
    let stream = mock.stream();
    let bench = Bench::new(&mock);
    let before = mock.live();
    for (wrong, told) in [
        (
            1,
            "Gather kernel, tried on known bytes: byte 33000: expected 0x",
        ),
        (
            2,
            "Scatter kernel, tried on known bytes: byte 64004: expected 0x",
        ),
        (
            3,
            "Scatter kernel, tried on known bytes: byte 64008: expected 0x",
        ),
        (
            4,
            "Gather kernel, tried on known bytes: digest of tile 1: expected ",
        ),
        (
            5,
            "Scatter kernel, tried on known bytes: digest of tile 1: expected ",
        ),
        (
            6,
            "Digest kernel, tried on known bytes: digest of tile 1: expected ",
        ),
    ] {
        mock.reset();
        mock.set("WRONG", wrong);
        let plain = bench.engine(&options(Way::Usual)).unwrap();
        assert!(!plain.engine.facts().kernels, "{wrong}");
        let warnings = plain.engine.warnings();
        assert!(
            warnings.len() == 1 && warnings[0].contains(told),
            "{wrong}: {warnings:?}"
        );
        assert!(warnings[0].starts_with("no kernels for compute capability 9.0"));
        let launches = mock.calls("cuLaunchKernel");
        plain.round_trip(&stream).unwrap();
        assert_eq!(mock.calls("cuLaunchKernel"), launches, "{wrong}");
        drop(plain);
        assert_eq!(mock.live(), before, "{wrong}: what was taken is given back");
    }
}

#[test]
fn a_kernel_that_cannot_be_tried_is_not_used() {
    let mock = Mock::new();
    let stream = mock.stream();
    let bench = Bench::new(&mock);
    for (function, nth) in [("cuLaunchKernel", 4), ("cuModuleLoadDataEx", 1)] {
        mock.reset();
        mock.fail(function, nth, UNKNOWN, Mode::Once);
        let plain = bench.engine(&options(Way::Kernel)).unwrap();
        let why = plain.engine.warnings().join("\n");
        assert!(why.contains(&format!("{function} failed")), "{why}");
        assert!(!plain.engine.facts().kernels);
        plain.round_trip(&stream).unwrap();
    }
}
