//! Selection of entries that are worth writing to a tier that is full.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::policy::{EntryKind, NewEntry};

/// The most boundaries that are remembered as not wanted.
const MOST: usize = 1 << 16;

/// The entries of a boundary that are not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwanted {
    /// The checkpoint alone: a deeper one needs the page.
    Checkpoint,
    /// Page and checkpoint.
    All,
}

/// Boundaries of recent requests that are not worth their room.
#[derive(Debug, Default)]
pub(super) struct Selection {
    unwanted: HashMap<u64, Unwanted>,
    /// Names of unwanted boundaries, oldest first; some may be wanted again by now.
    order: VecDeque<u64>,
}

impl Selection {
    /// Notes what is not wanted at a boundary.
    pub(super) fn decline(&mut self, boundary: u64, what: Unwanted) {
        if self.unwanted.insert(boundary, what).is_none() {
            self.order.push_back(boundary);
        }
        while self.order.len() > MOST {
            if let Some(oldest) = self.order.pop_front() {
                self.unwanted.remove(&oldest);
            }
        }
    }

    /// Notes that everything at a boundary is wanted.
    pub(super) fn accept(&mut self, boundary: u64) {
        self.unwanted.remove(&boundary);
    }

    /// Whether an entry is wanted.
    pub(super) fn wants(&self, entry: &NewEntry) -> bool {
        match self.unwanted.get(&entry.boundary) {
            None => true,
            Some(Unwanted::Checkpoint) => entry.kind != EntryKind::Checkpoint,
            Some(Unwanted::All) => false,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.unwanted.allocation_size() + self.order.capacity() * size_of::<u64>()
    }
}
