//! Checksums of entries, from the digests of their tiles.

use hybrid_pages::transfer::{Plan, combine};

use crate::line::Line;

use super::host::digests_of_slots;

/// The checksum of an entry of a line; the digests are the device's or, without them, the slots'.
pub(super) fn checksum(line: &Line, place: usize, digests: Option<&[u64]>) -> u64 {
    let (tiles, bytes) = (line.tiles_of(place), line.entries[place].bytes as usize);
    match digests {
        Some(digests) => combine(digests[tiles].iter().copied(), bytes),
        None => combine(digests_of_slots(line, tiles).into_iter(), bytes),
    }
}

/// Compares an entry of a plan with the checksum that is expected of it, if there is one.
///
/// # Errors
/// What was expected, and what was found.
pub(super) fn check_entry(
    plan: &Plan,
    index: usize,
    line: &Line,
    place: usize,
    digests: Option<&[u64]>,
) -> std::result::Result<(), String> {
    let Some(expected) = plan.entries()[index].checksum else {
        return Ok(());
    };
    let found = checksum(line, place, digests);
    if expected == found {
        return Ok(());
    }
    Err(format!(
        "checksum of entry {index}: expected {expected:016x}, found {found:016x}: not the bytes that \
         left the engine, its blocks have to be computed again"
    ))
}
