//! Cuts the memory of slots into pieces that are pinned one by one.

const PAGE: u64 = 4096;
const HUGE_PAGE: u64 = 2 << 20;

/// A cut of memory into pieces of equal length. The last piece may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cuts {
    start: u64,
    nbytes: u64,
    /// Bytes of a piece.
    step: u64,
}

impl Cuts {
    /// Cuts memory into pieces of at most `most` bytes. Pieces begin on pages of the system, so that two
    /// registrations never share one, and if possible on slots.
    pub(crate) fn new(start: u64, nbytes: u64, slot_bytes: u64, most: u64) -> Self {
        let grains = [
            common(slot_bytes, HUGE_PAGE),
            common(slot_bytes, PAGE),
            PAGE,
        ];
        let grain = grains.into_iter().find(|grain| *grain <= most);
        let step = match grain {
            Some(grain) if start.is_multiple_of(PAGE) => most / grain * grain,
            // There is no place to cut at.
            _ => nbytes,
        };
        Self {
            start,
            nbytes,
            step: step.min(nbytes),
        }
    }

    /// How many pieces there are.
    pub(crate) fn count(&self) -> usize {
        self.nbytes.div_ceil(self.step) as usize
    }

    /// Address and length of a piece, in bytes.
    pub(crate) fn piece(&self, index: usize) -> (u64, u64) {
        let first = index as u64 * self.step;
        (self.start + first, self.step.min(self.nbytes - first))
    }

    /// The piece that holds an address, and how many of its bytes are left from there on.
    pub(crate) fn at(&self, address: u64) -> (usize, u64) {
        let offset = address - self.start;
        let index = offset / self.step;
        let end = ((index + 1) * self.step).min(self.nbytes);
        (index as usize, end - offset)
    }

    /// Splits a stretch of memory at the cuts. Yields address and length of each part.
    pub(crate) fn parts(self, address: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let (mut next, end) = (address, address + bytes);
        std::iter::from_fn(move || {
            (next < end).then(|| {
                let part = (next, self.at(next).1.min(end - next));
                next += part.1;
                part
            })
        })
    }

    /// How many whole slots lie in the first pieces.
    pub(crate) fn slots(&self, pieces: usize, slot_bytes: u64) -> usize {
        let bytes = (pieces as u64).saturating_mul(self.step).min(self.nbytes);
        (bytes / slot_bytes) as usize
    }

    /// The most parts into which a stretch as long as a slot can be split.
    pub(crate) fn most_parts(&self, slot_bytes: u64) -> usize {
        (slot_bytes / self.step) as usize + 2
    }
}

/// The least common multiple. For odd slot sizes and pages it is often far too long.
fn common(a: u64, b: u64) -> u64 {
    let shared = 1 << a.trailing_zeros().min(b.trailing_zeros());
    a.saturating_mul(b / shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 7 * PAGE;

    fn cuts(nbytes: u64, slot_bytes: u64, most: u64) -> Vec<(u64, u64)> {
        let cuts = Cuts::new(START, nbytes, slot_bytes, most);
        (0..cuts.count()).map(|index| cuts.piece(index)).collect()
    }

    #[test]
    fn pieces_are_as_long_as_they_may_and_begin_on_slots_and_pages() {
        for (slot, slots, most) in [
            (PAGE, 10, 3 * PAGE),
            (3 * PAGE / 2, 20, 10 * PAGE),
            (20_011, 9000, 100 << 20),
            (100, 7, 1 << 31),
        ] {
            let all = cuts(slot * slots, slot, most);
            let mut next = START;
            for (address, bytes) in &all {
                assert_eq!(*address, next);
                assert!(
                    *bytes <= most && bytes % PAGE == 0
                        || all.len() == 1
                        || *address == all[all.len() - 1].0
                );
                assert!(address.is_multiple_of(PAGE) && (address - START).is_multiple_of(slot));
                next += bytes;
            }
            assert_eq!(next, START + slot * slots);
        }
        assert_eq!(cuts(10 * PAGE, PAGE, 3 * PAGE).len(), 4);
    }

    #[test]
    fn slots_that_never_end_on_a_page_are_cut_on_pages() {
        let cuts = Cuts::new(START, 90_001 * 8, 90_001, 3 * PAGE);
        assert_eq!(cuts.piece(1), (START + 3 * PAGE, 3 * PAGE));
        assert_eq!(cuts.slots(7, 90_001), 0);
        assert_eq!(cuts.slots(8, 90_001), 1);
        assert_eq!(cuts.slots(cuts.count(), 90_001), 8);
        let parts: Vec<_> = cuts.parts(START + 3 * PAGE - 1, 2 + 3 * PAGE).collect();
        assert_eq!(
            parts,
            [
                (START + 3 * PAGE - 1, 1),
                (START + 3 * PAGE, 3 * PAGE),
                (START + 6 * PAGE, 1)
            ]
        );
    }

    #[test]
    fn memory_that_does_not_begin_on_a_page_is_one_piece() {
        let cuts = Cuts::new(START + 8, 100 * PAGE, PAGE, PAGE);
        assert_eq!((cuts.count(), cuts.piece(0)), (1, (START + 8, 100 * PAGE)));
    }
}
