//! Copies between an engine's memory and an arena, and the engines that execute them.
//!
//! A [`TransferLayout`] has the places of one rank's blocks in the engine's memory. A plan resolves entries to pieces
//! of engine memory and slots, and is checked as a whole before the first byte moves. An [`Engine`] executes plans in
//! the background and reports each once. Checks, tickets and waiting are the same for all engines: see [`Transfers`].
//! [`HostEngine`] copies with threads; a device engine fits the same trait.

mod board;
mod completion;
mod engine;
mod host;
mod job;
mod layer_map;
mod layout;
mod plan;
mod process;
mod region;
mod span;
mod tokens;
mod transfers;

pub use crate::guarded::panic_message;
pub use completion::{Completion, Ticket};
pub use engine::Engine;
pub use host::HostEngine;
pub use layer_map::{ByteRun, LayerMap};
pub use layout::TransferLayout;
pub use plan::{Direction, EntryCopy, Piece, Plan, Stretch};
pub use process::Process;
pub use region::{Region, SlotMemory};
pub use span::Span;
pub use tokens::{TokenDim, TokenPart};
pub use transfers::Transfers;

pub use hybrid_pages_tiles::{TILE_BYTES, Tile, checksum, combine, fence, tile_digest};
