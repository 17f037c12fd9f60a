//! The kernels of `csrc/`: images, parameters, launches, and the same in Rust.

pub mod abi;
pub mod image;
mod module;
pub mod twin;

pub(crate) use module::{Kernel, Module};
