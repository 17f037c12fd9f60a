//! Numbers that look random and are the same everywhere.

use std::sync::LazyLock;

/// Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// From 1 to `most`, each order of magnitude as often as any other.
    pub fn size(&mut self, most: u64) -> u64 {
        let magnitude = self.below(u64::from(most.max(1).ilog2()) + 1);
        ((1 << magnitude) + self.below(1 << magnitude)).min(most.max(1))
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Bytes with which to fill memory: stretches of what is made once, which is quicker.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        const STRETCH: usize = 4 << 10;
        static MADE: LazyLock<Vec<u8>> = LazyLock::new(|| {
            let mut random = Random::new(0);
            let words = (0..128 * STRETCH / 8).flat_map(|_| random.next().to_le_bytes());
            words.collect()
        });
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            let from = self.below((MADE.len() - STRETCH) as u64) as usize;
            bytes.extend_from_slice(&MADE[from..][..STRETCH.min(count - bytes.len())]);
        }
        bytes
    }
}
