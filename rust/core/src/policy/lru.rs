//! Least recently used, with three ways to admit checkpoints.

use super::leaves::Leaves;
use super::{NewEntry, Policy, Request};
use crate::ids::{EntryId, TenantId};

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
    pub fn admit(self, request: &Request<'_>, admitted: &mut Vec<usize>) {
        if !request.hints.store {
            return;
        }
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
    leaves: Leaves,
    placement: Placement,
    refreshes_path: bool,
}

impl Lru {
    /// An empty list. With `refreshes_path`, a host should count every checkpoint that a request
    /// passes as used: see [`Policy::refreshes_path`].
    #[must_use]
    pub fn new(placement: Placement, refreshes_path: bool) -> Self {
        Self {
            leaves: Leaves::new(),
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

    fn enter(&mut self, entry: &NewEntry) {
        self.leaves.enter(entry);
    }

    fn release(&mut self, id: EntryId) {
        self.leaves.release(id);
    }

    fn hold(&mut self, id: EntryId) {
        self.leaves.hold(id);
    }

    fn protects(&self, page: EntryId) -> bool {
        self.leaves.knows(page)
    }

    fn is_stood_on(&self, id: EntryId) -> bool {
        self.leaves.is_stood_on(id)
    }

    fn leave(&mut self, id: EntryId) {
        self.leaves.leave(id);
    }

    fn victim(&mut self) -> Option<EntryId> {
        self.leaves.first()
    }

    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        self.leaves.first_of(tenant)
    }

    fn bytes(&self) -> usize {
        self.leaves.bytes()
    }
}
