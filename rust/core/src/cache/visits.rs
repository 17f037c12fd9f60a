//! Which boundaries requests have visited, and which of them are proven.
//!
//! A boundary is proven when a later request than the one that stored it has passed it. Most prompts are never
//! continued, and their entries are never used again: a tier whose writes cost may wait for the proof.

use crate::policy::Seen;
use crate::slot::Places;

/// Boundaries that are remembered to find forks: as many as there are slots, within these bounds.
const LEAST_SEEN: usize = 1 << 12;
const MOST_SEEN: usize = 1 << 18;

/// Boundaries that two requests had in common, and the tiers that want to know.
#[derive(Debug)]
struct Proven {
    boundaries: Seen,
    tiers: Places,
}

/// Boundaries of requests, by the names that policies know them by.
#[derive(Debug)]
pub(super) struct Visits {
    seen: Seen,
    /// Proven boundaries; `None` if no tier waits for proof.
    proven: Option<Proven>,
}

impl Visits {
    /// `waiting`: tiers that wait for proof.
    pub(super) fn new(slots: usize, waiting: Places) -> Self {
        let remembered = slots.clamp(LEAST_SEEN, MOST_SEEN);
        Self {
            seen: Seen::new(remembered),
            proven: (!waiting.is_empty()).then(|| Proven {
                boundaries: Seen::new(remembered),
                tiers: waiting,
            }),
        }
    }

    /// How many leading boundaries an earlier request had; all of them are remembered.
    pub(super) fn visit(&mut self, names: &[u64]) -> usize {
        self.seen.visit(names)
    }

    /// Notes that a request goes on from the tail of this name.
    pub(super) fn continue_tail(&mut self, name: u64) {
        // The complement of a name stands for a second request that goes on there.
        if self.seen.visit(&[name]) == 1 {
            self.seen.visit(&[!name]);
        }
    }

    /// Whether several requests went on from the tail of this name.
    pub(super) fn forks_at_tail(&self, name: u64) -> bool {
        self.seen.look(&[!name]) == 1
    }

    /// How many leading boundaries an earlier request had.
    pub(super) fn look(&self, names: &[u64]) -> usize {
        self.seen.look(names)
    }

    /// Tiers that wait for proof; `None` if no tier does.
    pub(super) fn waiting(&self) -> Option<Places> {
        self.proven.as_ref().map(|proven| proven.tiers)
    }

    /// Whether a boundary is proven, as far as any tier asks.
    pub(super) fn is_proven(&self, boundary: u64) -> bool {
        let proven = self.proven.as_ref();
        proven.is_some_and(|proven| proven.boundaries.look(&[boundary]) == 1)
    }

    /// Takes boundaries as proven, if any tier asks.
    pub(super) fn prove(&mut self, names: &[u64]) {
        if let Some(proven) = &mut self.proven {
            proven.boundaries.visit(names);
        }
    }

    pub(super) fn clear(&mut self) {
        self.seen.clear();
        if let Some(proven) = &mut self.proven {
            proven.boundaries.clear();
        }
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        let proven = self.proven.as_ref();
        self.seen.bytes() + proven.map_or(0, |proven| proven.boundaries.bytes())
    }
}
