//! Brings back entries that only tiers below have: promotions into the host, and restores of hits of any size.

mod cost;
mod handle;
mod pin;
mod promotion;
mod task;
mod wave;

pub use handle::Restore;
pub use task::RestoreProgress;
