//! Least recently used, with three ways to admit checkpoints.

use super::list::Lists;
use super::tenants::ByTenant;
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
    pub(super) fn admit(self, request: &Request<'_>, admitted: &mut Vec<usize>) {
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
    order: Lists,
    tenants: ByTenant,
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
            tenants: ByTenant::new(1),
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
        self.tenants.enter(entry);
    }

    fn release(&mut self, id: EntryId) {
        self.order.push(0, id.0);
        self.tenants.put(id, 0);
    }

    fn hold(&mut self, id: EntryId) {
        self.order.remove(id.0);
        self.tenants.take(id);
    }

    fn leave(&mut self, id: EntryId) {
        self.order.remove(id.0);
        self.tenants.leave(id);
    }

    fn victim(&mut self) -> Option<EntryId> {
        self.order.first(0).map(EntryId)
    }

    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        self.tenants.first(tenant, 0)
    }

    fn bytes(&self) -> usize {
        self.order.bytes() + self.tenants.bytes()
    }
}
