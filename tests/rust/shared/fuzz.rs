//! Runs something on bytes that were changed at random, on every processor: no panic, no hang, no growth.
//!
//! `HYBRID_PAGES_EXECUTIONS` is how often, `HYBRID_PAGES_SEED` the first seed.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::time::{Duration, Instant};

use super::report::{report, setting};

/// One execution takes no longer, also on a machine with much to do.
const HANG: Duration = Duration::from_secs(20);
/// What the allocator may keep.
const GROWTH: u64 = 64 << 20;

/// Numbers that a seed gives.
pub struct Random(u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, most: usize) -> usize {
        (self.word() % most.max(1) as u64) as usize
    }

    /// A number at an edge of some type, or any.
    fn odd(&mut self) -> u64 {
        const EDGES: [u32; 7] = [0, 7, 8, 16, 31, 32, 63];
        let edge = 1_u64 << EDGES[self.below(EDGES.len())];
        match self.below(4) {
            0 => edge,
            1 => edge.wrapping_sub(1),
            2 => edge.wrapping_neg(),
            _ => self.word(),
        }
    }

    /// One of a corpus with some changes.
    pub fn changed(&mut self, corpus: &[Vec<u8>], bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.extend_from_slice(&corpus[self.below(corpus.len())]);
        for _ in 0..self.below(5) {
            let at = self.below(bytes.len());
            match self.below(9) {
                _ if bytes.is_empty() => bytes.push(self.word() as u8),
                0 | 1 => bytes[at] ^= 1 << self.below(8),
                2 => bytes[at] = self.word() as u8,
                3 => {
                    let odd = self.odd().to_le_bytes();
                    let width = [1, 2, 4, 8][self.below(4)].min(bytes.len() - at);
                    bytes[at..at + width].copy_from_slice(&odd[..width]);
                }
                4 => bytes.truncate(at),
                5 => {
                    let end = (at + self.below(40)).min(bytes.len());
                    let copy = bytes[at..end].to_vec();
                    let to = self.below(bytes.len());
                    bytes.splice(to..to, copy);
                }
                6 => {
                    let other = &corpus[self.below(corpus.len())];
                    let from = self.below(other.len());
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[from..]);
                }
                7 => {
                    let end = (at + self.below(40)).min(bytes.len());
                    bytes.drain(at..end);
                }
                _ => {
                    // As text: another number.
                    let odd = self.odd().to_string();
                    let end = (at + self.below(4)).min(bytes.len());
                    bytes.splice(at..end, odd.bytes());
                }
            }
        }
    }
}

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/statm") else {
        return 0;
    };
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: u64| pages * 4096)
}

/// Runs a part of all executions (one of so many) on each processor. `run` makes what a thread executes.
pub fn fuzz<R: FnMut(&mut Random)>(what: &str, one_of: u64, run: impl Fn() -> R + Sync) {
    let executions = setting("HYBRID_PAGES_EXECUTIONS", 20_000).div_ceil(one_of);
    let seed = setting("HYBRID_PAGES_SEED", u64::from(std::process::id()));
    println!("{what}: seed {seed}");
    let threads = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let run = &run;
            scope.spawn(move || {
                let (mut execute, mut random) = (run(), Random(seed << 8 | thread));
                let share = executions.div_ceil(threads);
                let mut warm = 0;
                for at in 0..share {
                    if at == share / 4 {
                        warm = resident();
                    }
                    let begun = (at % 64 == 0 || one_of > 1).then(Instant::now);
                    execute(&mut random);
                    if let Some(begun) = begun {
                        assert!(begun.elapsed() < HANG, "{what}: an execution hung");
                    }
                }
                let grown = resident().saturating_sub(warm);
                assert!(grown < GROWTH, "{what}: memory grew by {grown} bytes");
            });
        }
    });
    report([(&*format!("executions of {what}"), executions)]);
}
