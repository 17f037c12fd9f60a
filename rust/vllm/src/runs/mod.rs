//! Runs of requests: the blocks that the steps of an engine fill, and the states that they leave behind.
//!
//! The engine overwrites a state block as its request goes on, so a block's column in the table proves nothing.
//! Two things prove a boundary: a step of this run ended there, or the step runs past it and the kernels export
//! it. The block is then the one in the table where the step ended, or one that the engine hands over and that
//! still carries the boundary's hash: hand-overs also name blocks that were freed, and given to others, meanwhile.
//! A state inside a block is proven in the same way.

mod drafts;
mod finding;
mod request;
mod rules;
mod run;
mod states;
mod tails;
mod wanted;

pub use request::RequestView;
pub use rules::{CheckpointMode, RunRules, StateGroup, Tails};
pub use run::{Run, StorePlan};
pub use states::{HandOver, ProvenState, StateBlocks, Tail};
