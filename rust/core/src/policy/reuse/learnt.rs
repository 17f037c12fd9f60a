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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{EntryId, TenantId};
    use crate::policy::reuse::hazard::Features;
    use crate::policy::reuse::origin::{CheckpointKind, Origin};
    use crate::policy::{EntryKind, EntrySizes, Hints, NewEntry, NewRequest, Policy};

    const SHAPE: EntrySizes = EntrySizes {
        page: 1,
        window: 0,
        checkpoint: 3,
    };

    fn taught() -> Reuse {
        let mut policy = Reuse::new(SHAPE);
        let features = Features::new(CheckpointKind::End, 0, &Origin::UNKNOWN);
        for bin in 0..BINS {
            policy.hazards.learn(&features, bin, 1.0, bin % 3 == 0);
        }
        policy.threshold = 0.25;
        policy
    }

    #[test]
    fn another_instance_goes_on_from_what_one_learned() {
        let old = taught();
        let bytes = old.learnt();
        assert_eq!(bytes.len(), BYTES);
        let mut new = Reuse::new(SHAPE);
        assert_ne!(new.learnt(), bytes);
        assert!(new.recall(&bytes));
        assert_eq!(new.learnt(), bytes);
        let features = Features::new(CheckpointKind::End, 0, &Origin::UNKNOWN);
        for bin in 0..BINS {
            let index = |policy: &Reuse| policy.hazards.index(&features, bin);
            assert_eq!(index(&new), index(&old));
        }
    }

    #[test]
    fn numbers_that_make_no_sense_change_nothing() {
        let bytes = taught().learnt();
        let mut new = Reuse::new(SHAPE);
        let before = new.learnt();
        for (at, number) in [
            (0, 2_u32.to_le_bytes()),
            (4, 42_u32.to_le_bytes()),
            (8, 0_u32.to_le_bytes()),
            (12, f32::NAN.to_le_bytes()),
            (12, (-1.0_f32).to_le_bytes()),
            (HEAD, 0.0_f32.to_le_bytes()),
            (HEAD + 400, f32::INFINITY.to_le_bytes()),
            (BYTES - 4, f32::NAN.to_le_bytes()),
        ] {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&number);
            assert!(!new.recall(&bytes), "{at}");
            assert_eq!(new.learnt(), before, "{at}");
        }
        for length in [0, HEAD, BYTES - 1] {
            assert!(!new.recall(&bytes[..length]), "{length}");
        }
    }

    fn request<'a>(now: u64, boundaries: &'a [u64]) -> NewRequest<'a> {
        NewRequest {
            now,
            tokens: 100,
            boundaries,
            limit: boundaries.len(),
            resumed: 0,
            pages: 0,
            seen: 0,
            free: 0,
            hints: Hints::NONE,
        }
    }

    /// The learned bytes, and the gap before the turn, after a request wants an entry that entered unused for so long.
    fn met_again(unused: Option<u64>) -> (Vec<u8>, u32) {
        let mut policy = Reuse::new(SHAPE);
        policy.admit(&request(1 << 40, &[9]), &mut Vec::new());
        policy.finish(&[9], 1, 1);
        policy.enter(&NewEntry {
            id: EntryId(0),
            kind: EntryKind::Checkpoint,
            parent: None,
            depth: 1,
            size: 3,
            boundary: 1,
            tenant: TenantId::NONE,
            unused,
            proven: false,
        });
        policy.admit(&request((1 << 40) + 10, &[1, 2]), &mut Vec::new());
        let end = policy.records.find(2).unwrap();
        (policy.learnt(), policy.records.past[end].origin.gap)
    }

    #[test]
    fn an_entry_from_before_tells_its_age_and_teaches_nothing() {
        let nothing = Reuse::new(SHAPE).learnt();
        let (learnt, gap) = met_again(Some(3_600_000));
        assert_eq!(gap, 3_600_010);
        assert!(learnt == nothing);
        let (learnt, gap) = met_again(None);
        assert_eq!(gap, 10);
        assert!(learnt != nothing, "a new one teaches");
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_whole_or_not_at_all(changes in prop::collection::vec((0..BYTES, any::<u8>()), 1..9)) {
            let mut bytes = taught().learnt();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            let mut policy = Reuse::new(SHAPE);
            let before = policy.learnt();
            let expected = if policy.recall(&bytes) { bytes } else { before };
            prop_assert_eq!(policy.learnt(), expected);
        }
    }
}
