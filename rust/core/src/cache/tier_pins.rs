//! Entries of tiers below that restores need: they are not evicted there meanwhile.

use hashbrown::HashMap;

use crate::ids::EntryId;

/// A restore's share in pinning an entry in a tier below. It ends by itself when the entry leaves the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TierPin {
    pub(super) id: EntryId,
    pub(super) tier: usize,
    /// Tells this pin from one of a later entry with the same id.
    serial: u64,
}

#[derive(Debug)]
struct PinRecord {
    serial: u64,
    restores: u32,
}

/// The pins of restores on entries of tiers below.
#[derive(Debug, Default)]
pub(super) struct TierPins {
    records: HashMap<(EntryId, usize), PinRecord>,
    given: u64,
}

impl TierPins {
    /// Pins an entry once more. Says whether it was not pinned before.
    pub(super) fn pin(&mut self, id: EntryId, tier: usize) -> (TierPin, bool) {
        let Self { records, given } = self;
        let record = records.entry((id, tier)).or_insert_with(|| {
            *given += 1;
            PinRecord {
                serial: *given,
                restores: 0,
            }
        });
        record.restores += 1;
        let serial = record.serial;
        (TierPin { id, tier, serial }, record.restores == 1)
    }

    /// Ends a pin. Says whether it was the last one of an entry that has stayed in its tier.
    pub(super) fn unpin(&mut self, pin: &TierPin) -> bool {
        let record = self.records.get_mut(&(pin.id, pin.tier));
        let Some(record) = record.filter(|record| record.serial == pin.serial) else {
            return false;
        };
        record.restores -= 1;
        record.restores == 0 && self.forget(pin.id, pin.tier)
    }

    pub(super) fn has(&self, id: EntryId, tier: usize) -> bool {
        self.records.contains_key(&(id, tier))
    }

    /// The pin of an entry that is pinned.
    pub(super) fn find(&self, id: EntryId, tier: usize) -> Option<TierPin> {
        let serial = self.records.get(&(id, tier))?.serial;
        Some(TierPin { id, tier, serial })
    }

    /// Whether the entry has been in its tier since the pin was made.
    pub(super) fn lasts(&self, pin: &TierPin) -> bool {
        self.find(pin.id, pin.tier).as_ref() == Some(pin)
    }

    /// Notes that the entry left the tier. Says whether it was pinned there.
    pub(super) fn forget(&mut self, id: EntryId, tier: usize) -> bool {
        self.records.remove(&(id, tier)).is_some()
    }

    /// Entries that are pinned, each once for every tier where it is.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.records.allocation_size()
    }
}
