//! Tiles: copies and checksums of bytes in one pass, by the best instructions that a machine has.
//!
//! A payload is hashed in tiles of 16 KiB, so that threads and devices can work on tiles in any order. The checksum of
//! a payload is a hash over the hashes of its tiles.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod checksum;
mod lanes;
mod path;
mod tile;

pub use checksum::{checksum, combine};
pub use lanes::{TILE_BYTES, fence};
pub use path::CopyPath;
pub use tile::{Tile, tile_digest};
