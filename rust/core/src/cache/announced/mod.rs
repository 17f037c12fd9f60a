//! Announcements: which blocks a follower may tell others that this cache has, by medium.
//!
//! A boundary is *usable* in a medium while a lookup of it alone could end there, and *announced* while it or one
//! below it is usable: so the announced boundaries of a prompt are dense from its start, and end where it would
//! resume. What the follower was told is kept beside what is so: changes that cancel out are never told,
//! and what waits to be told is never more than what was told and what is announced.

mod changes;
mod follower;
mod told;

pub use changes::{Changes, Medium, RemovedBlock, StoredBlocks};
pub(super) use follower::Announced;
