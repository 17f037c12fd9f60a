//! Entries of tiers below that restores need: they are not evicted there meanwhile.

use hashbrown::HashMap;

use super::state::State;
use crate::ids::EntryId;
use crate::slot::Places;

/// A restore's share in keeping an entry in a tier below. It ends by itself when the entry leaves the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keep {
    pub(super) id: EntryId,
    pub(super) tier: usize,
    /// Tells it from a later entry of the same id.
    serial: u64,
}

#[derive(Debug)]
struct Record {
    serial: u64,
    restores: u32,
}

/// What restores keep in tiers below.
#[derive(Debug, Default)]
pub(super) struct Kept {
    records: HashMap<(EntryId, usize), Record>,
    given: u64,
}

impl Kept {
    pub(super) fn has(&self, id: EntryId, tier: usize) -> bool {
        self.records.contains_key(&(id, tier))
    }

    /// The share of whoever keeps an entry, as long as it is kept.
    pub(super) fn find(&self, id: EntryId, tier: usize) -> Option<Keep> {
        let serial = self.records.get(&(id, tier))?.serial;
        Some(Keep { id, tier, serial })
    }

    /// Whether the entry has been in its tier all the time.
    pub(super) fn lasts(&self, keep: &Keep) -> bool {
        self.find(keep.id, keep.tier).as_ref() == Some(keep)
    }

    /// The entry left the tier. Returns whether it was kept there.
    pub(super) fn forget(&mut self, id: EntryId, tier: usize) -> bool {
        self.records.remove(&(id, tier)).is_some()
    }

    pub(super) fn bytes(&self) -> usize {
        self.records.allocation_size()
    }
}

impl State {
    /// Whether a tier below may not evict this member: a copy is under way, or a restore needs it.
    pub(super) fn is_held_below(&self, id: EntryId, tier: usize) -> bool {
        self.entries.get(id).copying.has(tier) || self.kept.has(id, tier)
    }

    /// Keeps an entry in every tier below where its bytes are whole: one that others hang from before those.
    pub(super) fn keep_below(&mut self, id: EntryId, keeps: &mut Vec<Keep>) {
        let entry = self.entries.get(id);
        let (places, copying) = (entry.places.and(Places::BELOW), entry.copying);
        let size = self.classes[entry.class].slots;
        for tier in places.tiers() {
            let Kept { records, given } = &mut self.kept;
            let record = records.entry((id, tier)).or_insert_with(|| {
                *given += 1;
                Record {
                    serial: *given,
                    restores: 0,
                }
            });
            record.restores += 1;
            let serial = record.serial;
            if record.restores == 1 && !copying.has(tier) {
                self.room_mut(tier).hold(id, size);
            }
            keeps.push(Keep { id, tier, serial });
        }
    }

    /// Ends [`keep_below`](Self::keep_below): the deepest first.
    pub(super) fn keep_no_longer(&mut self, keep: Keep) {
        let Keep { id, tier, serial } = keep;
        let record = self.kept.records.get_mut(&(id, tier));
        let Some(record) = record.filter(|record| record.serial == serial) else {
            return;
        };
        record.restores -= 1;
        if record.restores > 0 {
            return;
        }
        self.kept.forget(id, tier);
        let entry = self.entries.get(id);
        let size = self.classes[entry.class].slots;
        if !entry.copying.has(tier) {
            self.room_mut(tier).release(id, size);
        }
    }
}
