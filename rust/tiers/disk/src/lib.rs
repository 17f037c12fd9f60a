//! A tier on a local disk: entries that outlive the process, in slab files with an index.
//!
//! A directory has a *lane* for each process that uses it, and a lane has a *store* for each identity.
//! `docs/disk-format.md` describes every byte. Lookups need only the *book*, which is in memory. Threads move bytes
//! between slots and cells, and a *keeper* writes the index in the background. An entry that was read is published
//! only if its header and checksums are those in the book. So writes need no order: a crash or a loss of power can
//! cost entries, but never makes bytes wrong.

mod below;
mod book;
mod cells;
mod connect;
mod crew;
mod door;
mod format;
#[cfg(test)]
#[path = "../../../../tests/rust/disk/fuzz.rs"]
mod fuzz;
mod handle;
mod health;
mod index;
mod job;
mod keeper;
mod options;
mod path;
mod queue;
mod shape;
mod shared;
#[cfg(test)]
#[path = "../../../../tests/rust/disk/sizes.rs"]
mod sizes;
mod stats;
mod store;
mod tree;
mod trial;
mod uses;

pub use below::Disk;
pub use door::{ALIGNMENT, Door, DoorFile, SystemDoor};
pub use format::{DISK_FORMAT_VERSION, SEALED_DISK_FORMAT_VERSION};
pub use handle::DiskHandle;
pub use options::DiskOptions;
pub use stats::{DiskFailure, DiskStats, LATENCY_LIMITS_US, Latencies};
pub use tree::{Bad, Collected, DiskTree, IdentityView, LaneView, Limits, Verdict};
