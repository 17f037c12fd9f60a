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
mod tests {
    use super::*;

    fn taken(ages: &mut Ages, bin: usize, end: u64, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| ages.pop(bin, end, now))
            .map(|life| life.record)
            .collect()
    }

    #[test]
    fn lives_leave_a_bin_in_order_when_they_reach_its_end() {
        let mut ages = Ages::new();
        for record in 0..200 {
            ages.begin(record, u64::from(record), Features::NONE, true);
        }
        assert!(taken(&mut ages, 0, 16, 15).is_empty());
        assert_eq!(taken(&mut ages, 0, 16, 18), [0, 1, 2]);
        assert_eq!(taken(&mut ages, 0, 16, 300), (3..200).collect::<Vec<_>>());
        ages.begin(7, 400, Features::NONE, true);
        assert_eq!(taken(&mut ages, 0, 16, 416), [7]);
    }

    #[test]
    fn a_life_goes_on_until_its_record_ends_it_or_begins_another() {
        let mut ages = Ages::new();
        ages.begin(1, 0, Features::NONE, true);
        ages.begin(2, 0, Features::NONE, true);
        ages.begin(2, 5, Features::NONE, true);
        ages.watch(2, false);
        ages.begin(3, 6, Features::NONE, true);
        ages.end(3);
        let lives: Vec<_> = std::iter::from_fn(|| ages.pop(0, 16, 100)).collect();
        let states: Vec<_> = lives.iter().map(|life| ages.goes_on(life)).collect();
        assert_eq!(states, [Some(true), None, Some(false), None]);
    }

    #[test]
    fn at_the_end_of_the_clock_no_life_leaves_a_bin_that_it_has_not_lived_through() {
        let mut ages = Ages::new();
        for since in [u64::MAX - 16, u64::MAX - 15, u64::MAX] {
            ages.begin(1, since, Features::NONE, true);
        }
        for _ in 0..2 {
            let left = taken(&mut ages, 0, 16, u64::MAX);
            assert!(left.len() <= 1, "one has lived through it: {left:?}");
        }
        assert!(ages.pop(0, 16, u64::MAX).is_none());
    }

    #[test]
    fn memory_is_used_again() {
        let mut ages = Ages::new();
        let mut round = |from: u64| {
            for now in from..from + 10_000 {
                ages.begin(0, now, Features::NONE, true);
            }
            for bin in 0..BINS - 1 {
                while let Some(life) = ages.pop(bin, 16, from + 20_000) {
                    ages.push(bin + 1, life);
                }
            }
            ages.bytes()
        };
        let bytes = round(0);
        assert!(bytes > 10_000 * size_of::<Life>());
        assert_eq!([round(20_000), round(40_000)], [bytes; 2]);
    }
}
