//! Copies between an engine's memory and an arena, and what executes them.
//!
//! A [`Layout`] says where one rank's blocks lie in the engine's memory; a plan resolves entries
//! to pieces of engine memory and slots, checked whole before the first byte moves; an
//! [`Engine`] executes plans in the background and reports each once. Checks, tickets and waiting are the same
//! for all engines: see [`Transfers`]. [`HostEngine`] copies with threads; a device engine fits the same trait.

mod board;
mod checksum;
mod completion;
mod engine;
mod host;
mod job;
mod lanes;
mod layout;
mod path;
mod plan;
mod process;
mod region;
mod tile;
mod transfers;

use crate::guarded::lock;
use std::any::Any;

pub use checksum::{TILE_BYTES, checksum, combine, tile_digest};
pub use completion::{Completion, Ticket};
pub use engine::Engine;
pub use host::HostEngine;
pub use lanes::fence;
pub use layout::{LayerMap, Layout, Run, Span};
pub use plan::{Direction, EntryCopy, Piece, Plan, Stretch};
pub use region::{Region, SlotMemory};
pub use tile::Tile;
pub use transfers::Transfers;

/// The message of a caught panic.
#[must_use]
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
