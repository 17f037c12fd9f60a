//! The checksum of a payload: a hash over the hashes of its tiles, so that threads and devices can
//! work on tiles in any order.

use xxhash_rust::xxh3::Xxh3;

use crate::lanes::TILE_BYTES;
use crate::tile::tile_digest;

/// The checksum of all bytes that move: XXH3-64 over the [`tile_digest`]s and the length.
#[must_use]
pub fn checksum(data: &[u8]) -> u64 {
    combine(data.chunks(TILE_BYTES).map(tile_digest), data.len())
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
}
