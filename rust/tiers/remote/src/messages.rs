//! Messages to the tasks that read and write.

use std::sync::{Arc, Weak};
use std::time::Instant;

use hybrid_pages::ids::SlotId;
use hybrid_pages::tier::CopyId;
use hybrid_pages_tiers::Name;

use crate::catalog::PackSpot;

/// Told of copies that a task has let go of.
pub(crate) trait CopyOwner: Send + Sync {
    /// A task has let go of a copy. If that has not ended, it has failed.
    fn let_go(&self, copy: CopyId);
}

/// A copy that a task has to end before it lets go of it, as it does in a panic.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) id: CopyId,
    owner: Weak<dyn CopyOwner>,
}

impl Begun {
    pub(crate) fn new(id: CopyId, owner: Weak<dyn CopyOwner>) -> Self {
        Self { id, owner }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.let_go(self.id);
        }
    }
}

/// A read of one entry.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) copy: Begun,
    pub(crate) name: Name,
    pub(crate) spot: PackSpot,
    pub(crate) bytes: u64,
    pub(crate) slots: Arc<[SlotId]>,
    pub(crate) begun: Instant,
}

/// A message to the task that makes packs.
#[derive(Debug)]
pub(crate) enum Upload {
    /// Write an entry.
    Entry(EntryWrite),
    /// Write the pack now, without waiting for further entries.
    Flush,
}

/// A write of one entry.
#[derive(Debug)]
pub(crate) struct EntryWrite {
    pub(crate) copy: Begun,
    pub(crate) name: Name,
    pub(crate) class: usize,
    pub(crate) slots: Arc<[SlotId]>,
    pub(crate) sums: Arc<[u64]>,
}
