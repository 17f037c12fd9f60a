//! The pins of a restore in tiers below, and its reads from there into transient entries.

use super::super::copies::CopyDirection;
use super::super::prefix_pins::PinSet;
use super::super::state::CacheState;
use super::super::tier_pins::TierPin;
use crate::ids::{EntryId, EntryKey, NamespaceId};
use crate::slot::Places;

impl CacheState {
    /// Pins an entry in every tier below where its bytes are whole. Call this for an entry before those that hang from
    /// it.
    pub(super) fn pin_below(&mut self, id: EntryId, pins: &mut Vec<TierPin>) {
        let entry = self.entries.get(id);
        let (places, copying) = (entry.places.and(Places::BELOW), entry.copying);
        let size = self.size(id);
        for tier in places.tiers() {
            let (pin, is_first) = self.restoring.pins.pin(id, tier);
            if is_first && !copying.has(tier) {
                self.tiers.room_mut(tier).hold(id, size);
            }
            pins.push(pin);
        }
    }

    /// Ends [`pin_below`](Self::pin_below): the deepest first.
    pub(super) fn unpin_below(&mut self, pin: TierPin) {
        let TierPin { id, tier, .. } = pin;
        if self.restoring.pins.unpin(&pin) && !self.entries.get(id).copying.has(tier) {
            let size = self.size(id);
            self.tiers.room_mut(tier).release(id, size);
        }
    }

    /// Starts to read a pinned entry into a transient one, whose slots only the caller knows. Room was made. The
    /// transient entry is pinned by the caller, and for the copy until that ends.
    pub(super) fn read_transient(
        &mut self,
        namespace: NamespaceId,
        source: TierPin,
        key: &EntryKey,
    ) -> EntryId {
        let class = self.entries.get(source.id).class;
        let size = self.classes.slots(class);
        let checksums = self.entries.checksums(source.id).map(<[u64]>::to_vec);
        let id = self.entries.insert(class, None);
        self.entries.set_checksums(id, checksums.as_deref());
        if self.tenants.is_counted() {
            let name = self.index.namespaces.known_tenant(namespace);
            self.tenants.enter(id, name, size);
        }
        let entry = self.entries.get_mut(id);
        entry.slots = Some(self.tiers.host.lend(size));
        entry.pins = 2;
        self.restoring.transients.begin(id);
        let batch = self.copies.open(PinSet::entries(vec![id]));
        let through = CopyDirection::Through(source);
        let copy = self.copies.start(id, source.tier, through, batch);
        let slots = self.slots(id);
        let lower = self.tiers.lower_mut(source.tier);
        lower.tier.read(copy, key, &slots);
        self.end_batch(batch);
        id
    }
}
