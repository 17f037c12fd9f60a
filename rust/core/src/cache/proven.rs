//! Entries that are proven: a later request than the one that stored them has passed their boundary.
//!
//! What nothing follows is never used again, and most prompts are of that kind. A tier whose writes cost may wait
//! for the proof; it is offered an entry again when that comes.

use super::state::State;
use crate::ids::{EntryId, NamespaceId, PrefixKey};
use crate::policy::Seen;
use crate::prefix::Cell;
use crate::slot::Places;

/// Boundaries that two requests had in common, and the tiers that want to know.
#[derive(Debug)]
pub(super) struct Proven {
    boundaries: Seen,
    tiers: Places,
}

impl Proven {
    /// Nothing, if no tier waits for proof. `room`: boundaries that are remembered.
    pub(super) fn new(tiers: Places, room: usize) -> Option<Self> {
        (!tiers.is_empty()).then(|| Self {
            boundaries: Seen::new(room),
            tiers,
        })
    }

    pub(super) fn clear(&mut self) {
        self.boundaries.clear();
    }

    pub(super) fn bytes(&self) -> usize {
        self.boundaries.bytes()
    }
}

impl State {
    /// Whether a boundary is proven, as far as anybody asks.
    pub(super) fn is_proven(&self, boundary: u64) -> bool {
        let proven = self.proven.as_ref();
        proven.is_some_and(|proven| proven.boundaries.look(&[boundary]) == 1)
    }

    /// Takes boundaries as proven whose request asks to retain them.
    pub(super) fn vouch(&mut self, names: impl FnOnce() -> Vec<u64>) {
        if let Some(proven) = &mut self.proven {
            proven.boundaries.visit(&names());
        }
    }

    /// A request passes boundaries of an earlier one, under these names: what the host has of them is offered
    /// to the tiers that wait for that and lack it.
    pub(super) fn prove(&mut self, namespace: NamespaceId, keys: &[PrefixKey], names: &[u64]) {
        let Some(proven) = &mut self.proven else {
            return;
        };
        proven.boundaries.visit(names);
        let tiers = proven.tiers;
        let mut path = Vec::new();
        let keys = &keys[..names.len()];
        self.index
            .joint_hit(namespace, keys, Cell::is_in_host, |node| path.push(node));
        let classes: Vec<usize> = self.index.roles().pages_first().collect();
        // The deepest first, a block's page last.
        let mut held: Vec<EntryId> = Vec::with_capacity(path.len());
        for node in path.into_iter().rev().flatten() {
            let cells = classes
                .iter()
                .rev()
                .map(|&class| self.index.cell(node, class));
            held.extend(
                cells
                    .filter(|cell| cell.is_in_host())
                    .filter_map(Cell::entry),
            );
        }
        let lacks = |&id: &EntryId| {
            let entry = self.entries.get(id);
            !tiers.without(entry.members.with(entry.copying)).is_empty()
        };
        if held.iter().any(lacks) {
            self.hold(&held);
            self.offer_all(held, tiers);
        }
    }
}
