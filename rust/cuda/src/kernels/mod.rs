//! The kernels of `csrc/`, and what goes with them on the host.

pub mod abi;
pub mod compile_cache;
pub mod image;
mod module;
pub mod nvrtc;
pub mod twin;

pub(crate) use module::{Kernel, Module};
