//! Checksums of entries, made from the digests of their tiles.

use std::ops::Range;

use hybrid_pages::transfer::{Plan, TILE_BYTES, combine, tile_digest};

use crate::payload::{Payload, within};

/// The checksum of an entry, from the device's digests or, without them, from the bytes in the slots.
pub(super) fn checksum(payload: &Payload, entry: usize, digests: Option<&[u64]>) -> u64 {
    let (tiles, bytes) = (
        payload.tiles_of(entry),
        payload.entries[entry].bytes as usize,
    );
    match digests {
        Some(digests) => combine(digests[tiles].iter().copied(), bytes),
        None => combine(digests_of_slots(payload, tiles).into_iter(), bytes),
    }
}

/// Compares an entry with the checksum that its plan expects, if there is one.
///
/// # Errors
/// If they differ, a text with both checksums.
pub(super) fn check_entry(
    plan: &Plan,
    index: usize,
    payload: &Payload,
    entry: usize,
    digests: Option<&[u64]>,
) -> std::result::Result<(), String> {
    let Some(expected) = plan.entries()[index].checksum else {
        return Ok(());
    };
    let found = checksum(payload, entry, digests);
    if expected == found {
        return Ok(());
    }
    Err(format!(
        "checksum of entry {index}: expected {expected:016x}, found {found:016x}: not the bytes that \
         left the engine, its blocks have to be computed again"
    ))
}

/// Computes digests of tiles on the host, from the slots, which nobody writes meanwhile.
fn digests_of_slots(payload: &Payload, tiles: Range<usize>) -> Vec<u64> {
    let tile = TILE_BYTES as u64;
    let digest = |index: usize| {
        let index = index as u64;
        let mut bytes = Vec::with_capacity(TILE_BYTES);
        for piece in within(&payload.packed, index * tile..(index + 1) * tile) {
            let address = std::ptr::with_exposed_provenance(piece.address as usize);
            // SAFETY: the plan keeps its stretches inside the arena, whose bytes are always
            // initialised, and the slots belong to the transfer.
            bytes.extend(unsafe { std::slice::from_raw_parts(address, piece.bytes as usize) });
        }
        tile_digest(&bytes)
    };
    tiles.map(digest).collect()
}
