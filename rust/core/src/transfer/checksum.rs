//! The checksum of a payload: a hash over the hashes of its tiles, so that threads and devices can
//! work on tiles in any order.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes of a tile; the last one of a payload counts as filled up with zeros.
pub const TILE_BYTES: usize = 16 << 10;

/// The checksum of all bytes that move: XXH3-64 over the [`tile_digest`]s and the length.
#[must_use]
pub fn checksum(data: &[u8]) -> u64 {
    combine(data.chunks(TILE_BYTES).map(tile_digest), data.len())
}

/// XXH3-64 of one tile of at most [`TILE_BYTES`], filled up with zeros.
///
/// # Panics
/// If it is longer.
#[must_use]
pub fn tile_digest(tile: &[u8]) -> u64 {
    assert!(tile.len() <= TILE_BYTES, "a tile holds {TILE_BYTES} bytes");
    digest_parts(std::iter::once(tile))
}

/// The digest of a tile that lies in several places.
pub(super) fn digest_parts<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u64 {
    let mut whole = [0; TILE_BYTES];
    let mut filled = 0;
    for part in parts {
        if part.len() >= TILE_BYTES {
            return xxh3_64(part);
        }
        whole[filled..][..part.len()].copy_from_slice(part);
        filled += part.len();
    }
    xxh3_64(&whole)
}

/// The checksum of a payload of `len` bytes from the digests of its tiles, in order.
#[must_use]
pub fn combine(digests: impl Iterator<Item = u64>, len: usize) -> u64 {
    let mut hasher = Xxh3::new();
    for digest in digests {
        hasher.update(&digest.to_le_bytes());
    }
    hasher.update(&(len as u64).to_le_bytes());
    hasher.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_at_the_end_count() {
        let data = [7; 100];
        let longer = [&data[..], &[0; 20]].concat();
        assert_eq!(tile_digest(&data), tile_digest(&longer));
        assert_ne!(checksum(&data), checksum(&longer));
    }

    #[test]
    fn a_tile_in_parts_is_the_tile() {
        let data: Vec<u8> = (0..TILE_BYTES).map(|byte| (byte * 7) as u8).collect();
        for length in [0, 1, 100, TILE_BYTES - 1, TILE_BYTES] {
            let tile = &data[..length];
            let (first, second) = tile.split_at(length / 3);
            let parts = digest_parts([first, second].into_iter());
            assert_eq!(parts, tile_digest(tile));
        }
    }
}
