//! A tier below the host that engines on many machines share: an object store, or a shared file system.
//!
//! Entries travel in *packs*: immutable objects that begin with a table of their entries. A pack is in the store as a
//! whole or not at all. Its name has the time when it was made, so a listing from some time on finds the new packs.
//! Each engine has a *catalog* in memory: the tables of all packs of its identity. When a lookup finds the catalog
//! old, the engine lists the store again. So a miss costs no round trip per block.
//!
//! The engine does not trust the store: a pack counts only if its table is whole and names the pack and the identity,
//! and an entry is published only if its bytes have the checksums in the table.

mod catalog;
mod error;
mod fetch;
mod files;
mod freshness;
#[cfg(test)]
#[path = "../../../../tests/rust/remote/fuzz.rs"]
mod fuzz;
mod handle;
mod listing;
mod messages;
mod options;
mod pack;
mod place;
mod remote;
mod shared;
#[cfg(test)]
#[path = "../../../../tests/rust/remote/sizes.rs"]
mod sizes;
mod stats;
mod upload;

pub use error::{StoreError, StoreErrorKind};
pub use handle::RemoteHandle;
pub use options::{Admit, RemoteOptions};
pub use pack::REMOTE_FORMAT_VERSION;
pub use place::RemotePlace;
pub use remote::Remote;
pub use stats::{RemoteFailure, RemoteStats};
