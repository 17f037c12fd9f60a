//! Free and owned slots as lists threaded through one vector: four bytes a slot, no allocation.

use crate::error::{Error, Result};
use crate::ids::SlotId;

const END: u32 = u32::MAX;

/// Slots with one owner. Only [`SlotPool::give`] takes them back, and it consumes the set: a slot
/// can't be freed twice, nor used after.
#[derive(Debug)]
#[must_use = "slots that are dropped instead of given back are lost"]
pub(crate) struct SlotSet {
    head: u32,
    tail: u32,
    len: u32,
}

impl SlotSet {
    /// Number of slots.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }
}

/// All slots of one arena.
#[derive(Debug)]
pub(crate) struct SlotPool {
    /// Successor of each slot in the list that it is in: the free one or its owner's.
    next: Vec<u32>,
    head: u32,
    free: u32,
}

impl SlotPool {
    /// Most slots of a pool.
    pub(crate) const MAX_SLOTS: u32 = i32::MAX as u32;

    /// A pool with all its slots free.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `slots` is between 1 and [`SlotPool::MAX_SLOTS`].
    pub(crate) fn new(slots: u32) -> Result<Self> {
        if !(1..=Self::MAX_SLOTS).contains(&slots) {
            return Err(Error::InvalidArgument(format!(
                "slots: expected 1 to {}, found {slots}",
                Self::MAX_SLOTS
            )));
        }
        let mut next: Vec<u32> = (1..=slots).collect();
        next[slots as usize - 1] = END;
        Ok(Self { next, head: 0, free: slots })
    }

    /// Takes `count` slots, none of them if fewer are free or `count` is 0.
    pub(crate) fn take(&mut self, count: u32) -> Option<SlotSet> {
        if count == 0 || count > self.free {
            return None;
        }
        let head = self.head;
        let mut tail = head;
        for _ in 1..count {
            tail = self.next[tail as usize];
        }
        self.head = std::mem::replace(&mut self.next[tail as usize], END);
        self.free -= count;
        Some(SlotSet { head, tail, len: count })
    }

    /// Takes slots back. The set must come from this pool.
    pub(crate) fn give(&mut self, set: SlotSet) {
        self.next[set.tail as usize] = self.head;
        self.head = set.head;
        self.free += set.len;
    }

    /// The slots of a set, in payload order.
    pub(crate) fn slots(&self, set: &SlotSet) -> impl Iterator<Item = SlotId> {
        self.list(set.head)
    }

    /// The slots that nobody owns, in the order in which they are taken.
    pub(crate) fn free_slots(&self) -> impl Iterator<Item = SlotId> {
        self.list(self.head)
    }

    fn list(&self, head: u32) -> impl Iterator<Item = SlotId> {
        let found = |at: u32| (at != END).then_some(at);
        std::iter::successors(found(head), move |&at| found(self.next[at as usize])).map(SlotId)
    }

    /// Slots in all.
    pub(crate) const fn total(&self) -> u32 {
        self.next.len() as u32
    }

    /// Slots that nobody owns.
    pub(crate) const fn free(&self) -> u32 {
        self.free
    }

    /// Bytes of memory held.
    pub(crate) const fn bytes(&self) -> usize {
        self.next.capacity() * size_of::<u32>()
    }
}
