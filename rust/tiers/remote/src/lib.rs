//! A tier below the host that engines on many machines share: an object store, or a shared file system.
//!
//! Entries travel in *packs*: immutable objects with a table of their entries in front. A pack is there as a
//! whole or not at all, and its name says when it was made, so that a listing from a point in time finds the new
//! ones. Each engine keeps the tables of all packs of its identity in memory, its *catalog*, and lists the store
//! again when a lookup finds the catalog old: a miss costs no round trip per block.
//!
//! Nothing that the store says is believed: a pack counts only if its table is whole and names the pack and the
//! identity, and an entry is shown to nobody before its bytes had the checksums of the table.

mod catalog;
mod error;
mod fetch;
mod files;
mod freshness;
mod handle;
mod listing;
mod messages;
mod options;
mod pack;
mod place;
mod remote;
mod shared;
mod stats;
mod upload;

pub use error::{StoreError, StoreErrorKind};
pub use handle::RemoteHandle;
pub use options::{Admit, RemoteOptions};
pub use pack::REMOTE_FORMAT_VERSION;
pub use place::RemotePlace;
pub use remote::Remote;
pub use stats::{RemoteFailure, RemoteStats};

use hybrid_pages::guarded::lock;
