//! The digest of a tile while its bytes move, in parts of any length.

use crate::lanes::{STRIPE_BYTES, TILE_BYTES};
use crate::path::{CopyPath, START, TileState, merge};

static ZEROS: [u8; 1024] = [0; 1024];

/// A tile of a payload while its bytes are hashed and, if wanted, copied.
pub struct Tile {
    path: &'static CopyPath,
    state: TileState,
    /// Bytes taken so far.
    position: usize,
    /// The bytes of the unfinished stripe, up to the position.
    begun: [u8; STRIPE_BYTES],
}

impl Tile {
    /// An empty tile. What it writes goes through the processor's caches.
    #[must_use]
    pub fn through_caches() -> Self {
        Self::new(CopyPath::best(0))
    }

    /// An empty tile. What it writes goes past the processor's caches, so a [`fence`](crate::fence) must follow the
    /// last write.
    #[must_use]
    pub fn past_caches() -> Self {
        Self::new(CopyPath::best(usize::MAX))
    }

    /// An empty tile whose bytes are hashed and copied by the given path.
    #[must_use]
    pub const fn new(path: &'static CopyPath) -> Self {
        Self {
            path,
            state: START,
            position: 0,
            begun: [0; STRIPE_BYTES],
        }
    }

    /// Bytes that the tile can still take.
    #[inline]
    #[must_use]
    pub const fn room(&self) -> usize {
        TILE_BYTES - self.position
    }

    /// Hashes the next bytes.
    ///
    /// # Panics
    /// If there are more bytes than [`room`](Self::room).
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        // SAFETY: nothing is written.
        unsafe { self.pass(bytes.as_ptr(), std::ptr::null_mut(), bytes.len()) };
    }

    /// Hashes the next bytes and, unless `to` is null, copies them there. Each byte is read once, so the hash is that
    /// of the bytes that are written.
    ///
    /// # Safety
    /// `from` is readable, and `to` is writable or null. They do not overlap.
    ///
    /// # Panics
    /// If there are more bytes than the tile can still take.
    #[inline]
    pub unsafe fn pass(&mut self, from: *const u8, to: *mut u8, length: usize) {
        assert!(length <= self.room(), "a tile holds {TILE_BYTES} bytes");
        let begun = self.position % STRIPE_BYTES;
        let head = if begun == 0 {
            0
        } else {
            length.min(STRIPE_BYTES - begun)
        };
        let stripes = (length - head) / STRIPE_BYTES;
        let tail = head + stripes * STRIPE_BYTES;
        let (after_head, after_stripes) = if to.is_null() {
            (to, to)
        } else {
            (to.wrapping_add(head), to.wrapping_add(tail))
        };
        // SAFETY: the three parts lie inside what the caller gives.
        unsafe {
            self.pass_part(from, to, head);
            self.pass_stripes(from.add(head), after_head, stripes);
            self.pass_part(from.add(tail), after_stripes, length - tail);
        }
    }

    /// The digest of the tile, as if the rest of it were zeros.
    #[must_use]
    pub fn digest(mut self) -> u64 {
        while self.room() > 0 {
            let to_block = ZEROS.len() - self.position % ZEROS.len();
            self.take(&ZEROS[..to_block]);
        }
        merge(&self.state)
    }

    /// Hashes, and copies, bytes within one stripe.
    ///
    /// # Safety
    /// The safety rules of [`pass`](Self::pass) hold.
    unsafe fn pass_part(&mut self, from: *const u8, to: *mut u8, length: usize) {
        let start = self.position % STRIPE_BYTES;
        let part = &mut self.begun[start..][..length];
        // SAFETY: the caller keeps the rules of the function, and the part is as long.
        unsafe {
            from.copy_to_nonoverlapping(part.as_mut_ptr(), length);
            if !to.is_null() {
                part.as_ptr().copy_to_nonoverlapping(to, length);
            }
        }
        self.position += length;
        if length > 0 && self.position.is_multiple_of(STRIPE_BYTES) {
            let (stripe, begun) = (self.position / STRIPE_BYTES - 1, self.begun);
            let nowhere = std::ptr::null_mut();
            // SAFETY: nothing is written.
            unsafe {
                let path = self.path;
                path.hash(&mut self.state, stripe, begun.as_ptr(), nowhere, 1);
            }
        }
    }

    /// Hashes, and copies, whole stripes.
    ///
    /// # Safety
    /// The safety rules of [`pass`](Self::pass) hold.
    unsafe fn pass_stripes(&mut self, from: *const u8, to: *mut u8, count: usize) {
        let first = self.position / STRIPE_BYTES;
        // SAFETY: the caller keeps the rules of the function.
        unsafe { self.path.hash(&mut self.state, first, from, to, count) };
        self.position += count * STRIPE_BYTES;
    }
}

/// XXH3-64 of one tile of at most [`TILE_BYTES`], filled up with zeros.
///
/// # Panics
/// If there are more than [`TILE_BYTES`] bytes.
#[must_use]
pub fn tile_digest(bytes: &[u8]) -> u64 {
    let mut tile = Tile::new(CopyPath::best(0));
    tile.take(bytes);
    tile.digest()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    /// Random bytes: the lengths are likely to be near limits, the parts have any alignment.
    fn any_tile() -> impl Strategy<Value = (Vec<u8>, Vec<usize>, usize, usize)> {
        let near = |limit: usize| limit.saturating_sub(2)..=TILE_BYTES.min(limit + 2);
        let length = prop_oneof![
            0..=TILE_BYTES,
            Just(TILE_BYTES),
            (0..=TILE_BYTES / STRIPE_BYTES).prop_flat_map(move |n| near(n * STRIPE_BYTES)),
            (0..=TILE_BYTES / ZEROS.len()).prop_flat_map(move |n| near(n * ZEROS.len())),
        ];
        length.prop_flat_map(|length| {
            let bytes = prop::collection::vec(any::<u8>(), length);
            let cut = prop_oneof![0..=length, (0..=length).prop_map(|at| at / 64 * 64)];
            let cuts = prop::collection::vec(cut, 0..6);
            (bytes, cuts, 0..130_usize, 0..130_usize)
        })
    }

    fn parts(length: usize, mut cuts: Vec<usize>) -> Vec<std::ops::Range<usize>> {
        cuts.extend([0, length]);
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// A buffer with those bytes at an offset, between other bytes.
    fn placed(bytes: &[u8], offset: usize) -> Vec<u8> {
        let mut buffer = vec![0xA5; offset + bytes.len() + 130];
        buffer[offset..][..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn on_every_path_bytes_arrive_and_their_digest_is_the_reference(
            (bytes, cuts, from, to) in any_tile()
        ) {
            let mut padded = bytes.clone();
            padded.resize(TILE_BYTES, 0);
            let expected = xxh3_64(&padded);
            let source = placed(&bytes, from);
            let blank = placed(&vec![0x5A; bytes.len()], to);
            let wanted = placed(&bytes, to);
            prop_assert_eq!(tile_digest(&bytes), expected);
            for path in CopyPath::all() {
                let (mut tile, mut reads) = (Tile::new(path), Tile::new(path));
                let mut target = blank.clone();
                for part in parts(bytes.len(), cuts.clone()) {
                    let (start, length) = (part.start, part.len());
                    reads.take(&bytes[part]);
                    // SAFETY: the part lies inside both buffers.
                    unsafe {
                        tile.pass(source[from + start..].as_ptr(), target[to + start..].as_mut_ptr(), length);
                    }
                }
                prop_assert_eq!(tile.digest(), expected, "{}", path.name);
                prop_assert_eq!(reads.digest(), expected, "{}", path.name);
                prop_assert!(target == wanted, "{} hashes and writes", path.name);
                let mut target = blank.clone();
                // SAFETY: the bytes lie inside both buffers.
                unsafe { path.copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), bytes.len()) };
                prop_assert!(target == wanted, "{} copies", path.name);
            }
        }
    }

    #[test]
    fn the_best_path_is_what_the_machine_has() {
        let names: Vec<_> = CopyPath::all().map(|path| path.name).collect();
        #[cfg(target_arch = "x86_64")]
        assert_eq!(names.contains(&"avx2"), is_x86_feature_detected!("avx2"));
        let large = CopyPath::best(usize::MAX).name;
        assert!(names.contains(&large), "{large}");
        assert_eq!(
            (names[0], names.last()),
            (CopyPath::best(0).name, Some(&"portable"))
        );
    }

    #[test]
    #[should_panic(expected = "a tile holds 16384 bytes")]
    fn a_tile_takes_no_more_than_it_holds() {
        let _ = tile_digest(&[0; TILE_BYTES + 1]);
    }
}
