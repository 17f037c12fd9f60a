//! The parts that the tiers below the host share.
//!
//! A tier below the host implements [`Below`](hybrid_pages::tier::Below). Besides a place for bytes, such a tier
//! needs names of entries, access to the host's slots, ends of copies, counts and notes, a circuit breaker, and
//! measurements of speed. These are here.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod breaker;
mod by_name;
mod copies;
mod counts;
#[cfg(test)]
#[path = "../../../../tests/rust/tiers/fuzz.rs"]
mod fuzz;
mod key_file;
mod key_tree;
mod keys;
mod ledger;
mod lock;
mod name;
mod panics;
mod planes;
mod seals;
mod sizes;
mod speed;
mod tails;

pub use breaker::{CircuitBreaker, pause_after};
pub use by_name::{ByName, PARTS, Recent};
pub use copies::{CONNECTED_TWICE, CopyEnds, refused, wait_until};
pub use counts::{Counts, Failure};
pub use key_file::without_tenant;
pub use keys::EncryptKeys;
pub use ledger::Ledger;
pub use lock::{PriorityGuard, PriorityMutex, lock, lock_first};
pub use name::{Identity, Name, mark_name, name_of, tail_group};
pub use panics::{PanicFlag, panicked};
pub use planes::Planes;
pub use seals::{
    OWNER_BYTES, SEAL_BYTES, SEALED_FORMAT_VERSION, Seal, SealLot, SealedPlace, Seals, sealed_bytes,
};
pub use sizes::{EntrySize, entry_sizes, largest_entry, queue_slots, shared_room};
pub use speed::Speed;
pub use tails::TailNames;
