//! What the tasks are told.

use std::sync::{Arc, Weak};
use std::time::Instant;

use hybrid_pages::ids::SlotId;
use hybrid_pages::tier::CopyId;
use hybrid_pages_tiers::Name;

use crate::catalog::Spot;

/// Hears of copies that their task let go of.
pub(crate) trait Owner: Send + Sync {
    /// If the copy has not ended, it has failed.
    fn let_go(&self, copy: CopyId);
}

/// A copy that a task has to end before it lets go of it, as it does in a panic.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) id: CopyId,
    owner: Weak<dyn Owner>,
}

impl Begun {
    pub(crate) fn new(id: CopyId, owner: Weak<dyn Owner>) -> Self {
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
    pub(crate) spot: Spot,
    pub(crate) bytes: u64,
    pub(crate) slots: Arc<[SlotId]>,
    pub(crate) begun: Instant,
}

/// What the task that makes packs is told.
#[derive(Debug)]
pub(crate) enum Upload {
    /// To write an entry.
    Entry(Entry),
    /// To wait for no further entries.
    Flush,
}

/// A write of one entry.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) copy: Begun,
    pub(crate) name: Name,
    pub(crate) class: usize,
    pub(crate) slots: Arc<[SlotId]>,
    pub(crate) sums: Arc<[u64]>,
}
