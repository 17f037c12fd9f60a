//! The host: the tier whose room is the slots of one arena.

use super::{Room, Tier};
use crate::error::{Error, Result};
use crate::ids::SlotId;
use crate::policy::{NewEntry, Policy};
use crate::slot::{SlotPool, SlotSet};

/// The tier whose room is the slots themselves. The engine's workers move its bytes.
pub(crate) struct Host {
    slots: usize,
    pool: SlotPool,
    room: Room,
}

impl Host {
    /// A host with all its slots free.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) on no slots or too many.
    pub(crate) fn new(slots: usize, policy: Box<dyn Policy>) -> Result<Self> {
        Ok(Self {
            slots,
            pool: SlotPool::new(slots)?,
            room: Room::new(slots as u64, policy),
        })
    }

    /// Takes the slots of an entry, which is held. Room must have been made.
    #[inline]
    pub(crate) fn enter(&mut self, entry: &NewEntry) -> SlotSet {
        self.room.enter(entry);
        self.pool
            .take(entry.size)
            .expect("room was made for the entry")
    }

    /// Takes slots for bytes that only one restore uses. Room must have been made.
    pub(crate) fn lend(&mut self, size: u32) -> SlotSet {
        self.room.take(size);
        self.pool.take(size).expect("room was made for the bytes")
    }

    /// Takes back the slots of an entry that has left.
    #[inline]
    pub(crate) fn give(&mut self, slots: SlotSet) {
        self.room.give(slots.len());
        self.pool.give(slots);
    }

    /// Hands out only the first `slots` slots from now on.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if one behind them was taken before, or there are not as many.
    pub(crate) fn set_ready(&mut self, slots: usize) -> Result<()> {
        if !(self.pool.used()..=self.slots).contains(&slots) {
            return Err(Error::InvalidArgument(format!(
                "ready slots: expected {} (that many were used) to {}, found {slots}",
                self.pool.used(),
                self.slots
            )));
        }
        self.pool.resize(slots as u32);
        self.room.resize(slots as u64);
        Ok(())
    }

    /// Slots that may be taken; the others are not ready.
    pub(crate) const fn ready(&self) -> usize {
        self.pool.total() as usize
    }

    /// Slots in all.
    pub(crate) const fn slots(&self) -> usize {
        self.slots
    }

    /// Slots and who owns them.
    pub(crate) const fn pool(&self) -> &SlotPool {
        &self.pool
    }

    /// The slots of an entry, in payload order.
    #[inline]
    pub(crate) fn slots_of(&self, set: &SlotSet) -> impl Iterator<Item = SlotId> {
        self.pool.slots(set)
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.pool.bytes() + self.room.bytes()
    }
}

impl Tier for Host {
    fn name(&self) -> &str {
        "host"
    }

    #[inline]
    fn room(&self) -> &Room {
        &self.room
    }

    #[inline]
    fn room_mut(&mut self) -> &mut Room {
        &mut self.room
    }
}
