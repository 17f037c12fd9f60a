//! The engine over a mock driver that ThreadSanitizer watches: no two streams, and no stream and no call, touch the
//! same bytes in no order. Rust is built without it, so it does not see what Rust's threads read and write themselves.

use std::path::Path;
use std::process::Command;

use super::mock_cuda::Mock;
use super::report::report;

/// Whether tests of this program pass under ThreadSanitizer, and what they print.
fn watched(arguments: &[&str]) -> (bool, String) {
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().to_str().unwrap();
    // Rust's calls of the C library are seen, but not what orders them.
    let ignored = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tsan-ignored");
    std::fs::write(&ignored, format!("called_from_lib:{name}\n")).unwrap();
    let options = format!("exitcode=66 suppressions={}", ignored.display());
    let library = Command::new("c++")
        .arg("-print-file-name=libtsan.so")
        .output();
    let library = String::from_utf8(library.unwrap().stdout).unwrap();
    let done = Command::new(&program)
        .args(arguments)
        .env("HYBRID_PAGES_TSAN", "1")
        .env("LD_PRELOAD", library.trim())
        .env("TSAN_OPTIONS", options)
        .output()
        .unwrap();
    let text = [done.stdout, done.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (done.status.success(), text)
}

#[test]
#[ignore = "a planted race, which the next test looks for"]
fn two_streams_write_to_one_place() {
    let mock = Mock::new();
    let (first, second) = (mock.stream(), mock.stream());
    let memory = mock.memory(&[0; 1 << 20]);
    for round in 0..50 {
        for stream in [&first, &second] {
            stream.write(memory.region().address().as_ptr(), &[round; 1 << 20]);
        }
    }
    first.finish();
    second.finish();
}

#[test]
#[ignore = "takes minutes: a part of make prove"]
fn only_the_planted_race_is_found() {
    let race = "WARNING: ThreadSanitizer: data race";
    let planted = "cuda_tsan::two_streams_write_to_one_place";
    // On busy cores one stream may end before the other begins, and then no race is there to be seen.
    let is_found = (0..10).any(|_| {
        let (passed, text) = watched(&["--ignored", "--exact", planted]);
        !passed && text.contains(race)
    });
    assert!(is_found, "the planted race is not seen");
    let (passed, text) = watched(&["cuda_batches", "cuda_order"]);
    assert!(passed && !text.contains("ThreadSanitizer"), "{text}");
    let tests = text.lines().filter(|line| line.ends_with("... ok")).count();
    report([
        (
            "tests of the CUDA engine under ThreadSanitizer",
            tests as u64,
        ),
        ("races in them", 0),
    ]);
}
