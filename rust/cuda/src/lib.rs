//! The CUDA engine: copies pages and checkpoints between device memory and an arena.
//!
//! The crate links against no CUDA library. The driver is looked up when an engine is made, so a machine without one
//! gets an error with the reason, and the library still loads.
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
pub use pinning::{Pinning, PinningOptions};
