//! Pages and checkpoints of hybrid models, kept outside GPU memory.
//!
//! The crate knows neither Python nor CUDA nor traces. Its levels, imports pointing strictly down:
//!
//! | level | modules |
//! |---|---|
//! | L4 | [`cache`]: the only door to index, slots and policy |
//! | L3 | [`prefix`]: which boundaries can be resumed; [`tier`]: where slots live |
//! | L2 | [`slot`]: places in an arena and who holds them; [`transfer`]: copies and what executes them |
//! | L1 | [`geometry`]: what a page and a checkpoint are made of; [`policy`]: which entries stay |
//! | L0 | [`error`], [`ids`] |
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod error;
pub mod ids;
mod slab;

pub mod geometry;
pub mod policy;

pub mod slot;
pub mod transfer;

pub mod prefix;
pub mod tier;

pub mod cache;
