//! What the tasks are told.

use std::sync::Arc;
use std::time::Instant;

use hybrid_pages::ids::SlotId;
use hybrid_pages::tier::Name;

use crate::catalog::Spot;
use crate::shared::Begun;

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
