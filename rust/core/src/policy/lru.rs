//! Least recently used, with three ways to admit checkpoints.

use super::recency::RecencyOrder;
use super::{NewEntry, NewRequest, Policy};
use crate::ids::{EntryId, TenantId};

/// Boundaries of a request that get a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// All boundaries that the request computes.
    Every,
    /// The last boundary.
    End,
    /// The last boundary, and the one where the request leaves pages that are in the cache.
    Fork,
}

impl Placement {
    /// Adds the boundaries of a request that get a checkpoint.
    pub fn admit(self, request: &NewRequest<'_>, admitted: &mut Vec<usize>) {
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

/// The policy that evicts the entry that was used longest ago.
#[derive(Debug)]
pub struct Lru {
    recency: RecencyOrder,
    placement: Placement,
    refreshes_path: bool,
}

impl Lru {
    /// The policy of an empty cache. With `refreshes_path`, a host should count every checkpoint that a request
    /// passes as used: see [`Policy::refreshes_path`].
    #[must_use]
    pub fn new(placement: Placement, refreshes_path: bool) -> Self {
        Self {
            recency: RecencyOrder::new(),
            placement,
            refreshes_path,
        }
    }
}

impl Policy for Lru {
    fn admit(&mut self, request: &NewRequest<'_>, admitted: &mut Vec<usize>) {
        self.placement.admit(request, admitted);
    }

    fn refreshes_path(&self) -> bool {
        self.refreshes_path
    }

    fn enter(&mut self, entry: &NewEntry) {
        self.recency.enter(entry);
    }

    fn supersede(&mut self, id: EntryId) {
        self.recency.age(id);
    }

    fn release(&mut self, id: EntryId) {
        self.recency.release(id);
    }

    fn hold(&mut self, id: EntryId) {
        self.recency.hold(id);
    }

    fn protects(&self, page: EntryId) -> bool {
        self.recency.knows(page)
    }

    fn is_stood_on(&self, id: EntryId) -> bool {
        self.recency.is_stood_on(id)
    }

    fn leave(&mut self, id: EntryId) {
        self.recency.leave(id);
    }

    fn victim(&mut self) -> Option<EntryId> {
        self.recency.first()
    }

    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        self.recency.first_of(tenant)
    }

    fn bytes(&self) -> usize {
        self.recency.bytes()
    }
}
