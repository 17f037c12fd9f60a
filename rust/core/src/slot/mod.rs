//! Slots of an arena and the table of entries: who owns which slots, and which tiers hold which entry.

mod entries;
mod places;
mod pool;

pub(crate) use entries::{EntryRecord, EntryTable};
pub(crate) use places::{HOST, Places};
pub(crate) use pool::{SlotPool, SlotSet};
