//! Checks the invariants by walking everything.

use hashbrown::HashSet;

use super::copies::{CopyDirection, RunningCopy};
use super::state::CacheState;
use crate::ids::{EntryId, SlotId};
use crate::prefix::IndexCell;
use crate::tier::Tier;

impl CacheState {
    /// The first contradiction found.
    pub(super) fn audit(&self) -> Option<String> {
        let tiers = self.tiers.below_host();
        let of_index = || (self.index.audit()).or_else(|| self.announced.audit(&self.index));
        (!self.index.is_clearing())
            .then(of_index)
            .flatten()
            .or_else(|| self.audit_slots())
            .or_else(|| self.entries.iter().find_map(|(id, _)| self.audit_entry(id)))
            .or_else(|| {
                let name_of = |node| self.index.tenant(node);
                self.tenants.audit(self.entries.iter(), name_of)
            })
            .or_else(|| self.audit_copies())
            .or_else(|| self.audit_pins())
            .or_else(|| tiers.into_iter().find_map(|tier| self.audit_tier(tier)))
    }

    /// Checks that each slot is free or has one owner, and that the host's room counts the same.
    fn audit_slots(&self) -> Option<String> {
        let pool = self.tiers.host.pool();
        let mut owned = vec![false; pool.total() as usize];
        let mut claim = |slot: SlotId| std::mem::replace(&mut owned[slot.0 as usize], true);
        if pool.free_slots().any(&mut claim) {
            return Some("a slot is free twice".into());
        }
        let (mut evictable, mut members) = (0, 0);
        for (id, entry) in self.entries.iter() {
            let mut slots = self.slots(id).into_iter();
            if slots.any(&mut claim) {
                return Some(format!("entry {} owns a slot that is not its own", id.0));
            }
            members += u64::from(entry.members.in_host());
            if entry.pins == 0 {
                evictable += u64::from(entry.slots_len());
            }
        }
        if owned.contains(&false) {
            return Some("a slot is lost".into());
        }
        let room = self.tiers.host.room().usage();
        let found = (u64::from(pool.free()), evictable, members);
        let counted = (room.free, room.evictable, room.entries);
        (found != counted).then(|| {
            format!("(free, evictable, entries) of the host are {found:?}, {counted:?} are counted")
        })
    }

    fn audit_entry(&self, id: EntryId) -> Option<String> {
        let entry = self.entries.get(id);
        let wrong = |text: &str| Some(format!("entry {} {text}", id.0));
        let size = entry.slots_len();
        if size != 0 && size != self.classes.slots(entry.class) {
            return wrong("owns slots of another class");
        }
        if size == 0 && (entry.members.in_host() || entry.pins > 0 || !entry.copying.is_empty()) {
            return wrong("is in the host, held or copied without slots");
        }
        if entry.pins == 0 && (size > 0 && !entry.members.in_host() || !entry.copying.is_empty()) {
            return wrong("keeps slots for nobody");
        }
        if !entry.places.without(entry.members).is_empty() {
            return wrong("is whole where it is no member");
        }
        let Some(node) = entry.home else {
            return match (entry.members.is_empty(), entry.pins) {
                (true, 1..) => None,
                _ => wrong("is kept for nobody, or by a tier that lookups don't know of"),
            };
        };
        if self.index.cell(node, entry.class)
            != IndexCell::of(id, entry.places, self.tiers.shared())
        {
            return wrong("is not what the index knows");
        }
        if entry.members.is_empty() {
            return wrong("is known, and nowhere");
        }
        let page = self.entries.get(self.index.support(node, entry.class)?);
        if !entry.members.without(page.members).is_empty() {
            return wrong("is in a tier that lacks the page before it");
        }
        // Write leases and copies may pin the last page of a prefix instead of all its pages.
        let alone = self.prefix_pins.any();
        if entry.members.in_host() && entry.pins > 0 && page.pins == 0 && !alone {
            return wrong("is held, the page before it is not");
        }
        None
    }

    /// Checks that the copies under way are those that the entries know of.
    fn audit_copies(&self) -> Option<String> {
        let mut known = 0;
        for (_, entry) in self.entries.iter() {
            known += entry.copying.tiers().count();
        }
        for copy in self.copies.running() {
            let entry = self.entries.get(copy.id);
            if entry.pins == 0 {
                return Some(format!("entry {} is copied and not held", copy.id.0));
            }
            if matches!(copy.direction, CopyDirection::Through(_)) {
                continue;
            }
            if !entry.copying.has(copy.tier) {
                return Some(format!("entry {} does not know of its copy", copy.id.0));
            }
            known -= 1;
        }
        if known != 0 {
            return Some(format!("{known} copies are lost"));
        }
        (!self.copies.are_in_batches())
            .then(|| "a batch waits for other copies than its own".into())
    }

    /// Checks that prefix pins are on entries that are held, that transient entries are held and unknown, and that pins
    /// of restores are on members of their tiers.
    fn audit_pins(&self) -> Option<String> {
        let restoring = &self.restoring;
        let prefixes: HashSet<EntryId> = self.prefix_pins.pages(None).collect();
        let mut found = (0, 0, 0);
        for (id, entry) in self.entries.iter() {
            let held = entry.pins > 0;
            let transient = restoring.transients.is_whole(id).is_some();
            let pinned = entry
                .members
                .tiers()
                .filter(|&tier| restoring.pins.has(id, tier));
            found.0 += usize::from(held && prefixes.contains(&id));
            found.1 += usize::from(held && entry.home.is_none() && transient);
            found.2 += pinned.count();
        }
        let counted = (
            prefixes.len(),
            restoring.transients.len(),
            restoring.pins.len(),
        );
        if found != counted {
            return Some(format!(
                "(prefix pins, transient entries, pins of restores) are {found:?}, {counted:?} are counted"
            ));
        }
        (!self.prefix_pins.are_counted())
            .then(|| "slots of prefixes are counted that nobody pins".into())
    }

    /// Checks that the room of a tier below and its queue agree with the entries.
    fn audit_tier(&self, tier: usize) -> Option<String> {
        let lower = self.tiers.lower(tier);
        let (mut taken, mut evictable, mut members) = (0, 0, 0);
        for (id, entry) in self.entries.iter() {
            let size = u64::from(self.classes.slots(entry.class));
            let member = entry.members.has(tier);
            let copying = entry.copying.has(tier);
            members += u64::from(member);
            taken += if member || copying { size } else { 0 };
            evictable += if member && !self.is_pinned_below(id, tier) {
                size
            } else {
                0
            };
            if member && !copying && !entry.places.has(tier) {
                return Some(format!("tier {tier} waits for bytes that nobody copies"));
            }
        }
        let down = |copy: &&RunningCopy| copy.tier == tier && copy.direction == CopyDirection::Down;
        let queued = self.copies.running().filter(down);
        let queued = queued.map(|copy| u64::from(self.size(copy.id)));
        if !lower.queries.is_bounded() || lower.prefix_pin.is_some() {
            return Some(format!(
                "tier {tier} remembers too many questions, or a tip that nobody holds"
            ));
        }
        let usage = lower.tier.room().usage();
        let found = (usage.capacity - taken, evictable, members, queued.sum());
        let counted = (usage.free, usage.evictable, usage.entries, lower.queued);
        (found != counted).then(|| {
            format!(
                "(free, evictable, entries, queued) of tier {tier} are {found:?}, {counted:?} are counted"
            )
        })
    }
}
