//! The vLLM side of the cache: block tables, the steps that fill them, and stores of the blocks that a step completes.
//!
//! The crate knows no Python: it reads the engine's objects through traits, which the binding implements.
//! ARCHITECTURE.md has the levels of its modules.
#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod columns;
pub mod engine;
pub mod entries;
pub mod reports;
pub mod room;
pub mod runs;
pub mod stores;
pub mod tables;
