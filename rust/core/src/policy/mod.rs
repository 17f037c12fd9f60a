//! Which entries stay when room runs out. A policy sees ids, never payloads or locks.

mod lru;

pub use lru::Lru;

use crate::error::{Error, Result};
use crate::ids::EntryId;

/// The order in which entries go.
///
/// The cache hands an entry over with [`insert`](Policy::insert) whenever its last lease ends and
/// takes it back with [`remove`](Policy::remove) when a lease begins, so a policy holds exactly the
/// entries that may be evicted and never has to look past one that may not. Entries of a prefix come
/// deepest first, pages last: whoever treats later arrivals as more valuable takes tails first.
pub trait Policy: Send {
    /// Takes an entry that nobody holds any more. It must not be held by the policy already.
    fn insert(&mut self, id: EntryId);

    /// Gives up an entry; one that it doesn't hold is ignored.
    fn remove(&mut self, id: EntryId);

    /// The entry to go next; it stays until it is removed.
    fn victim(&self) -> Option<EntryId>;

    /// Bytes of memory held.
    fn bytes(&self) -> usize;
}

/// Names of every policy, as [`by_name`] takes them.
pub const NAMES: &[&str] = &["lru"];

/// Makes an empty policy.
///
/// # Errors
/// [`Error::InvalidArgument`] for a name that is not in [`NAMES`].
pub fn by_name(name: &str) -> Result<Box<dyn Policy>> {
    match name {
        "lru" => Ok(Box::new(Lru::new())),
        other => Err(Error::InvalidArgument(format!(
            "policy: expected one of {}, found '{other}'",
            NAMES.join(", ")
        ))),
    }
}
