//! Eight 64-bit lanes, and XXH3's two operations on them, for each instruction set.
//! <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>, "XXH3 algorithm overview".

/// Bytes of a tile; the last one of a payload counts as filled up with zeros.
pub const TILE_BYTES: usize = 16 << 10;
/// Bytes that the lanes take at a time.
pub(crate) const STRIPE_BYTES: usize = 64;

// XXH3 reads its input as little-endian numbers, and so do loads here.
const _: () = assert!(cfg!(target_endian = "little"));

const PRIME32_1: u64 = 0x9E37_79B1;

/// The state of XXH3, or one stripe, or one key.
///
/// # Safety
/// An implementation is used only on machines that have its instructions. Addresses point to [`STRIPE_BYTES`] bytes,
/// readable or writable as the method needs.
pub(crate) trait Lanes: Copy {
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// Writes past the caches, to an address that is a multiple of [`STREAM_ALIGN`], in any order with other
    /// writes until a [`fence`].
    unsafe fn stream(self, to: *mut u8);
    unsafe fn accumulate(self, stripe: Self, key: Self) -> Self;
    unsafe fn scramble(self, key: Self) -> Self;
}

/// Writes past the caches go to addresses that are multiples of this.
pub(crate) const STREAM_ALIGN: usize = 32;

/// Ends writes past the caches: other threads see them before what is written later.
#[inline(always)]
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Fetches bytes into the caches that are read soon.
#[inline(always)]
pub(crate) fn prefetch(_address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE, and a prefetch of an address that is not mapped does nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(_address.cast());
    }
}

/// The lanes in plain Rust; the compiler uses what every machine of the target has (SSE2, NEON).
#[derive(Clone, Copy)]
pub(crate) struct Portable([u64; 8]);

impl Lanes for Portable {
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller keeps the rules of the trait.
        Self(unsafe { from.cast::<[u64; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller keeps the rules of the trait.
        unsafe { to.cast::<[u64; 8]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller keeps the rules of the trait.
        unsafe { self.store(to) };
    }

    #[inline(always)]
    unsafe fn accumulate(self, stripe: Self, key: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            let keyed = stripe.0[lane] ^ key.0[lane];
            let product = (keyed & 0xFFFF_FFFF) * (keyed >> 32);
            self.0[lane]
                .wrapping_add(stripe.0[lane ^ 1])
                .wrapping_add(product)
        }))
    }

    #[inline(always)]
    unsafe fn scramble(self, key: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            let mixed = self.0[lane] ^ (self.0[lane] >> 47) ^ key.0[lane];
            mixed.wrapping_mul(PRIME32_1)
        }))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Avx2;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Lanes, PRIME32_1};

    #[derive(Clone, Copy)]
    pub(crate) struct Avx2([__m256i; 2]);

    impl Avx2 {
        #[inline(always)]
        fn of(lane: impl Fn(usize) -> __m256i) -> Self {
            Self([lane(0), lane(1)])
        }
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: the caller keeps the rules of the trait.
            Self::of(|half| unsafe { _mm256_loadu_si256(from.cast::<__m256i>().add(half)) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            let [low, high] = self.0;
            let to = to.cast::<__m256i>();
            // SAFETY: the caller keeps the rules of the trait.
            unsafe {
                _mm256_storeu_si256(to, low);
                _mm256_storeu_si256(to.add(1), high);
            }
        }

        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            let [low, high] = self.0;
            let to = to.cast::<__m256i>();
            // SAFETY: the caller keeps the rules of the trait.
            unsafe {
                _mm256_stream_si256(to, low);
                _mm256_stream_si256(to.add(1), high);
            }
        }

        #[inline(always)]
        unsafe fn accumulate(self, stripe: Self, key: Self) -> Self {
            // SAFETY: the machine has AVX2.
            Self::of(|half| unsafe {
                let (lanes, stripe) = (self.0[half], stripe.0[half]);
                let keyed = _mm256_xor_si256(stripe, key.0[half]);
                let product = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
                let swapped = _mm256_shuffle_epi32::<0b01_00_11_10>(stripe);
                _mm256_add_epi64(_mm256_add_epi64(lanes, swapped), product)
            })
        }

        #[inline(always)]
        unsafe fn scramble(self, key: Self) -> Self {
            // SAFETY: the machine has AVX2.
            Self::of(|half| unsafe {
                let lanes = self.0[half];
                let mixed = _mm256_xor_si256(lanes, _mm256_srli_epi64::<47>(lanes));
                let mixed = _mm256_xor_si256(mixed, key.0[half]);
                let prime = _mm256_set1_epi64x(PRIME32_1.cast_signed());
                let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(mixed), prime);
                let low = _mm256_mul_epu32(mixed, prime);
                _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high))
            })
        }
    }
}
