//! What an engine like vLLM is to the cache: block tables, steps that fill them, and stores of what a step completes.
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
