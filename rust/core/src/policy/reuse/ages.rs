//! The lives of records, by the bin of their age. A *life* lasts from when a checkpoint was made or used until it is
//! used again or forgotten. Every life is visited at the end of each bin, so the bytes that a visit needs lie side by
//! side in memory.

use std::collections::VecDeque;

use super::hazard::{BINS, Features};
use crate::policy::chunk_table::ChunkTable;

/// Number of lives in a chunk.
const CHUNK: usize = 64;

/// A life that waits for the end of its bin. It takes half a line of the processor's cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    pub(super) since: u64,
    pub(super) features: Features,
    pub(super) record: u32,
    /// Number of this life among those of its record.
    number: u32,
    /// Last bin for which the record's Gittins index need not be renewed.
    fresh_until: u8,
    /// Whether hazards are learned from this life.
    pub(super) teaches: bool,
}

impl Life {
    /// Whether the record's Gittins index need not be renewed for a bin.
    pub(super) fn is_fresh(&self, bin: usize) -> bool {
        bin <= self.fresh_until.into()
    }

    /// Notes that the record's Gittins index need not be renewed up to a bin.
    pub(super) fn keep_until(&mut self, bin: usize) {
        self.fresh_until = bin as u8;
    }
}

const _: () = assert!(size_of::<Life>() == 32);

/// The present life of a record.
#[derive(Debug, Clone, Copy)]
struct Present {
    number: u32,
    watched: bool,
}

/// Lives, first in, first out, in chunks of memory.
#[derive(Debug, Default)]
struct LifeQueue {
    chunks: VecDeque<Vec<Life>>,
    /// Number of lives taken from the first chunk.
    taken: usize,
}

impl LifeQueue {
    fn push(&mut self, life: Life, spare: &mut Vec<Vec<Life>>) {
        match self.chunks.back_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(life),
            _ => {
                let chunk = spare.pop();
                let mut chunk = chunk.unwrap_or_else(|| Vec::with_capacity(CHUNK));
                chunk.push(life);
                self.chunks.push_back(chunk);
            }
        }
    }

    fn first(&self) -> Option<&Life> {
        self.chunks.front()?.get(self.taken)
    }

    /// Removes the first life.
    fn shift(&mut self, spare: &mut Vec<Vec<Life>>) {
        self.taken += 1;
        if self.taken == CHUNK {
            self.taken = 0;
            if let Some(mut chunk) = self.chunks.pop_front() {
                chunk.clear();
                spare.push(chunk);
            }
        }
    }
}

/// The lives of all records, by bin.
#[derive(Debug)]
pub(super) struct Ages {
    queues: [LifeQueue; BINS],
    /// Empty chunks, to be used again.
    spare: Vec<Vec<Life>>,
    /// Time before which no life leaves each bin.
    due: [u64; BINS],
    present: ChunkTable<Present>,
}

impl Ages {
    pub(super) fn new() -> Self {
        Self {
            queues: std::array::from_fn(|_| LifeQueue::default()),
            spare: Vec::new(),
            due: [0; BINS],
            present: ChunkTable::new(Present {
                number: 0,
                watched: false,
            }),
        }
    }

    /// Begins the next life of a record, which is watched.
    pub(super) fn begin(&mut self, record: u32, since: u64, features: Features, teaches: bool) {
        let present = self.present.reach(record);
        present.number = present.number.wrapping_add(1);
        present.watched = true;
        let number = present.number;
        self.push(
            0,
            Life {
                since,
                features,
                record,
                number,
                fresh_until: 0,
                teaches,
            },
        );
    }

    /// Ends a record's life.
    pub(super) fn end(&mut self, record: u32) {
        let present = &mut self.present[record];
        present.number = present.number.wrapping_add(1);
    }

    /// Whether visits to a life look at its record: at its features, which may have changed, and to renew its index.
    pub(super) fn watch(&mut self, record: u32, watched: bool) {
        self.present[record].watched = watched;
    }

    /// Puts a life into a bin. Nothing ever leaves the last bin.
    pub(super) fn push(&mut self, bin: usize, life: Life) {
        if bin < BINS - 1 {
            self.queues[bin].push(life, &mut self.spare);
        }
    }

    /// Takes the first life out of a bin that ends at an age, if it has reached that.
    pub(super) fn pop(&mut self, bin: usize, end: u64, now: u64) -> Option<Life> {
        if now < self.due[bin] {
            return None;
        }
        let queue = &mut self.queues[bin];
        let life = *queue.first()?;
        // Ages are compared, not times: the end of a bin may lie behind the last moment that a clock can name.
        if now.saturating_sub(life.since) < end {
            self.due[bin] = life.since.saturating_add(end);
            return None;
        }
        queue.shift(&mut self.spare);
        Some(life)
    }

    /// Whether a life is watched; `None` if it has ended.
    pub(super) fn goes_on(&self, life: &Life) -> Option<bool> {
        let present = self.present[life.record];
        (present.number == life.number).then_some(present.watched)
    }

    pub(super) fn bytes(&self) -> usize {
        let queues = self.queues.iter().map(|queue| queue.chunks.len());
        let chunks = queues.sum::<usize>() + self.spare.len();
        chunks * (CHUNK * size_of::<Life>() + size_of::<Vec<Life>>()) + self.present.bytes()
    }
}

#[cfg(test)]
#[path = "../../../../../tests/rust/core/inside/ages.rs"]
mod tests;
