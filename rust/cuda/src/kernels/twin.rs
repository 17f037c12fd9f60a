//! The kernels in Rust, over host memory: equal lists give equal bytes and digests.
//!
//! For each tile, the bytes of one side are copied into a tile of zeros, the tile is hashed, and its bytes are copied
//! to the other side. So bytes that the source list does not cover count as zero, and bytes that the target list does
//! not cover are not written.

use hybrid_pages::error::{Error, Result};
use hybrid_pages::transfer::tile_digest;

use super::abi::{MOST_RUN, Packed, Strided, TILE_BYTES};

/// Twin of `hybrid_pages_gather`: copies strided pieces to packed ones, and computes digests of the strided bytes.
///
/// # Panics
/// If `digests` is shorter than `tile_count`.
///
/// # Safety
/// [`check`] accepts the lists. Every strided byte of these tiles can be read, every packed one written, and no byte
/// is both.
pub unsafe fn gather(
    strided: &[Strided],
    packed: &[Packed],
    first_tile: u64,
    tile_count: u64,
    digests: Option<&mut [u64]>,
) {
    // SAFETY: the caller promises this.
    unsafe { carry(strided, packed, first_tile, tile_count, digests) };
}

/// Twin of `hybrid_pages_scatter`: copies packed pieces to strided ones, and computes digests of the packed bytes.
///
/// # Panics
/// If `digests` is shorter than `tile_count`.
///
/// # Safety
/// [`check`] accepts the lists. Every packed byte of these tiles can be read, every strided one
/// written, and no byte is both.
pub unsafe fn scatter(
    strided: &[Strided],
    packed: &[Packed],
    first_tile: u64,
    tile_count: u64,
    digests: Option<&mut [u64]>,
) {
    // SAFETY: the caller promises this.
    unsafe { carry(packed, strided, first_tile, tile_count, digests) };
}

/// # Safety
/// [`check`] accepts the lists. Every byte of these tiles can be read on the side `From` and written on the side
/// `To`, and no byte is on both.
unsafe fn carry<From: ListPiece, To: ListPiece>(
    from: &[From],
    to: &[To],
    first_tile: u64,
    tile_count: u64,
    mut digests: Option<&mut [u64]>,
) {
    for index in 0..tile_count {
        // SAFETY: the caller's promise about the bytes that are read.
        let (start, tile) = unsafe { read(from, first_tile + index) };
        note(&mut digests, index, &tile);
        // SAFETY: the caller's promise about the bytes that are written.
        unsafe { write(to, start, &tile) };
    }
}

/// Twin of `hybrid_pages_digest`: computes digests of strided bytes. Writes nothing else.
///
/// # Panics
/// If `digests` is shorter than `tile_count`.
///
/// # Safety
/// [`check_list`] accepts the list, and every strided byte of these tiles can be read.
pub unsafe fn digest(strided: &[Strided], first_tile: u64, tile_count: u64, digests: &mut [u64]) {
    for index in 0..tile_count {
        // SAFETY: the caller's promise.
        let (_, tile) = unsafe { read(strided, first_tile + index) };
        note(&mut Some(&mut *digests), index, &tile);
    }
}

/// Checks both lists with [`check_list`].
///
/// # Errors
/// [`Error::InvalidArgument`] with the first piece that is wrong.
pub fn check(strided: &[Strided], packed: &[Packed]) -> Result<()> {
    check_list(strided)?;
    check_list(packed)
}

/// Checks that every piece is well formed, and that the list is sorted by position and disjoint. Does not check
/// addresses.
///
/// # Errors
/// [`Error::InvalidArgument`] with the first piece that is wrong.
pub fn check_list<P: ListPiece>(list: &[P]) -> Result<()> {
    let mut end = 0;
    for (index, piece) in list.iter().enumerate() {
        let wrong =
            |what: String| Error::InvalidArgument(format!("{} piece {index}: {what}", P::SIDE));
        piece.well_formed().map_err(wrong)?;
        let position = piece.position();
        if position < end {
            return Err(wrong(format!(
                "expected a position from {end:#x} on, where the piece before ends, found \
                 {position:#x}"
            )));
        }
        end = position
            .checked_add(piece.bytes())
            .filter(|end| end.checked_next_multiple_of(TILE_BYTES as u64).is_some())
            .ok_or_else(|| {
                wrong(format!(
                    "expected an end below 2^64 - {TILE_BYTES}, found {:#x} bytes from {position:#x}",
                    piece.bytes()
                ))
            })?;
    }
    Ok(())
}

/// A piece of the payload, strided or packed.
pub trait ListPiece {
    /// Name of the side in errors: strided or packed.
    const SIDE: &str;

    /// Offset of the piece in the payload, in bytes.
    fn position(&self) -> u64;

    /// How many bytes of the payload the piece holds.
    fn bytes(&self) -> u64;

    /// Address of byte `offset` of the piece, and how many bytes are adjacent from there on.
    fn at(&self, offset: u64) -> (u64, u64);

    /// Checks that the fields agree with each other.
    ///
    /// # Errors
    /// A text that says what was expected and found.
    fn well_formed(&self) -> std::result::Result<(), String>;
}

impl ListPiece for Strided {
    const SIDE: &str = "strided";

    fn position(&self) -> u64 {
        self.position
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn at(&self, offset: u64) -> (u64, u64) {
        let run = u64::from(self.run);
        let steps = (offset / run).wrapping_mul(self.stride as u64);
        let address = self.address.wrapping_add(offset % run);
        (address.wrapping_add(steps), run - offset % run)
    }

    fn well_formed(&self) -> std::result::Result<(), String> {
        let Self { run, bytes, .. } = *self;
        if !(1..=MOST_RUN).contains(&run) || bytes == 0 || bytes % u64::from(run) != 0 {
            return Err(format!(
                "expected one run or more of 1 to {MOST_RUN} bytes, found {bytes} bytes in runs of {run}"
            ));
        }
        if self.reserved != 0 {
            return Err(format!("reserved: expected 0, found {}", self.reserved));
        }
        let reach = i128::from(self.runs() - 1) * i128::from(self.stride);
        let first = i128::from(self.address) + reach.min(0);
        let end = i128::from(self.address) + reach.max(0) + i128::from(run);
        if first < 0 || end > 1 << 64 {
            return Err(format!(
                "expected addresses of 64 bits, found {} runs by {} from {:#x}",
                self.runs(),
                self.stride,
                self.address
            ));
        }
        Ok(())
    }
}

impl ListPiece for Packed {
    const SIDE: &str = "packed";

    fn position(&self) -> u64 {
        self.position
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn at(&self, offset: u64) -> (u64, u64) {
        (self.address + offset, self.bytes - offset)
    }

    fn well_formed(&self) -> std::result::Result<(), String> {
        if self.bytes == 0 {
            return Err("bytes: expected at least 1, found 0".into());
        }
        if self.address.checked_add(self.bytes).is_none() {
            return Err(format!(
                "expected addresses of 64 bits, found {:#x} bytes from {:#x}",
                self.bytes, self.address
            ));
        }
        Ok(())
    }
}

/// A tile's first position and its bytes. Bytes that no piece covers are zeros.
///
/// # Safety
/// The pieces' bytes in this tile can be read.
unsafe fn read<P: ListPiece>(list: &[P], tile: u64) -> (u64, [u8; TILE_BYTES]) {
    let start = tile * TILE_BYTES as u64;
    let mut bytes = [0; TILE_BYTES];
    for (at, address, length) in stretches(list, start) {
        let source = std::ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: the caller's promise; `bytes` is new.
        unsafe { source.copy_to_nonoverlapping(bytes[at..at + length].as_mut_ptr(), length) };
    }
    (start, bytes)
}

/// # Safety
/// The pieces' bytes in this tile can be written.
unsafe fn write<P: ListPiece>(list: &[P], start: u64, bytes: &[u8; TILE_BYTES]) {
    for (at, address, length) in stretches(list, start) {
        let target = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: the caller's promise; `bytes` is a copy.
        unsafe { target.copy_from_nonoverlapping(bytes[at..at + length].as_ptr(), length) };
    }
}

/// The stretches of adjacent bytes in a tile: offset in the tile, address, length.
fn stretches<P: ListPiece>(list: &[P], start: u64) -> Vec<(usize, u64, usize)> {
    let end = start + TILE_BYTES as u64;
    let mut found = Vec::new();
    for piece in list {
        let mut position = piece.position().max(start);
        let last = (piece.position() + piece.bytes()).min(end);
        while position < last {
            let (address, adjacent) = piece.at(position - piece.position());
            let length = adjacent.min(last - position);
            found.push(((position - start) as usize, address, length as usize));
            position += length;
        }
    }
    found
}

fn note(digests: &mut Option<&mut [u64]>, index: u64, tile: &[u8]) {
    if let Some(digests) = digests {
        digests[index as usize] = tile_digest(tile);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILE: u64 = TILE_BYTES as u64;

    fn strided(position: u64, address: u64, run: u32, runs: u64, stride: i64) -> Strided {
        Strided {
            bytes: u64::from(run) * runs,
            stride,
            ..Strided::once(position, address, run)
        }
    }

    fn packed(position: u64, address: u64, bytes: u64) -> Packed {
        Packed {
            position,
            address,
            bytes,
        }
    }

    fn address(memory: &mut [u8]) -> u64 {
        memory.as_mut_ptr().expose_provenance() as u64
    }

    #[test]
    fn runs_follow_each_other_at_a_distance_that_may_be_negative() {
        let mut engine: Vec<u8> = (0..100).collect();
        let mut slot = vec![255; 12];
        let from = address(&mut engine);
        let list = [
            strided(0, from + 50, 2, 3, 10),
            strided(6, from + 30, 2, 3, -10),
        ];
        let slots = [packed(0, address(&mut slot), 12)];
        check(&list, &slots).unwrap();
        // SAFETY: offsets 10 to 72 of `engine`, all of `slot`.
        unsafe { gather(&list, &slots, 0, 1, None) };
        assert_eq!(slot, [50, 51, 60, 61, 70, 71, 30, 31, 20, 21, 10, 11]);

        slot.reverse();
        // SAFETY: as above.
        unsafe { scatter(&list, &slots, 0, 1, None) };
        assert_eq!(engine[50..52], [11, 10]);
        assert_eq!(engine[30..32], [71, 70]);
        assert_eq!(engine[52..60], [52, 53, 54, 55, 56, 57, 58, 59]);
    }

    #[test]
    fn a_launch_takes_its_tiles_only_and_hashes_gaps_as_zeros() {
        let mut engine: Vec<u8> = (0..3 * TILE).map(|byte| (byte % 251) as u8).collect();
        let mut slot = vec![0; 2 * TILE_BYTES];
        let far = (1 << 32) / TILE;
        let list = [
            Strided::once(far * TILE, address(&mut engine), 7),
            Strided::once(far * TILE + TILE + 9, address(&mut engine) + 7, 20_000),
        ];
        let to = address(&mut slot);
        let slots = [
            packed(far * TILE, to, 7),
            packed(far * TILE + TILE + 9, to + 7, 1000),
            packed(far * TILE + TILE + 1009, to + 1007, 19_000),
        ];
        check(&list, &slots).unwrap();
        let mut digests = [0; 2];
        // SAFETY: the tile holds the first 7 and the next 16375 bytes.
        unsafe { gather(&list, &slots, far + 1, 1, Some(&mut digests[..1])) };
        assert_eq!(slot[..7], [0; 7]);
        assert_eq!(slot[7..TILE_BYTES - 2], engine[7..TILE_BYTES - 2]);
        assert!(slot[TILE_BYTES - 2..].iter().all(|byte| *byte == 0));
        let tile = [&[0; 9], &engine[7..TILE_BYTES - 2]].concat();
        assert_eq!(digests[0], tile_digest(&tile));

        // SAFETY: reads the first 20007 bytes of `engine`.
        unsafe { digest(&list, far, 2, &mut digests) };
        assert_eq!(digests, [tile_digest(&engine[..7]), tile_digest(&tile)]);

        slot[TILE_BYTES - 2..].fill(0);
        let back = engine.clone();
        // SAFETY: as in the gather.
        unsafe { scatter(&list, &slots, far + 1, 1, Some(&mut digests[..1])) };
        assert_eq!(digests[0], tile_digest(&tile));
        assert_eq!(engine, back);
    }

    #[test]
    fn no_tiles_and_no_pieces_touch_nothing() {
        let list = [Strided::once(0, 8, 8)];
        let slots = [packed(0, 8, 8)];
        // SAFETY: no tile of these has a piece, so that the addresses are not looked at.
        unsafe {
            gather(&list, &slots, 0, 0, None);
            scatter(&list, &slots, 5, 3, None);
            gather(&[], &[], 0, 2, None);
            let mut digests = [0; 1];
            digest(&[], 7, 1, &mut digests);
            assert_eq!(digests, [tile_digest(&[])]);
        }
    }

    #[test]
    fn lists_that_break_the_contract_are_refused() {
        let fine = strided(100, 4096, 8, 3, -16);
        check_list(&[fine, Strided::once(124, 0, 1)]).unwrap();
        let refused = |list: &[Strided], why: &str| {
            let found = check_list(list).unwrap_err().to_string();
            assert!(found.contains(why), "expected {why:?}, found {found:?}");
        };
        refused(&[fine, Strided::once(123, 0, 1)], "piece 1: expected a pos");
        refused(&[fine, Strided::once(0, 0, 1)], "expected a position from");
        refused(&[Strided { run: 0, ..fine }], "runs of");
        let run = MOST_RUN + 1;
        let bytes = u64::from(run);
        refused(&[Strided { run, bytes, ..fine }], "runs of");
        refused(&[Strided { bytes: 0, ..fine }], "runs of");
        refused(&[Strided { bytes: 25, ..fine }], "found 25 bytes in runs");
        let reserved = 1;
        refused(&[Strided { reserved, ..fine }], "reserved: expected 0");
        refused(&[strided(0, 16, 8, 3, -16)], "addresses of 64 bits");
        refused(&[Strided::once(0, u64::MAX, 2)], "addresses of 64 bits");
        refused(
            &[Strided::once(u64::MAX - 9, 0, 5)],
            "expected an end below",
        );
        refused(&[Strided::once(u64::MAX, 0, 5)], "expected an end below");

        assert!(check_list(&[packed(0, 0, 0)]).is_err());
        assert!(check_list(&[packed(0, u64::MAX, 2)]).is_err());
        assert!(check_list(&[packed(8, 0, 2), packed(9, 0, 2)]).is_err());
        let slots = [packed(100, 0, 10), packed(110, 64, 14)];
        check(&[fine], &slots).unwrap();
        assert!(check(&[fine, fine], &slots).is_err());
        assert!(check(&[fine], &[slots[0], slots[0]]).is_err());
    }
}
