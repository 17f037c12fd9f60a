//! Free and owned slots as lists threaded through one vector: four bytes per slot.

use crate::error::{Error, Result};
use crate::ids::SlotId;
use crate::rows::Rows;

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
    /// The next slot in the list that a slot is in: the list of free slots, or its owner's. Slots from the length of
    /// this vector on were never taken.
    next: Rows<u32>,
    /// First slot that was given back.
    head: u32,
    free: u32,
    total: u32,
}

impl SlotPool {
    /// The most slots of a pool. An entry takes at least one, in the pool or in a tier below, and the index keeps the
    /// top three bits of an entry's 32 for itself.
    pub(crate) const MAX_SLOTS: usize = 1 << 29;

    /// A pool with all its slots free.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `slots` is between 1 and [`SlotPool::MAX_SLOTS`].
    pub(crate) fn new(slots: usize) -> Result<Self> {
        if !(1..=Self::MAX_SLOTS).contains(&slots) {
            return Err(Error::InvalidArgument(format!(
                "slots: expected 1 to {}, found {slots}",
                Self::MAX_SLOTS
            )));
        }
        let total = slots as u32;
        Ok(Self {
            next: Rows::new(1),
            head: END,
            free: total,
            total,
        })
    }

    /// How many slots were ever taken: these are the first ones, whether they are free now or not.
    pub(crate) fn used(&self) -> usize {
        self.next.len()
    }

    /// Changes the number of slots, to no fewer than were [`used`](Self::used).
    pub(crate) fn resize(&mut self, slots: u32) {
        self.free = slots - (self.total - self.free);
        self.total = slots;
    }

    /// Takes `count` slots, none of them if fewer are free or `count` is 0.
    pub(crate) fn take(&mut self, count: u32) -> Option<SlotSet> {
        if count == 0 || count > self.free {
            return None;
        }
        self.free -= count;
        let head = self.pop();
        let mut tail = head;
        for _ in 1..count {
            let at = self.pop();
            self.next[tail as usize] = at;
            tail = at;
        }
        self.next[tail as usize] = END;
        Some(SlotSet {
            head,
            tail,
            len: count,
        })
    }

    fn pop(&mut self) -> u32 {
        if self.head == END {
            self.next.push(END);
            return self.next.len() as u32 - 1;
        }
        let at = self.head;
        self.head = self.next[at as usize];
        at
    }

    /// Takes slots back. The set must come from this pool.
    pub(crate) fn give(&mut self, set: SlotSet) {
        self.next[set.tail as usize] = self.head;
        self.head = set.head;
        self.free += set.len;
    }

    /// The slots of a set, in payload order.
    pub(crate) fn slots(&self, set: &SlotSet) -> impl Iterator<Item = SlotId> {
        let mut next = set.head;
        (0..set.len).map(move |_| {
            let at = next;
            next = self.next[at as usize];
            SlotId(at)
        })
    }

    /// The slots that nobody owns, in the order in which they are taken.
    pub(crate) fn free_slots(&self) -> impl Iterator<Item = SlotId> {
        self.list(self.head)
            .chain((self.next.len() as u32..self.total).map(SlotId))
    }

    fn list(&self, head: u32) -> impl Iterator<Item = SlotId> {
        let found = |at: u32| (at != END).then_some(at);
        std::iter::successors(found(head), move |&at| found(self.next[at as usize])).map(SlotId)
    }

    /// Slots that may be taken.
    pub(crate) const fn total(&self) -> u32 {
        self.total
    }

    /// Slots that nobody owns.
    pub(crate) const fn free(&self) -> u32 {
        self.free
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.next.bytes()
    }
}
