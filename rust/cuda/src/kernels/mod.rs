//! The kernels of `csrc/`, and what goes with them on the host.

pub mod abi;
pub mod image;
mod module;
pub mod twin;

pub(crate) use module::{Kernel, Module};
