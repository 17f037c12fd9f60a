//! The parameters of the kernels. Twin of `csrc/paging.h`.
//!
//! The payload of several entries lies on one *line*: each entry begins at a multiple of
//! [`TILE_BYTES`]. Two lists, each sorted by position and disjoint, say where bytes of the line lie
//! in memory. They need not cut at the same positions, and bytes that neither covers are padding.

pub use hybrid_pages::transfer::TILE_BYTES;

/// Most bytes of a run: within it, kernels count in 32 bits.
pub const MOST_RUN: u32 = 1 << 30;

/// Runs of adjacent bytes at equal distances: the engine's side of the line.
///
/// Run `r` holds the line from `position + r * run` on, and begins at `address + r * stride`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strided {
    /// On the line, in bytes.
    pub position: u64,
    /// Of the first run.
    pub address: u64,
    /// Of all runs: a multiple of `run`.
    pub bytes: u64,
    /// In bytes.
    pub stride: i64,
    /// Bytes that are adjacent, 1 to [`MOST_RUN`].
    pub run: u32,
    /// 0.
    pub reserved: u32,
}

impl Strided {
    /// One run.
    #[must_use]
    pub fn once(position: u64, address: u64, run: u32) -> Self {
        Self {
            position,
            address,
            bytes: u64::from(run),
            stride: 0,
            run,
            reserved: 0,
        }
    }

    /// How many runs.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.bytes / u64::from(self.run)
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

const _: () = assert!(size_of::<Strided>() == 40 && align_of::<Strided>() == 8);
const _: () = assert!(size_of::<Packed>() == 24 && align_of::<Packed>() == 8);
const _: () = assert!(size_of::<Paging>() == 48 && align_of::<Paging>() == 8);
