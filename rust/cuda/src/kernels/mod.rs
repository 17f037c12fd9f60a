//! The kernels of `csrc/`: images, parameters, launches, and the same in Rust.

pub mod abi;
pub mod image;
mod module;
mod proof;
pub mod twin;

pub(crate) use module::{Kernel, Module, Width};
pub(crate) use proof::prove;
