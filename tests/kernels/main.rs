//! The kernels of `csrc/`, unmodified, and the PTX that is shipped of them, on a CPU: equal to their
//! twins on random lists, under sanitizers, in any order of blocks and threads; and what is planted
//! in them is found.
//!
//! `HYBRID_PAGES_FUZZ` is the number of launches, `HYBRID_PAGES_SEED` the first one's seed: with
//! `HYBRID_PAGES_FUZZ=1` a launch that failed runs alone.

mod build;
mod case;
mod harness;
mod kinds;
mod lists;
mod mutants;
mod ptx;
mod random;

use std::path::Path;

use build::{Sanitizer, sources};
use case::{Case, Limits};
use harness::Harness;

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => default,
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}: expected a number, found {text:?}")),
    }
}

/// Runs launches until one differs from the twin, or the harness dies.
fn compare(harness: &mut Harness, limits: Limits, seeds: std::ops::Range<u64>) -> Option<String> {
    seeds.into_iter().find_map(|seed| {
        let case = Case::random(seed, limits);
        let why = case.difference(harness)?;
        Some(format!("seed {seed}: {why}\n{case}"))
    })
}

/// Runs random launches, which must leave what their twins leave.
fn check(program: &Path, sanitizer: Sanitizer) -> Harness {
    let first = setting("HYBRID_PAGES_SEED", 0);
    let count = setting("HYBRID_PAGES_FUZZ", 2_000);
    let (limits, count) = match sanitizer {
        Sanitizer::Address => (Limits::default(), count),
        Sanitizer::Thread => (Limits::TOGETHER, (count / 20).max(1)),
    };
    let mut harness = Harness::new(program, sanitizer, 0);
    let difference = compare(&mut harness, limits, first..first + count);
    assert!(difference.is_none(), "{}", difference.unwrap_or_default());
    harness
}

#[test]
fn kernels_equal_their_twins_on_random_lists() {
    let program = build::compiled(&sources(), Sanitizer::Address);
    check(&program, Sanitizer::Address);
}

#[test]
fn threads_of_a_block_do_not_race() {
    let program = build::compiled(&sources(), Sanitizer::Thread);
    check(&program, Sanitizer::Thread);
}
