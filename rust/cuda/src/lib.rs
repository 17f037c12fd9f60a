//! The CUDA engine: pages and checkpoints between device memory and an arena.
//!
//! It links against nothing of CUDA. The driver is looked up when an engine is made, so that a
//! machine without one gets a reason, not a failure to load.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod driver;
pub mod engine;
mod error;
pub mod kernels;
mod payload;
mod pinning;

pub use engine::CudaEngine;
pub use error::{CudaError, Result};
pub use pinning::Pinning;
