//! Announcements: which blocks a follower may tell others that this cache has, by medium.
//!
//! A boundary is *usable* in a medium while a lookup of it alone could end there, and *announced* while it or one below
//! it is usable. So the announced boundaries of a prompt have no gaps from its start, and end where the prompt would
//! resume. The cache remembers what the follower was told. Changes that cancel out are never told, so at most as many
//! wait as there are blocks that the follower was told of, or that are announced now.

mod changes;
mod follower;
mod told;

pub use changes::{Changes, Medium, RemovedBlock, StoredBlocks};
pub(super) use follower::Announced;
pub(super) use told::Collection;
