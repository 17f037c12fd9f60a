//! Selection of entries that are worth writing to a tier that is full.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::Reuse;
use super::eviction::scale;
use super::hazard::BINS;
use crate::policy::{EntryKind, NewEntry, NewRequest};

/// Blocks of computing that a write must be expected to save for each page that it takes: a write wears the medium.
const PRICE: f32 = 0.1;
/// The most boundaries that are remembered as not wanted.
const MOST: usize = 1 << 16;

/// The entries of a boundary that are not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unwanted {
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
    fn decline(&mut self, boundary: u64, what: Unwanted) {
        if self.unwanted.insert(boundary, what).is_none() {
            self.order.push_back(boundary);
        }
        while self.order.len() > MOST {
            if let Some(oldest) = self.order.pop_front() {
                self.unwanted.remove(&oldest);
            }
        }
    }

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

impl Reuse {
    /// Judges the checkpoints that a request will make, each with the pages that it needs beyond resident ones.
    /// A boundary that was not wanted is judged again with every request that passes it.
    pub(super) fn select(&mut self, request: &NewRequest<'_>) {
        let Some(mut selection) = self.selection.take() else {
            return;
        };
        let resident = |&&(_, at): &&(usize, u32)| self.records[at].is_resident();
        let base = self.known.iter().filter(resident).map(|&(depth, _)| depth);
        let base = base.max().unwrap_or(0);
        let mut wanted = Vec::new();
        for &(depth, at) in self.known.iter().filter(|&&(depth, _)| depth > base) {
            let record = &self.records[at];
            let blocks = (depth - base) as f32;
            let size = self.shape.checkpoint as f32 + blocks * self.shape.page as f32;
            let uses = self.hazards.uses(&record.features, 0..BINS);
            let chance = 1.0 - (-uses).exp();
            if chance * blocks * scale(record.priority) >= PRICE * size {
                wanted.push(depth);
            }
        }
        let reach = wanted.iter().copied().max().unwrap_or(base);
        for (depth, &boundary) in (1..).zip(request.boundaries).skip(base) {
            if depth > reach {
                selection.decline(boundary, Unwanted::All);
            } else if wanted.contains(&depth) {
                selection.unwanted.remove(&boundary);
            } else {
                selection.decline(boundary, Unwanted::Checkpoint);
            }
        }
        self.selection = Some(selection);
    }
}
