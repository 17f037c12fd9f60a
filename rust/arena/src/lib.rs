//! The arena: the memory that holds a cache's slots, shared by the processes of a node where the system has memfds.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod arena;
mod header;
#[cfg(target_os = "linux")]
mod huge_pages;
mod mapping;
#[cfg(target_os = "linux")]
mod numa;
mod plane;
mod prefault;
mod private;
#[cfg(target_os = "linux")]
mod shared;

pub use arena::Arena;
pub use mapping::PlaneOptions;
pub use plane::Plane;
pub use prefault::prefault;
