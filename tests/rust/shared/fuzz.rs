//! Runs something on bytes that were changed at random, on every processor: no panic, no hang, no growth.
//!
//! `HYBRID_PAGES_EXECUTIONS` is how often, `HYBRID_PAGES_SEED` the first seed.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::report::{report, setting};

/// One execution takes no longer, also on a machine with much to do.
const HANG: Duration = Duration::from_secs(20);
/// How much memory all executions may take.
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

/// The most bytes of memory that this process has had.
fn peak() -> u64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/status") else {
        return 0;
    };
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    kib.map_or(0, |kib: u64| kib << 10)
}

/// Runs all executions on all processors: as many as the environment says, or else one of `one_of` of the usual
/// number. `run` makes what a thread executes.
pub fn fuzz<R: FnMut(&mut Random)>(what: &str, one_of: u64, run: impl Fn() -> R + Sync) {
    let executions = setting("HYBRID_PAGES_EXECUTIONS", 20_000 / one_of);
    let seed = setting("HYBRID_PAGES_SEED", u64::from(std::process::id()));
    println!("{what}: seed {seed}");
    let threads = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
    let share = executions.div_ceil(threads);
    let done: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let (running, ended) = mpsc::channel::<()>();
        let each = (0_u64..).zip(&done).map(|(thread, done)| {
            let (run, running) = (&run, running.clone());
            scope.spawn(move || {
                let _running = running;
                let (mut execute, mut random) = (run(), Random(seed << 8 | thread));
                let mut warm = 0;
                for at in 0..share {
                    if at == share / 4 {
                        warm = peak();
                    }
                    execute(&mut random);
                    done.store(at + 1, Ordering::Relaxed);
                }
                let grown = peak().saturating_sub(warm);
                assert!(grown < GROWTH, "{what}: memory grew by {grown} bytes");
            })
        });
        let each: Vec<_> = each.collect();
        drop(running);
        let now = || done.iter().map(|it| it.load(Ordering::Relaxed));
        let mut before = vec![u64::MAX; done.len()];
        while ended.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            let mut since = each.iter().zip(now()).zip(&before);
            if since.any(|((it, at), &was)| at == was && !it.is_finished()) {
                eprintln!(
                    "{what}, seed {seed}: an execution hangs, after {before:?} of each thread"
                );
                std::process::abort();
            }
            before = now().collect();
        }
    });
    report([(&*format!("executions of {what}"), share * threads)]);
}
