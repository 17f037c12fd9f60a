//! A tier on a local disk: entries that outlive the process, in slab files with an index.
//!
//! A directory holds one lane per process that uses it, and a lane one store per identity: `docs/disk-format.md`
//! has every byte. All that a lookup needs is in memory, in the book. Threads move bytes between slots and cells,
//! and a keeper writes the index behind them. What is read is shown to nobody before its header and its
//! checksums were those that the book names, so no order of writes is needed for bytes to be right: a crash or a
//! loss of power can only cost entries.

mod below;
mod book;
mod cells;
mod connect;
mod crew;
mod door;
mod format;
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
mod stats;
mod store;
mod tree;
mod uses;

use hybrid_pages::guarded::lock;

pub use below::Disk;
pub use door::{ALIGNMENT, Door, DoorFile, SystemDoor};
pub use format::DISK_FORMAT_VERSION;
pub use handle::DiskHandle;
pub use options::DiskOptions;
pub use stats::{DiskFailure, DiskStats, LATENCY_LIMITS_US, Latencies};
pub use tree::{Bad, Collected, DiskTree, IdentityView, LaneView, Limits, Verdict};
