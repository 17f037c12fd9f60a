//! Pages and checkpoints of hybrid models, kept outside GPU memory.
//!
//! The crate knows neither Python nor CUDA nor traces. Its levels, imports pointing strictly down:
//!
//! | level | modules |
//! |---|---|
//! | L4 | [`cache`]: the only door to index, slots, tiers and policies |
//! | L3 | [`prefix`]: which boundaries can be resumed; [`tier`]: where whole entries live |
//! | L2 | [`slot`]: slots of an arena, and the entries that own them; [`transfer`]: copies and what executes them |
//! | L1 | [`geometry`]: what a page and a checkpoint are made of; [`policy`]: which entries stay |
//! | L0 | [`columns`]: entries in block tables; [`run`]: what a request's steps fill; [`guarded`]: locks; [`error`], [`ids`] |
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod columns;
pub mod error;
pub mod guarded;
pub mod ids;
pub mod run;
mod slab;

pub mod geometry;
pub mod policy;

pub mod slot;
pub mod transfer;

pub mod prefix;
pub mod tier;

pub mod cache;
