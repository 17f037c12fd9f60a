//! Digests on the host, where no kernel can be loaded, or where not all of an entry moves.

use std::ops::Range;

use hybrid_pages::transfer::{TILE_BYTES, tile_digest};

use crate::line::{Line, within};

/// The digests of some tiles, from the slots. They are whole, and nobody writes them.
pub(super) fn digests_of_slots(line: &Line, tiles: Range<usize>) -> Vec<u64> {
    let tile = TILE_BYTES as u64;
    let digest = |index: usize| {
        let index = index as u64;
        let mut bytes = Vec::with_capacity(TILE_BYTES);
        for piece in within(&line.packed, index * tile..(index + 1) * tile) {
            let address = std::ptr::with_exposed_provenance(piece.address as usize);
            // SAFETY: the plan keeps its stretches inside the arena, whose bytes are always
            // initialised, and the slots belong to the transfer.
            bytes.extend(unsafe { std::slice::from_raw_parts(address, piece.bytes as usize) });
        }
        tile_digest(&bytes)
    };
    tiles.map(digest).collect()
}
