//! The room of a tier: which entries take it, and which leaves next.

use crate::ids::{EntryId, TenantId};
use crate::policy::{NewEntry, NewRequest, Policy};

/// Bounded room and the policy that decides who leaves it. Sizes are in slots of the host.
///
/// An entry enters held, and is evictable from its release until it is held again or leaves. So
/// `capacity = free + held + evictable`, always.
pub struct Room {
    capacity: u64,
    free: u64,
    evictable: u64,
    entries: u64,
    evicted: u64,
    policy: Box<dyn Policy>,
}

/// Counts of a room at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Slots in all.
    pub capacity: u64,
    /// Slots that nothing takes.
    pub free: u64,
    /// Slots of entries that nobody holds.
    pub evictable: u64,
    /// Entries in the room, including those on their way in.
    pub entries: u64,
    /// Entries that left to make room since the start, including those that hung from them.
    pub evicted: u64,
}

impl Room {
    /// Empty room for `capacity` slots; `policy` is an empty policy for this tier alone.
    #[must_use]
    pub fn new(capacity: u64, policy: Box<dyn Policy>) -> Self {
        Self {
            capacity,
            free: capacity,
            evictable: 0,
            entries: 0,
            evicted: 0,
            policy,
        }
    }

    /// Counts at this moment.
    #[must_use]
    pub const fn usage(&self) -> Usage {
        Usage {
            capacity: self.capacity,
            free: self.free,
            evictable: self.evictable,
            entries: self.entries,
            evicted: self.evicted,
        }
    }

    /// Changes the capacity, to no less than the room that is taken.
    pub fn resize(&mut self, capacity: u64) {
        let taken = self.capacity - self.free;
        self.capacity = capacity.max(taken);
        self.free = self.capacity - taken;
    }

    #[inline]
    pub(crate) const fn entries(&self) -> u64 {
        self.entries
    }

    #[inline]
    pub(crate) const fn free(&self) -> u64 {
        self.free
    }

    /// Whether so many slots are free, or would be if everything evictable left.
    #[inline]
    pub(crate) const fn can_hold(&self, size: u64) -> bool {
        size <= self.free + self.evictable
    }

    /// Whether the policy evicts nothing that a page stands on before the page.
    #[inline]
    pub(crate) fn protects(&self, page: EntryId) -> bool {
        self.policy.protects(page)
    }

    /// Whether something needs an entry and so leaves before it.
    pub(crate) fn is_stood_on(&self, id: EntryId) -> bool {
        self.policy.is_stood_on(id)
    }

    /// Whether an entry that is offered is worth writing: all are while there is room, then those that the policy
    /// expects more of than of what would leave for them. `full`: whether bytes that this room does not count fill the
    /// tier.
    pub fn wants(&mut self, entry: &NewEntry, full: bool) -> bool {
        !full && self.free >= u64::from(entry.size) || self.policy.wants(entry)
    }

    /// Takes room for an entry, which is held. There must be enough that is free.
    #[inline]
    pub(crate) fn enter(&mut self, entry: &NewEntry) {
        self.free -= u64::from(entry.size);
        self.entries += 1;
        self.policy.enter(entry);
    }

    /// Takes room that no entry of this tier takes, until [`give`](Self::give). There must be enough that is free.
    pub(crate) fn take(&mut self, size: u32) {
        self.free -= u64::from(size);
    }

    /// Notes that the entry may not be evicted until its release.
    #[inline]
    pub(crate) fn hold(&mut self, id: EntryId, size: u32) {
        self.evictable -= u64::from(size);
        self.policy.hold(id);
    }

    /// Notes that nobody holds the entry any more; it counts as used.
    #[inline]
    pub(crate) fn release(&mut self, id: EntryId, size: u32) {
        self.evictable += u64::from(size);
        self.policy.release(id);
    }

    /// Notes that an evictable entry was used.
    pub(crate) fn touch(&mut self, id: EntryId) {
        self.policy.release(id);
    }

    /// Notes that the entry is no member any more. Its room stays taken until [`give`](Self::give).
    #[inline]
    pub(crate) fn leave(&mut self, id: EntryId, size: u32, held: bool) {
        self.entries -= 1;
        self.policy.leave(id);
        if !held {
            self.evictable -= u64::from(size);
        }
    }

    /// Gives back the room of an entry that has left.
    #[inline]
    pub(crate) fn give(&mut self, size: u32) {
        self.free += u64::from(size);
    }

    /// The entry to go next; it stays until it leaves.
    #[inline]
    pub(crate) fn victim(&mut self) -> Option<EntryId> {
        self.policy.victim()
    }

    /// The entry of a tenant to go next.
    pub(crate) fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        self.policy.victim_of(tenant)
    }

    /// Counts entries that left to make room.
    pub(crate) fn count_evicted(&mut self, entries: u64) {
        self.evicted += entries;
    }

    /// Shows the policy a request, and gives the boundaries that it would make checkpoints at.
    pub(crate) fn admit(&mut self, request: &NewRequest<'_>) -> Vec<usize> {
        let mut admitted = Vec::new();
        let free = self.free;
        self.policy
            .admit(&NewRequest { free, ..*request }, &mut admitted);
        admitted
    }

    /// The policy, to tell it what moves no entry.
    pub(crate) fn policy(&mut self) -> &mut dyn Policy {
        &mut *self.policy
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.policy.bytes()
    }
}
