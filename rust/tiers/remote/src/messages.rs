//! Messages to the tasks that read and write packs.

use std::sync::{Arc, Weak};
use std::time::Instant;

use hybrid_pages::ids::SlotId;
use hybrid_pages::tier::CopyId;
use hybrid_pages_tiers::{Name, Seal};

use crate::catalog::PackSpot;

/// The owner of copies, which is told when a task drops one.
pub(crate) trait CopyOwner: Send + Sync {
    /// Notes that a task has dropped a copy. If the copy has not ended, it has failed.
    fn let_go(&self, copy: CopyId);
}

/// A copy that a task has begun. If the task drops this before the end of the copy, such as in a panic, the copy
/// fails.
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
    /// Checksums that the bytes should have.
    pub(crate) sums: Arc<[u64]>,
    pub(crate) seal: Option<Seal>,
    pub(crate) bytes: u64,
    pub(crate) slots: Arc<[SlotId]>,
    pub(crate) begun: Instant,
}

/// A message to the task that makes packs.
#[derive(Debug)]
pub(crate) enum Upload {
    /// Writes an entry.
    Entry(EntryWrite),
    /// Writes the pack now, without waiting for further entries.
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
    /// The checksums as they are in the pack: hidden ones if the entry is encrypted.
    pub(crate) told: Box<[u64]>,
    pub(crate) seal: Option<Seal>,
}
