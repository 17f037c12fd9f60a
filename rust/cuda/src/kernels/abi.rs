//! The parameters of the kernels. Twin of `csrc/paging.h`.
//!
//! The payload of several entries lies on one *line*: each entry begins at a multiple of
//! [`TILE_BYTES`]. Two lists, each sorted by position and disjoint, say where bytes of the line lie
//! in memory. They need not cut at the same positions, and bytes that neither covers are padding.

pub use hybrid_pages::transfer::TILE_BYTES;

/// Runs of adjacent bytes, nested up to four deep: the engine's side of the line.
///
/// Run `r` holds the line from `position + r * run` on. Its address is `address` plus
/// `index[k] * stride[k]` for each `k`, where `index` is `r` written in digits of base `extent`, the
/// last one fastest.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strided {
    /// On the line, in bytes.
    pub position: u64,
    /// Of the first run.
    pub address: u64,
    /// Of all runs: `run` times the product of `extent`.
    pub bytes: u64,
    /// Bytes that are adjacent, at least 1.
    pub run: u32,
    /// Outermost first, at least 1; 1 where there is nothing to repeat.
    pub extent: [u32; 4],
    /// 0.
    pub reserved: u32,
    /// In bytes.
    pub stride: [i64; 4],
}

impl Strided {
    /// One run, which repeats in no direction.
    #[must_use]
    pub fn once(position: u64, address: u64, run: u32) -> Self {
        Self {
            position,
            address,
            bytes: u64::from(run),
            run,
            extent: [1; 4],
            reserved: 0,
            stride: [0; 4],
        }
    }
}

/// Adjacent bytes: the slots' side of the line.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// On the line, in bytes.
    pub position: u64,
    /// Where they lie.
    pub address: u64,
    /// How many, at least 1.
    pub bytes: u64,
}

/// One launch: its only parameter, by value. Addresses are the device's.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paging {
    /// Address of `strided_count` [`Strided`].
    pub strided: u64,
    /// Address of `packed_count` [`Packed`].
    pub packed: u64,
    /// Strided pieces.
    pub strided_count: u32,
    /// Packed pieces.
    pub packed_count: u32,
    /// The first tile of the line that this launch takes.
    pub first_tile: u64,
    /// How many it takes.
    pub tile_count: u64,
    /// Address of a `u64` for each of its tiles, or 0 for no digests.
    pub digests: u64,
}

const _: () = assert!(size_of::<Strided>() == 80 && align_of::<Strided>() == 8);
const _: () = assert!(size_of::<Packed>() == 24 && align_of::<Packed>() == 8);
const _: () = assert!(size_of::<Paging>() == 48 && align_of::<Paging>() == 8);
