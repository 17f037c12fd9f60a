//! Where slots live: the host tier's arena, one a node, shared by its processes.

mod arena;
mod header;
#[cfg_attr(not(target_os = "linux"), path = "unsupported.rs")]
mod mapping;

pub use arena::Arena;
