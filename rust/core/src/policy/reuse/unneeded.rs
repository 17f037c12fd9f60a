//! Evictable pages that no checkpoint needs, or none yet.

use super::name_index::NameIndex;
use super::order::{SURPLUS, WAITING as WAITING_RANK};
use crate::ids::EntryId;
use crate::policy::chunk_table::ChunkTable;
use crate::policy::lists::Lists;
use crate::policy::tenants::ByTenant;

/// Requests that may arrive while a page waits for its first checkpoint.
pub(super) const PATIENCE: u64 = 256;
/// The list of pages that lost their last checkpoint, or will not get one.
const LEFT: usize = 0;
/// The list of last pages of prompts that are being computed, whose checkpoint is still to come, in the order of
/// their release.
const WAITING: usize = 1;

/// Evictable pages without a checkpoint at or below them: those that are worth nothing, and those that wait for one.
pub(super) struct UnneededPages {
    lists: Lists,
    /// The pages that wait, by the names of their boundaries.
    names: NameIndex,
    /// Number of the request at which each waiting page was released.
    since: ChunkTable<u64>,
}

impl UnneededPages {
    pub(super) fn new() -> Self {
        Self {
            lists: Lists::new(2),
            names: NameIndex::new(),
            since: ChunkTable::new(0),
        }
    }

    /// Notes that a page is worth nothing any more.
    pub(super) fn leave(&mut self, page: EntryId, tenants: &mut ByTenant) {
        self.remove(page, tenants);
        self.lists.push(LEFT, page.0);
        tenants.put(page, SURPLUS);
    }

    /// Notes that a page was released before its checkpoint was made.
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

    /// Removes a page that is needed, held or gone.
    pub(super) fn remove(&mut self, page: EntryId, tenants: &mut ByTenant) {
        let Some(list) = self.lists.remove(page.0) else {
            return;
        };
        if list == WAITING {
            self.names.remove(page.0);
        }
        tenants.take(page);
    }

    /// Notes that a request with these boundaries has ended: its pages that still wait are worth nothing.
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
