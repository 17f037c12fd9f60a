//! Learned factors as bytes, for another instance of the policy: `docs/disk-format.md` lists them.

use super::hazard::{BINS, LEARNT, MOST_FACTOR};
use super::state::Reuse;

/// Version of the bytes: goes up with every change of what a number stands for.
const VERSION: u32 = 1;
const HEAD: usize = 16;
const BYTES: usize = HEAD + 8 * LEARNT;

impl Reuse {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        for number in [VERSION, BINS as u32, LEARNT as u32] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.threshold.to_le_bytes());
        for numbers in self.hazards.learnt() {
            numbers
                .iter()
                .for_each(|number| bytes.extend(number.to_le_bytes()));
        }
        bytes
    }

    /// Takes over all numbers, or none if one makes no sense.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Option<()> {
        if bytes.len() != BYTES {
            return None;
        }
        let words: Vec<[u8; 4]> = bytes.as_chunks().0.to_vec();
        let (head, rest) = words.split_at(HEAD / 4);
        let [version, bins, places, threshold] = head else {
            return None;
        };
        let expected = [VERSION, BINS as u32, LEARNT as u32];
        if [version, bins, places].map(|word| u32::from_le_bytes(*word)) != expected {
            return None;
        }
        let threshold = f32::from_le_bytes(*threshold);
        let numbers: Vec<f32> = rest.iter().map(|word| f32::from_le_bytes(*word)).collect();
        let (factors, exposed) = numbers.split_at(LEARNT);
        let range = 1.0 / MOST_FACTOR..=MOST_FACTOR;
        let sound = factors.iter().all(|factor| range.contains(factor))
            && exposed.iter().all(|&uses| uses >= 0.0 && uses.is_finite())
            && threshold >= 0.0
            && threshold.is_finite();
        if !sound {
            return None;
        }
        self.hazards.recall(factors, exposed);
        self.threshold = threshold;
        Some(())
    }
}

#[cfg(test)]
#[path = "../../../../../tests/rust/core/inside/learnt.rs"]
mod tests;
