//! Tiers: where whole entries live. The host is one: the engine's workers copy from and to its slots. Any number of
//! tiers below it (a disk, a store on other machines) keep what they can of it.
//!
//! - A [`Tier`] is a [`Room`]: so many slots, who takes them, and a policy of its own that says who
//!   leaves next. Only the cache changes it, by one rule for all tiers: a tier holds an entry only
//!   while it holds the page that the entry hangs from.
//! - A tier [`Below`] also moves bytes, between the host's slots and wherever it keeps them. It is
//!   told what to copy and reports what became of it; it knows nothing of prefixes or leases. The
//!   host moves none: the engine's workers do.

mod below;
mod host;
mod room;

pub use below::{Below, CopyEnd, CopyId, Found};
pub(crate) use host::Host;
pub use room::{Room, Usage};

/// A bounded place for whole entries.
pub trait Tier: Send {
    /// Name in logs and metrics.
    fn name(&self) -> &str;

    /// The room and the entries in it.
    fn room(&self) -> &Room;

    /// The room and the entries in it, for the cache to change.
    fn room_mut(&mut self) -> &mut Room;
}
