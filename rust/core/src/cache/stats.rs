//! Counts that a cache gives out.

use crate::ids::ClassKind;

/// One class, with counts of its entries.
pub(super) struct Class {
    pub(super) kind: ClassKind,
    /// Slots of an entry.
    pub(super) slots: u32,
    pub(super) resident: u64,
    pub(super) evicted: u64,
}

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

impl Stats {
    /// Every count with its name.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u64); 17] {
        [
            ("slots", self.slots),
            ("free_slots", self.free_slots),
            ("slot_bytes", self.slot_bytes),
            ("pages", self.pages),
            ("checkpoints", self.checkpoints),
            ("windows", self.windows),
            ("page_bytes", self.page_bytes),
            ("checkpoint_bytes", self.checkpoint_bytes),
            ("window_bytes", self.window_bytes),
            ("leased_slots", self.leased_slots),
            ("writing_entries", self.writing_entries),
            ("nodes", self.nodes),
            ("evicted_pages", self.evicted_pages),
            ("evicted_checkpoints", self.evicted_checkpoints),
            ("evicted_windows", self.evicted_windows),
            ("reclaimed", self.reclaimed),
            ("metadata_bytes", self.metadata_bytes),
        ]
    }

    /// Adds a class to the counts of its kind.
    pub(super) fn add(&mut self, class: &Class) {
        let (resident, bytes, evicted) = match class.kind {
            ClassKind::Attention => (
                &mut self.pages,
                &mut self.page_bytes,
                &mut self.evicted_pages,
            ),
            ClassKind::Window => (
                &mut self.windows,
                &mut self.window_bytes,
                &mut self.evicted_windows,
            ),
            ClassKind::Recurrent => (
                &mut self.checkpoints,
                &mut self.checkpoint_bytes,
                &mut self.evicted_checkpoints,
            ),
        };
        *resident += class.resident;
        *bytes += class.resident * u64::from(class.slots) * self.slot_bytes;
        *evicted += class.evicted;
    }
}
