//! Classes of entries: the slots that an entry of each takes, and how many entries were stored and evicted.

use super::config::CacheConfig;
use super::stats::CacheStats;
use crate::ids::ClassKind;

/// One class, with counts of its entries in the host.
#[derive(Debug)]
struct ClassRecord {
    kind: ClassKind,
    slots: u32,
    resident: u64,
    stored: u64,
    evicted: u64,
}

/// All classes of a cache.
#[derive(Debug)]
pub(super) struct Classes {
    records: Vec<ClassRecord>,
    ranks: usize,
    slot_bytes: u64,
    /// Entries of write leases that have not ended.
    writing: u64,
    /// Entries that left the host because a page before them did.
    reclaimed: u64,
}

impl Classes {
    pub(super) fn new(config: &CacheConfig) -> Self {
        let records = config.classes.iter().map(|class| ClassRecord {
            kind: class.kind,
            // The budget holds an entry of each, so the sizes fit the slots' own type.
            slots: class.slots_per_entry as u32,
            resident: 0,
            stored: 0,
            evicted: 0,
        });
        Self {
            records: records.collect(),
            ranks: config.ranks,
            slot_bytes: config.slot_bytes as u64,
            writing: 0,
            reclaimed: 0,
        }
    }

    /// Number of classes.
    pub(super) const fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn kind(&self, class: usize) -> ClassKind {
        self.records[class].kind
    }

    /// Slots of an entry.
    #[inline]
    pub(super) fn slots(&self, class: usize) -> u32 {
        self.records[class].slots
    }

    /// Ranks that write a shard of each entry.
    pub(super) const fn ranks(&self) -> usize {
        self.ranks
    }

    pub(super) const fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Slots of the pages of so many blocks, at most.
    pub(super) fn page_slots(&self, blocks: usize) -> u64 {
        let mut slots = 0;
        for record in &self.records {
            if record.kind != ClassKind::Recurrent {
                slots += u64::from(record.slots);
            }
        }
        slots.saturating_mul(blocks as u64)
    }

    /// An entry became whole in the host.
    pub(super) fn add_resident(&mut self, class: usize) {
        self.records[class].resident += 1;
    }

    /// A whole entry left the host.
    pub(super) fn remove_resident(&mut self, class: usize) {
        self.records[class].resident -= 1;
    }

    /// A write lease published an entry.
    pub(super) fn count_stored(&mut self, class: usize) {
        self.records[class].stored += 1;
    }

    /// An entry was evicted from the host.
    pub(super) fn count_evicted(&mut self, class: usize) {
        self.records[class].evicted += 1;
    }

    /// Entries left the host because a page before them did.
    pub(super) fn count_reclaimed(&mut self, entries: u64) {
        self.reclaimed += entries;
    }

    /// Whether there is an entry whose bytes are not whole yet.
    pub(super) const fn is_writing(&self) -> bool {
        self.writing > 0
    }

    /// A write lease begins with so many entries.
    pub(super) fn begin_writing(&mut self, entries: usize) {
        self.writing += entries as u64;
    }

    /// A write lease with so many entries ended.
    pub(super) fn end_writing(&mut self, entries: usize) {
        self.writing -= entries as u64;
    }

    /// Adds these counts to `stats`.
    pub(super) fn add_to(&self, stats: &mut CacheStats) {
        stats.slot_bytes = self.slot_bytes;
        stats.writing_entries = self.writing;
        stats.reclaimed = self.reclaimed;
        for class in &self.records {
            let (resident, bytes, stored, evicted) = match class.kind {
                ClassKind::Attention => (
                    &mut stats.pages,
                    &mut stats.page_bytes,
                    &mut stats.stored_pages,
                    &mut stats.evicted_pages,
                ),
                ClassKind::Window => (
                    &mut stats.windows,
                    &mut stats.window_bytes,
                    &mut stats.stored_windows,
                    &mut stats.evicted_windows,
                ),
                ClassKind::Recurrent => (
                    &mut stats.checkpoints,
                    &mut stats.checkpoint_bytes,
                    &mut stats.stored_checkpoints,
                    &mut stats.evicted_checkpoints,
                ),
            };
            *resident += class.resident;
            *bytes += class.resident * u64::from(class.slots) * self.slot_bytes;
            *stored += class.stored;
            *evicted += class.evicted;
        }
    }
}
