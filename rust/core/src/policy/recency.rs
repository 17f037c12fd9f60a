//! The order of last use of entries that stand on each other: a checkpoint on its page, a page on that of the block
//! before.
//!
//! Whoever uses an entry uses all that it stands on, a moment later: nothing is older than what stands on it. So only
//! what nothing stands on is in the order, and a use costs as much for a long prefix as for a short one: a page
//! inherits the uses of what stood on it when that leaves.

use std::collections::BTreeSet;

use super::NewEntry;
use super::chunk_table::ChunkTable;
use crate::ids::{EntryId, TenantId};

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct UsedEntry {
    /// The page that the entry stands on, or [`NONE`].
    parent: u32,
    /// Number of entries that stand on this one.
    children: u32,
    /// Time of the last use of the entry, or of one that stood on it and has left.
    used: u64,
    tenant: TenantId,
    present: bool,
    evictable: bool,
    /// Whether its uses are forgotten when it is released.
    aged: bool,
}

const ABSENT: UsedEntry = UsedEntry {
    parent: NONE,
    children: 0,
    used: 0,
    tenant: TenantId::NONE,
    present: false,
    evictable: false,
    aged: false,
};

impl UsedEntry {
    const fn is_listed(&self) -> bool {
        self.evictable && self.children == 0
    }
}

/// Entries in the order of their last use, the one first that was not used for longest.
#[derive(Debug)]
pub(super) struct RecencyOrder {
    nodes: ChunkTable<UsedEntry>,
    /// Number of uses so far, which is the clock.
    uses: u64,
    /// Entries that may be evicted.
    order: BTreeSet<(u64, u32)>,
    /// Entries of tenants that may be evicted, by tenant.
    of_tenants: BTreeSet<(TenantId, u64, u32)>,
}

impl RecencyOrder {
    pub(super) const fn new() -> Self {
        Self {
            nodes: ChunkTable::new(ABSENT),
            uses: 0,
            order: BTreeSet::new(),
            of_tenants: BTreeSet::new(),
        }
    }

    pub(super) fn knows(&self, id: EntryId) -> bool {
        self.nodes.get(id.0).is_some_and(|node| node.present)
    }

    pub(super) fn is_stood_on(&self, id: EntryId) -> bool {
        self.nodes.get(id.0).is_some_and(|node| node.children > 0)
    }

    fn list(&mut self, id: u32) {
        let node = self.nodes[id];
        if node.is_listed() {
            self.order.insert((node.used, id));
            if node.tenant != TenantId::NONE {
                self.of_tenants.insert((node.tenant, node.used, id));
            }
        }
    }

    fn unlist(&mut self, id: u32) {
        let node = self.nodes[id];
        if node.is_listed() {
            self.order.remove(&(node.used, id));
            if node.tenant != TenantId::NONE {
                self.of_tenants.remove(&(node.tenant, node.used, id));
            }
        }
    }

    /// Adds a new entry, which is held.
    pub(super) fn enter(&mut self, entry: &NewEntry) {
        let parent = entry.parent.filter(|&parent| self.knows(parent));
        *self.nodes.reach(entry.id.0) = UsedEntry {
            parent: parent.map_or(NONE, |parent| parent.0),
            tenant: entry.tenant,
            present: true,
            ..ABSENT
        };
        if let Some(parent) = parent {
            self.unlist(parent.0);
            self.nodes[parent.0].children += 1;
        }
    }

    /// Notes that an entry was used and that nobody holds it.
    pub(super) fn release(&mut self, id: EntryId) {
        if !self.knows(id) {
            return;
        }
        self.unlist(id.0);
        self.uses += 1;
        let node = &mut self.nodes[id.0];
        node.used = if std::mem::take(&mut node.aged) {
            0
        } else {
            self.uses
        };
        node.evictable = true;
        self.list(id.0);
    }

    /// Forgets the uses of an entry: now, or when nobody holds it any more.
    pub(super) fn age(&mut self, id: EntryId) {
        if self.knows(id) {
            self.unlist(id.0);
            let node = &mut self.nodes[id.0];
            node.aged = !node.evictable;
            node.used = 0;
            self.list(id.0);
        }
    }

    /// Notes that an entry is held and may not be evicted.
    pub(super) fn hold(&mut self, id: EntryId) {
        if self.knows(id) {
            self.unlist(id.0);
            self.nodes[id.0].evictable = false;
        }
    }

    /// Removes an entry that is gone.
    pub(super) fn leave(&mut self, id: EntryId) {
        if !self.knows(id) {
            return;
        }
        self.unlist(id.0);
        let gone = std::mem::replace(&mut self.nodes[id.0], ABSENT);
        let parent = EntryId(gone.parent);
        // When everything leaves, a page may leave before what stands on it.
        if gone.parent == NONE || !self.is_stood_on(parent) {
            return;
        }
        let page = &mut self.nodes[parent.0];
        page.children -= 1;
        page.used = page.used.max(gone.used);
        self.list(parent.0);
    }

    /// The entry to evict first.
    pub(super) fn first(&self) -> Option<EntryId> {
        self.order.first().map(|&(_, id)| EntryId(id))
    }

    /// The entry of a tenant to evict first.
    pub(super) fn first_of(&self, tenant: TenantId) -> Option<EntryId> {
        let mut of_it = self.of_tenants.range((tenant, 0, 0)..);
        let &(of, _, id) = of_it.next()?;
        (of == tenant).then_some(EntryId(id))
    }

    pub(super) fn bytes(&self) -> usize {
        // Two trees, whose nodes are at least half full.
        let listed = self.order.len() * size_of::<(u64, u32)>()
            + self.of_tenants.len() * size_of::<(TenantId, u64, u32)>();
        self.nodes.bytes() + 2 * listed
    }
}
