//! The kernels of `csrc/`, unmodified, on a CPU: equal to their twins on random lists, under
//! sanitizers, in any order of blocks and threads; and what is planted in them is found.
//!
//! `HYBRID_PAGES_FUZZ` is the number of launches, `HYBRID_PAGES_SEED` the first one's seed: with
//! `HYBRID_PAGES_FUZZ=1` a launch that failed runs alone.

mod case;
mod harness;
mod kinds;
mod lists;
mod mutants;
mod random;

use case::{Case, Limits};
use harness::{Harness, Sanitizer};

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

#[test]
fn kernels_equal_their_twins_on_random_lists() {
    let first = setting("HYBRID_PAGES_SEED", 0);
    let count = setting("HYBRID_PAGES_FUZZ", 2_000);
    let mut harness = Harness::new(&harness::sources(), Sanitizer::Address);
    let difference = compare(&mut harness, Limits::default(), first..first + count);
    assert!(difference.is_none(), "{}", difference.unwrap_or_default());
}

#[test]
fn threads_of_a_block_do_not_race() {
    let first = setting("HYBRID_PAGES_SEED", 0);
    let count = setting("HYBRID_PAGES_FUZZ", 2_000) / 20;
    let mut harness = Harness::new(&harness::sources(), Sanitizer::Thread);
    let difference = compare(&mut harness, Limits::TOGETHER, first..first + count.max(1));
    assert!(difference.is_none(), "{}", difference.unwrap_or_default());
}
