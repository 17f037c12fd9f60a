//! A priority queue of numbers by score, in buckets of a sixteenth of an octave, in which every step takes constant
//! time.

use crate::policy::lists::Lists;

/// Number of buckets in an octave.
const STEPS: f32 = 16.0;
/// Binary logarithm of the lowest score that is told from lower ones; the highest is 2^32.
const LOWEST: f32 = -64.0;
/// Number of octaves of scores that are told apart.
pub(super) const OCTAVES: usize = 96;
const BUCKETS: usize = OCTAVES * STEPS as usize;

// Ranks of a tenant's entries, by which they leave: pages that are worth nothing, checkpoints by octaves of worth,
// pages that wait for their checkpoint.
pub(super) const SURPLUS: usize = 0;
pub(super) const WAITING: usize = 1 + OCTAVES;
pub(super) const RANKS: usize = WAITING + 1;

/// A priority queue of numbers by score. Scores in one bucket are not told apart: there, first in is first out.
#[derive(Debug)]
pub(super) struct Order {
    lists: Lists,
    /// A bit for each bucket: whether its list has any number.
    filled: [u64; BUCKETS / 64],
}

impl Order {
    pub(super) fn new() -> Self {
        Self {
            lists: Lists::new(BUCKETS),
            filled: [0; BUCKETS / 64],
        }
    }

    /// The bucket of a score.
    pub(super) fn bucket(score: f32) -> usize {
        let steps = (score.max(f32::MIN_POSITIVE).log2() - LOWEST) * STEPS;
        (steps.max(0.0) as usize).min(BUCKETS - 1)
    }

    /// The octave of a bucket.
    pub(super) const fn octave(bucket: usize) -> usize {
        bucket / STEPS as usize
    }

    pub(super) fn put(&mut self, item: u32, bucket: usize) {
        self.take(item);
        self.lists.push(bucket, item);
        self.filled[bucket / 64] |= 1 << (bucket % 64);
    }

    pub(super) fn take(&mut self, item: u32) {
        if let Some(bucket) = self.lists.remove(item)
            && self.lists.first(bucket).is_none()
        {
            self.filled[bucket / 64] &= !(1 << (bucket % 64));
        }
    }

    pub(super) fn has(&self, item: u32) -> bool {
        self.lists.has(item)
    }

    /// The number of the least score, with its bucket.
    pub(super) fn least(&self) -> Option<(u32, usize)> {
        let word = self.filled.iter().position(|&word| word != 0)?;
        let bucket = word * 64 + self.filled[word].trailing_zeros() as usize;
        Some((self.lists.first(bucket)?, bucket))
    }

    pub(super) const fn bytes(&self) -> usize {
        self.lists.bytes() + size_of::<Self>()
    }
}
