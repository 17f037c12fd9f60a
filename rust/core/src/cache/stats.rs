//! Counts that a cache gives out.

use super::config::ClassConfig;
use crate::ids::ClassKind;

/// Counts and sizes of a cache at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Slots in all.
    pub slots: u64,
    /// Slots that hold nothing.
    pub free_slots: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Resident attention pages.
    pub pages: u64,
    /// Resident checkpoints.
    pub checkpoints: u64,
    /// Resident window pages.
    pub windows: u64,
    /// Bytes of the slots of resident attention pages.
    pub page_bytes: u64,
    /// Bytes of the slots of resident checkpoints.
    pub checkpoint_bytes: u64,
    /// Bytes of the slots of resident window pages.
    pub window_bytes: u64,
    /// Slots that can't be evicted now: a lease reads them, writes them or needs them to be reachable.
    pub leased_slots: u64,
    /// Entries of write leases that have not ended.
    pub writing_entries: u64,
    /// Boundaries in the index.
    pub nodes: u64,
    /// Attention pages evicted since the start.
    pub evicted_pages: u64,
    /// Checkpoints evicted since the start.
    pub evicted_checkpoints: u64,
    /// Window pages evicted since the start.
    pub evicted_windows: u64,
    /// Resident entries dropped since the start because a page before them went.
    pub reclaimed: u64,
    /// Bytes of memory that index, policy, tables and pool hold.
    pub metadata_bytes: u64,
}

/// Counts of one class.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClassCounts {
    pub(super) resident: u64,
    pub(super) evicted: u64,
}

impl Stats {
    /// Adds a class to the counts of its kind.
    pub(super) fn add(&mut self, class: &ClassConfig, counts: ClassCounts) {
        let (resident, bytes, evicted) = match class.kind {
            ClassKind::Attention => (&mut self.pages, &mut self.page_bytes, &mut self.evicted_pages),
            ClassKind::Window => (&mut self.windows, &mut self.window_bytes, &mut self.evicted_windows),
            ClassKind::Recurrent => {
                (&mut self.checkpoints, &mut self.checkpoint_bytes, &mut self.evicted_checkpoints)
            }
        };
        *resident += counts.resident;
        *bytes += counts.resident * u64::from(class.slots_per_entry) * self.slot_bytes;
        *evicted += counts.evicted;
    }
}
