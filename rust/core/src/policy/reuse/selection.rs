//! What is worth writing to a tier that is full.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::Reuse;
use super::eviction::scale;
use super::hazard::BINS;
use crate::policy::{EntryKind, NewEntry, Request};

/// Blocks that a write is expected to save for each size of one that it takes: a write wears the medium.
const PRICE: f32 = 0.1;
/// Boundaries that are remembered as not wanted.
const MOST: usize = 1 << 16;

/// What is not wanted at a boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unwanted {
    /// Its checkpoint; a deeper one needs its page.
    Checkpoint,
    /// Both.
    All,
}

/// Boundaries of recent requests that are not worth their room.
#[derive(Debug, Default)]
pub(super) struct Selection {
    unwanted: HashMap<u64, Unwanted>,
    /// Their names, oldest first, some of them no longer unwanted.
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
    /// Judges the checkpoints that a request will make, each with the pages that it needs beyond what is here.
    /// What was passed over is judged again with every request that passes.
    pub(super) fn select(&mut self, request: &Request<'_>) {
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
