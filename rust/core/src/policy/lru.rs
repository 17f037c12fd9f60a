//! Least recently used, with three ways to admit checkpoints.

use super::list::Lists;
use super::{Policy, Request};
use crate::ids::EntryId;

/// Where a request's checkpoints go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// All that it computes.
    Every,
    /// The last.
    End,
    /// The last, and the one at which it leaves the pages that are known.
    Fork,
}

impl Placement {
    /// Adds the boundaries of a request that get a checkpoint.
    pub(super) fn admit(self, request: &Request<'_>, admitted: &mut Vec<usize>) {
        let (from, end) = (request.resumed, request.blocks());
        match self {
            Self::Every => admitted.extend(from + 1..=end),
            Self::End => admitted.extend((end > from).then_some(end)),
            Self::Fork => {
                admitted.extend((end > from).then_some(end));
                let fork = request.pages.min(end);
                admitted.extend((fork > from && fork < end).then_some(fork));
            }
        }
    }
}

/// Evicts what was used longest ago.
#[derive(Debug)]
pub struct Lru {
    order: Lists,
    placement: Placement,
    refreshes_path: bool,
}

impl Lru {
    /// An empty list. With `refreshes_path`, a host should count every checkpoint that a request
    /// passes as used: see [`Policy::refreshes_path`].
    #[must_use]
    pub fn new(placement: Placement, refreshes_path: bool) -> Self {
        Self {
            order: Lists::new(1),
            placement,
            refreshes_path,
        }
    }
}

impl Policy for Lru {
    fn admit(&mut self, request: &Request<'_>, admitted: &mut Vec<usize>) {
        self.placement.admit(request, admitted);
    }

    fn refreshes_path(&self) -> bool {
        self.refreshes_path
    }

    fn release(&mut self, id: EntryId) {
        self.order.push(0, id.0);
    }

    fn hold(&mut self, id: EntryId) {
        self.order.remove(id.0);
    }

    fn leave(&mut self, id: EntryId) {
        self.order.remove(id.0);
    }

    fn victim(&mut self) -> Option<EntryId> {
        self.order.first(0).map(EntryId)
    }

    fn bytes(&self) -> usize {
        self.order.bytes()
    }
}
