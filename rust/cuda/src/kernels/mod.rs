//! The kernels of `csrc/`, and what goes with them on the host.

pub mod abi;
pub mod twin;
