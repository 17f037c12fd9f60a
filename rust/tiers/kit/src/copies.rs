//! The ends of a tier's copies.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use hybrid_pages::error::{Error, Result};
use hybrid_pages::guarded::lock_watched as lock;
use hybrid_pages::tier::{CopyEnd, CopyId};

/// Ends of copies that the cache has not polled for yet.
#[derive(Debug, Default)]
pub struct CopyEnds(Mutex<Vec<CopyEnd>>);

impl CopyEnds {
    /// Adds the end of a copy.
    pub fn add(&self, copy: CopyId, result: Result<Vec<u64>>) {
        lock(&self.0).push(CopyEnd { copy, result });
    }

    /// Moves all ends to `ended`.
    pub fn take(&self, ended: &mut Vec<CopyEnd>) {
        ended.append(&mut lock(&self.0));
    }

    /// Whether a thread panicked while it held the lock.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
    }
}

/// The error of a copy that a store which machines share does not make.
#[must_use]
pub fn refused(expected: &str, found: &str) -> Error {
    Error::remote(format!("expected {expected}, found {found}"))
}

/// Calls `is_done` until it returns true, with a nap in between. False if that takes longer than `limit`.
pub fn wait_until(limit: Duration, nap: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is_done() {
        if begun.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(nap);
    }
    true
}

/// The text of the error when a tier is connected a second time.
pub const CONNECTED_TWICE: &str =
    "expected to be connected once, found a second time: make a new cache";
