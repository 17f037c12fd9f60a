//! The parameters of the kernels. Twin of `csrc/paging.h`.
//!
//! The *payload* of a launch is the bytes of several entries one after another, each beginning at a
//! multiple of [`TILE_BYTES`]. Two lists, each sorted by position and disjoint, say where bytes of the payload lie
//! in memory. They need not cut at the same positions, and bytes that neither covers are padding.

pub use hybrid_pages::transfer::TILE_BYTES;

/// Most bytes of a run, since kernels count in 32 bits within it.
pub const MOST_RUN: u32 = 1 << 30;

/// Runs of adjacent bytes at equal distances: the place of a part of the payload in the engine's memory.
///
/// Run `r` holds the payload from `position + r * run` on, and begins at `address + r * stride`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strided {
    /// Offset of the piece in the payload, in bytes.
    pub position: u64,
    /// Address of the first run.
    pub address: u64,
    /// Bytes of all runs together: a multiple of `run`.
    pub bytes: u64,
    /// Distance from one run to the next, in bytes.
    pub stride: i64,
    /// Bytes of one run, 1 to [`MOST_RUN`].
    pub run: u32,
    /// Always 0.
    pub reserved: u32,
}

impl Strided {
    /// A piece of one run.
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

    /// How many runs the piece has.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.bytes / u64::from(self.run)
    }
}

/// Adjacent bytes: the place of a part of the payload in the slots.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// Offset of the piece in the payload, in bytes.
    pub position: u64,
    /// Address of the first byte.
    pub address: u64,
    /// How many bytes, at least 1.
    pub bytes: u64,
}

/// The parameter of a kernel launch, passed by value. Addresses are the device's.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paging {
    /// Address of the list of [`Strided`] pieces.
    pub strided: u64,
    /// Address of the list of [`Packed`] pieces.
    pub packed: u64,
    /// How many strided pieces there are.
    pub strided_count: u32,
    /// How many packed pieces there are.
    pub packed_count: u32,
    /// The first tile of the payload that this launch takes.
    pub first_tile: u64,
    /// How many tiles this launch takes.
    pub tile_count: u64,
    /// Address of a `u64` for each of these tiles, or 0 if no digests are wanted.
    pub digests: u64,
}

const _: () = assert!(size_of::<Strided>() == 40 && align_of::<Strided>() == 8);
const _: () = assert!(size_of::<Packed>() == 24 && align_of::<Packed>() == 8);
const _: () = assert!(size_of::<Paging>() == 48 && align_of::<Paging>() == 8);
