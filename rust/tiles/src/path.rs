//! Copies and hashes stripes in one pass, by the best instructions that this machine has.
//!
//! A copy waits for memory, so instructions wider than AVX2 gain nothing. A write through the caches first reads the
//! bytes that it overwrites; a write past them does not. On some processors that pays for transfers larger than the
//! caches. See `benches/README.md`.

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

use crate::lanes::{Lanes, Portable, STREAM_ALIGN, STRIPE_BYTES, TILE_BYTES, prefetch};

/// The state of a tile's XXH3 between two stripes.
pub(crate) type TileState = [u64; 8];

/// Stripes of a tile; its last one has a key of its own.
const STRIPES: usize = TILE_BYTES / STRIPE_BYTES;
/// Stripes of a block of XXH3, after which its lanes are scrambled.
const BLOCK: usize = (SECRET.len() - STRIPE_BYTES) / 8;
const SCRAMBLE_KEY: usize = SECRET.len() - STRIPE_BYTES;
const LAST_KEY: usize = SCRAMBLE_KEY - 7;
/// How many bytes ahead to fetch into the caches: processors do not do so across memory pages.
const AHEAD: usize = 2048;

/// Arguments: state of the tile, index of its next stripe, source, target or null, number of stripes.
type Hash = unsafe fn(&mut TileState, usize, *const u8, *mut u8, usize);
/// Arguments: source, target, number of stripes.
type Copy = unsafe fn(*const u8, *mut u8, usize);

/// A way to copy and to hash: one set of instructions, through the processor's caches or past them.
#[derive(Debug)]
pub struct CopyPath {
    pub(crate) name: &'static str,
    hash: Hash,
    copy: Copy,
}

static PORTABLE: CopyPath = CopyPath {
    name: "portable",
    hash: hash_portable,
    copy: copy_portable,
};
#[cfg(target_arch = "x86_64")]
static AVX2: CopyPath = CopyPath {
    name: "avx2",
    hash: hash_avx2,
    copy: copy_avx2,
};
/// AVX2, with writes past the caches.
#[cfg(target_arch = "x86_64")]
static AVX2_STREAM: CopyPath = CopyPath {
    name: "avx2, past the caches",
    hash: stream_hash_avx2,
    copy: stream_copy_avx2,
};

/// Transfers of at least so many bytes are written past the caches.
#[cfg(target_arch = "x86_64")]
const STREAM_BYTES: usize = 2 << 20;

impl CopyPath {
    /// The paths that this machine has, the best one for small transfers first.
    pub(crate) fn all() -> impl Iterator<Item = &'static Self> {
        #[cfg(target_arch = "x86_64")]
        let wide = is_x86_feature_detected!("avx2").then_some([&AVX2, &AVX2_STREAM]);
        #[cfg(not(target_arch = "x86_64"))]
        let wide = None::<[_; 0]>;
        wide.into_iter().flatten().chain([&PORTABLE])
    }

    /// The best path for a transfer of so many bytes.
    #[must_use]
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
    pub fn best(bytes: usize) -> &'static Self {
        #[cfg(target_arch = "x86_64")]
        if bytes >= STREAM_BYTES && *STREAMS && is_x86_feature_detected!("avx2") {
            return &AVX2_STREAM;
        }
        Self::all().next().unwrap_or(&PORTABLE)
    }

    /// Hashes `count` stripes of a tile from its stripe `first` on and, unless `to` is null, copies them there. Other
    /// threads may see the copies only after this thread's next [`fence`](crate::fence).
    ///
    /// # Safety
    /// `from` is readable, and `to` is writable or null. They do not overlap.
    pub(crate) unsafe fn hash(
        &self,
        state: &mut TileState,
        first: usize,
        from: *const u8,
        to: *mut u8,
        count: usize,
    ) {
        debug_assert!(first + count <= STRIPES);
        // SAFETY: a path exists only where its instructions do; the rest is the caller's.
        unsafe { (self.hash)(state, first, from, to, count) };
    }

    /// Instructions that the path uses: `avx2` or `portable`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Copies `length` bytes. Other threads may see the copies only after this thread's next [`fence`](crate::fence).
    ///
    /// # Safety
    /// `from` is readable and `to` writable. They do not overlap.
    pub unsafe fn copy(&self, from: *const u8, to: *mut u8, length: usize) {
        let stripes = length / STRIPE_BYTES;
        let whole = stripes * STRIPE_BYTES;
        // SAFETY: a path exists only where its instructions do; the parts lie inside what the caller gives.
        unsafe {
            (self.copy)(from, to, stripes);
            from.add(whole)
                .copy_to_nonoverlapping(to.add(whole), length - whole);
        }
    }
}

/// Whether writes past the caches were measured to be faster on this kind of processor. It is asked once, since a
/// virtual machine answers slowly.
#[cfg(target_arch = "x86_64")]
static STREAMS: LazyLock<bool> = LazyLock::new(|| {
    let leaf = std::arch::x86_64::__cpuid(0);
    [leaf.ebx, leaf.edx, leaf.ecx]
        .map(u32::to_le_bytes)
        .as_flattened()
        == b"AuthenticAMD"
});

/// XXH3-64 of a tile from its state after the last stripe.
pub(crate) fn merge(state: &TileState) -> u64 {
    const KEY: usize = 11;
    let keys = SECRET[KEY..][..STRIPE_BYTES].as_chunks::<8>().0;
    let mut keyed = std::iter::zip(state, keys).map(|(lane, key)| lane ^ u64::from_le_bytes(*key));
    let mut hash = (TILE_BYTES as u64).wrapping_mul(PRIME64_1);
    while let (Some(left), Some(right)) = (keyed.next(), keyed.next()) {
        let product = u128::from(left) * u128::from(right);
        hash = hash.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    hash ^= hash >> 37;
    hash = hash.wrapping_mul(0x1656_6791_9E37_79F9);
    hash ^ (hash >> 32)
}

const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;

/// The state before the first stripe.
pub(crate) const START: TileState = [
    0xC2B2_AE3D,
    PRIME64_1,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x85EB_CA77,
    0x27D4_EB2F_1656_67C5,
    0x9E37_79B1,
];

/// Ways to hash bytes: only read them, write them through the caches, or write them past the caches.
const READ: u8 = 0;
const WRITE: u8 = 1;
const STREAM: u8 = 2;

#[inline(always)]
unsafe fn hash_with<L: Lanes, const WAY: u8>(
    state: &mut TileState,
    first: usize,
    from: *const u8,
    to: *mut u8,
    count: usize,
) {
    let key = |offset: usize| {
        let key = SECRET[offset..][..STRIPE_BYTES].as_ptr();
        // SAFETY: the slice is as long as a stripe.
        unsafe { L::load(key) }
    };
    // SAFETY: the state is as long as a stripe; addresses stay inside what the caller gives.
    unsafe {
        let mut lanes = L::load(state.as_ptr().cast());
        let (mut stripe, mut at) = (first, 0);
        let end = first + count;
        while stripe < end {
            let block_end = end.min(stripe - stripe % BLOCK + BLOCK);
            while stripe < block_end {
                prefetch(from.wrapping_add(at + AHEAD));
                let bytes = L::load(from.add(at));
                match WAY {
                    WRITE => bytes.store(to.add(at)),
                    STREAM => bytes.stream(to.add(at)),
                    _ => {}
                }
                let offset = if stripe == STRIPES - 1 {
                    LAST_KEY
                } else {
                    stripe % BLOCK * 8
                };
                lanes = lanes.accumulate(bytes, key(offset));
                stripe += 1;
                at += STRIPE_BYTES;
            }
            if stripe % BLOCK == 0 && stripe < STRIPES {
                lanes = lanes.scramble(key(SCRAMBLE_KEY));
            }
        }
        lanes.store(state.as_mut_ptr().cast());
    }
}

#[inline(always)]
unsafe fn copy_with<L: Lanes, const WAY: u8>(from: *const u8, to: *mut u8, stripes: usize) {
    for stripe in 0..stripes {
        let at = stripe * STRIPE_BYTES;
        if WAY == WRITE {
            prefetch(from.wrapping_add(at + AHEAD));
        }
        // SAFETY: the addresses stay inside what the caller gives.
        unsafe {
            let bytes = L::load(from.add(at));
            if WAY == STREAM {
                bytes.stream(to.add(at));
            } else {
                bytes.store(to.add(at));
            }
        }
    }
}

macro_rules! compile {
    ($hash:ident, $copy:ident, $lanes:ty, $way:expr $(, $feature:literal)?) => {
        $(#[target_feature(enable = $feature)])?
        unsafe fn $hash(
            state: &mut TileState,
            first: usize,
            from: *const u8,
            to: *mut u8,
            count: usize,
        ) {
            // SAFETY: the caller keeps the rules of the function; streams are aligned.
            unsafe {
                if to.is_null() {
                    hash_with::<$lanes, READ>(state, first, from, to, count);
                } else if $way == STREAM && to.addr().is_multiple_of(STREAM_ALIGN) {
                    hash_with::<$lanes, STREAM>(state, first, from, to, count);
                } else {
                    hash_with::<$lanes, WRITE>(state, first, from, to, count);
                }
            }
        }

        $(#[target_feature(enable = $feature)])?
        unsafe fn $copy(from: *const u8, to: *mut u8, stripes: usize) {
            // SAFETY: the caller keeps the rules of the function; streams are aligned.
            unsafe {
                if $way == STREAM && to.addr().is_multiple_of(STREAM_ALIGN) {
                    copy_with::<$lanes, STREAM>(from, to, stripes);
                } else {
                    copy_with::<$lanes, WRITE>(from, to, stripes);
                }
            }
        }
    };
}

compile!(hash_portable, copy_portable, Portable, WRITE);
#[cfg(target_arch = "x86_64")]
compile!(hash_avx2, copy_avx2, super::lanes::Avx2, WRITE, "avx2");
#[cfg(target_arch = "x86_64")]
compile!(
    stream_hash_avx2,
    stream_copy_avx2,
    super::lanes::Avx2,
    STREAM,
    "avx2"
);

/// XXH3's default secret.
const SECRET: &[u8; 192] = &[
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];
