//! Evictable pages that no checkpoint needs.

use super::eviction::{SURPLUS, WAITING as WAITING_RANK};
use super::names::Names;
use crate::ids::EntryId;
use crate::policy::list::Lists;
use crate::policy::table::Table;
use crate::policy::tenants::ByTenant;

/// Requests that may arrive while a page waits for its first checkpoint.
pub(super) const PATIENCE: u64 = 256;
/// Those that lost their last checkpoint, or will not get one.
const LEFT: usize = 0;
/// The last pages of prompts that are being computed: their checkpoint is still to come. By when they
/// were released.
const WAITING: usize = 1;

pub(super) struct Bare {
    lists: Lists,
    /// Boundaries of those that wait.
    names: Names,
    /// Request at which each of them was released.
    since: Table<u64>,
}

impl Bare {
    pub(super) fn new() -> Self {
        Self {
            lists: Lists::new(2),
            names: Names::new(),
            since: Table::new(0),
        }
    }

    /// A page is worth nothing.
    pub(super) fn leave(&mut self, page: EntryId, tenants: &mut ByTenant) {
        self.remove(page, tenants);
        self.lists.push(LEFT, page.0);
        tenants.put(page, SURPLUS);
    }

    /// A page was released before its checkpoint was made.
    pub(super) fn wait(
        &mut self,
        page: EntryId,
        boundary: u64,
        request: u64,
        tenants: &mut ByTenant,
    ) {
        self.remove(page, tenants);
        self.lists.push(WAITING, page.0);
        tenants.put(page, WAITING_RANK);
        self.names.insert(boundary, page.0);
        *self.since.reach(page.0) = request;
    }

    /// A page is needed, held or gone.
    pub(super) fn remove(&mut self, page: EntryId, tenants: &mut ByTenant) {
        let Some(list) = self.lists.remove(page.0) else {
            return;
        };
        if list == WAITING {
            self.names.remove(page.0);
        }
        tenants.take(page);
    }

    /// A request with these boundaries has ended: what still waits in it waits in vain.
    pub(super) fn give_up(&mut self, boundaries: &[u64], tenants: &mut ByTenant) {
        for &name in boundaries.iter().rev() {
            if self.lists.first(WAITING).is_none() {
                break;
            }
            if let Some(page) = self.names.find(name) {
                self.leave(EntryId(page), tenants);
            }
        }
    }

    /// A page that is worth nothing, if there is one.
    pub(super) fn surplus(&self, request: u64) -> Option<EntryId> {
        let left = self.lists.first(LEFT);
        let late = |&page: &u32| self.is_late(EntryId(page), request);
        left.or_else(|| self.lists.first(WAITING).filter(late))
            .map(EntryId)
    }

    /// Whether a page that waits has waited for too long.
    pub(super) fn is_late(&self, page: EntryId, request: u64) -> bool {
        self.since[page.0] + PATIENCE < request
    }

    /// The page that has waited for longest.
    pub(super) fn oldest(&self) -> Option<EntryId> {
        self.lists.first(WAITING).map(EntryId)
    }

    pub(super) const fn bytes(&self) -> usize {
        self.lists.bytes() + self.names.bytes() + self.since.bytes()
    }
}
