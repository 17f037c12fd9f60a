//! The tests of the lab, in one binary.

mod disk;
mod fuzz;
mod hints;
#[path = "../shared/live_cache.rs"]
mod live_cache;
mod policy_live;
mod remote;
mod replay;
mod trace;
