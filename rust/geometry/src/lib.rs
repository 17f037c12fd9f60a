//! The make-up of pages and checkpoints, and the ids and errors that every crate knows.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod error;
pub mod ids;

pub mod geometry;
