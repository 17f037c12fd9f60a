//! Pages and checkpoints of hybrid models, kept outside GPU memory.
//!
//! The crate knows neither Python nor CUDA nor traces. ARCHITECTURE.md has the levels of its modules.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(shuttle)] // tests/rust/races
extern crate hybrid_pages_races_std as std;
pub use hybrid_pages_geometry::{error, geometry, ids};

pub mod guarded;
pub mod rows;
mod shards;
mod slab;

pub mod policy;
pub mod slot;
pub mod transfer;

pub mod cache;
pub mod prefix;
pub mod tier;
