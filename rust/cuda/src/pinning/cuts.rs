//! Cuts the memory of slots into strips. A strip is pinned as a whole or not at all.

use std::ops::Range;

const HUGE_PAGE: u64 = 2 << 20;

/// A cut of memory into strips of equal length. The last strip may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cuts {
    start: u64,
    nbytes: u64,
    /// Bytes of a strip.
    step: u64,
}

impl Cuts {
    /// Cuts memory into strips of at most `most` bytes. Strips begin on pages of the system, so that two
    /// registrations never share one, and if possible on slots.
    pub(crate) fn new(start: u64, nbytes: u64, slot_bytes: u64, page: u64, most: u64) -> Self {
        let grains = [
            common(slot_bytes, HUGE_PAGE.max(page)),
            common(slot_bytes, page),
            page,
        ];
        let grain = grains.into_iter().find(|grain| *grain <= most);
        let step = match grain {
            Some(grain) if start.is_multiple_of(page) => most / grain * grain,
            // There is no place to cut at.
            _ => nbytes,
        };
        Self {
            start,
            nbytes,
            step: step.min(nbytes),
        }
    }

    /// How many strips there are.
    pub(crate) fn count(&self) -> usize {
        self.nbytes.div_ceil(self.step) as usize
    }

    /// How many strips are as long as so many bytes: at least one.
    pub(crate) fn strips_in(&self, bytes: u64) -> usize {
        (bytes / self.step).max(1) as usize
    }

    /// Address and length of neighbouring strips, in bytes.
    pub(crate) fn span(&self, strips: &Range<usize>) -> (u64, u64) {
        let first = strips.start as u64 * self.step;
        let end = (strips.end as u64).saturating_mul(self.step);
        (self.start + first, end.min(self.nbytes) - first)
    }

    /// The strip that holds an address, and how many of its bytes are left from there on.
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

    /// How many whole slots lie in the first strips.
    pub(crate) fn slots(&self, strips: usize, slot_bytes: u64) -> usize {
        let bytes = (strips as u64).saturating_mul(self.step).min(self.nbytes);
        (bytes / slot_bytes) as usize
    }

    /// The strips that hold a slot.
    pub(crate) fn strips_of(&self, slot: usize, slot_bytes: u64) -> Range<usize> {
        let first = slot as u64 * slot_bytes;
        let last = first + slot_bytes - 1;
        (first / self.step) as usize..(last / self.step) as usize + 1
    }

    /// The most parts into which a stretch as long as a slot can be split.
    pub(crate) fn most_parts(&self, slot_bytes: u64) -> usize {
        (slot_bytes / self.step) as usize + 2
    }
}

/// The least common multiple with a power of two. For odd slot sizes and pages it is often far too long.
fn common(a: u64, b: u64) -> u64 {
    let shared = 1 << a.trailing_zeros().min(b.trailing_zeros());
    a.saturating_mul(b / shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const START: u64 = 7 * 16 * PAGE;

    fn cuts(nbytes: u64, slot_bytes: u64, page: u64, most: u64) -> Vec<(u64, u64)> {
        let cuts = Cuts::new(START, nbytes, slot_bytes, page, most);
        let strip = |index| cuts.span(&(index..index + 1));
        (0..cuts.count()).map(strip).collect()
    }

    #[test]
    fn strips_are_as_long_as_they_may_and_begin_on_slots_and_pages() {
        for (page, slot, slots, most) in [
            (PAGE, PAGE, 10, 3 * PAGE),
            (PAGE, 3 * PAGE / 2, 20, 10 * PAGE),
            (PAGE, 20_011, 9000, 100 << 20),
            (PAGE, 100, 7, 1 << 31),
            (16 * PAGE, 3 * PAGE, 1000, 100 * PAGE),
        ] {
            let all = cuts(slot * slots, slot, page, most);
            let mut next = START;
            for (address, bytes) in &all {
                assert_eq!(*address, next);
                assert!(
                    *bytes <= most && bytes % page == 0
                        || all.len() == 1
                        || *address == all[all.len() - 1].0
                );
                assert!(address.is_multiple_of(page) && (address - START).is_multiple_of(slot));
                next += bytes;
            }
            assert_eq!(next, START + slot * slots);
        }
        assert_eq!(cuts(10 * PAGE, PAGE, PAGE, 3 * PAGE).len(), 4);
        assert_eq!(cuts(100 * PAGE, PAGE, 16 * PAGE, 33 * PAGE).len(), 4);
    }

    #[test]
    fn slots_that_never_end_on_a_page_are_cut_on_pages() {
        let cuts = Cuts::new(START, 90_001 * 8, 90_001, PAGE, 3 * PAGE);
        assert_eq!(cuts.span(&(1..2)), (START + 3 * PAGE, 3 * PAGE));
        assert_eq!(cuts.span(&(1..4)), (START + 3 * PAGE, 9 * PAGE));
        assert_eq!(cuts.slots(7, 90_001), 0);
        assert_eq!(cuts.slots(8, 90_001), 1);
        assert_eq!(cuts.slots(cuts.count(), 90_001), 8);
        assert_eq!(cuts.strips_of(0, 90_001), 0..8);
        assert_eq!(cuts.strips_of(7, 90_001), 51..cuts.count());
        assert_eq!((cuts.strips_in(PAGE), cuts.strips_in(7 * PAGE)), (1, 2));
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
    fn memory_that_does_not_begin_on_a_page_is_one_strip() {
        let whole = |start, page| {
            let cuts = Cuts::new(start, 100 * PAGE, PAGE, page, page);
            assert_eq!((cuts.count(), cuts.span(&(0..1))), (1, (start, 100 * PAGE)));
        };
        whole(START + 8, PAGE);
        whole(START + PAGE, 16 * PAGE);
    }
}
