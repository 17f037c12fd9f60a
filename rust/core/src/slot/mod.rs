//! Places in an arena and who holds them: the pool of free slots and the table of entries.

mod entries;
mod pool;

pub(crate) use entries::EntryTable;
pub(crate) use pool::{SlotPool, SlotSet};
