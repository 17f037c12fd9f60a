//! The cells of a slab, and which of them are taken.

use std::collections::BTreeSet;

/// The cells of one class. A cell that was never taken, or was punched, takes no room on disk. A cell that was given
/// back is *stale*: it takes room until it is punched.
#[derive(Debug)]
pub(crate) struct Cells {
    bytes: u64,
    live: u64,
    /// The first of the cells that were never taken.
    end: u64,
    stale: BTreeSet<u64>,
    punched: BTreeSet<u64>,
}

impl Cells {
    /// Makes cells of `bytes`, of which none is taken.
    pub(crate) const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            live: 0,
            end: 0,
            stale: BTreeSet::new(),
            punched: BTreeSet::new(),
        }
    }

    /// Makes cells of `bytes`. The cells in `taken`, each named once, are taken, and those between them are punched.
    pub(crate) fn over(bytes: u64, taken: &[u64]) -> Self {
        let mut cells = Self::new(bytes);
        let taken: BTreeSet<u64> = taken.iter().copied().collect();
        cells.live = taken.len() as u64;
        for &cell in &taken {
            cells.punched.extend(cells.end..cell);
            cells.end = cell + 1;
        }
        cells
    }

    /// Takes the first stale cell, which needs no new room on disk.
    pub(crate) fn take_stale(&mut self) -> Option<u64> {
        let cell = self.stale.pop_first()?;
        self.live += 1;
        Some(cell)
    }

    /// Takes the first cell that has no room on disk yet.
    pub(crate) fn take_new(&mut self) -> u64 {
        self.live += 1;
        self.punched.pop_first().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        })
    }

    /// Gives a cell back, which makes it stale.
    pub(crate) fn give(&mut self, cell: u64) {
        self.live -= 1;
        self.stale.insert(cell);
    }

    /// Takes a stale cell to punch. It is not handed out before [`punched`](Self::punched).
    pub(crate) fn take_to_punch(&mut self) -> Option<u64> {
        self.stale.pop_last()
    }

    /// Notes that a cell takes no room any more.
    pub(crate) fn punched(&mut self, cell: u64) {
        self.punched.insert(cell);
    }

    /// Total bytes of the cells that are taken.
    pub(crate) const fn live_bytes(&self) -> u64 {
        self.live * self.bytes
    }

    /// Total bytes of the cells that are stale.
    pub(crate) fn stale_bytes(&self) -> u64 {
        self.stale.len() as u64 * self.bytes
    }

    /// Bytes of one cell.
    pub(crate) const fn cell_bytes(&self) -> u64 {
        self.bytes
    }

    /// Ranges of cells before the last taken one that should take no room. They are punched when a slab is opened.
    pub(crate) fn gaps(&self) -> Vec<std::ops::Range<u64>> {
        let mut gaps: Vec<std::ops::Range<u64>> = Vec::new();
        for &cell in &self.punched {
            match gaps.last_mut() {
                Some(gap) if gap.end == cell => gap.end += 1,
                _ => gaps.push(cell..cell + 1),
            }
        }
        gaps
    }

    /// The first of the cells that were never taken.
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_reused_first_fit_and_counted() {
        let mut cells = Cells::over(10, &[1, 4]);
        assert_eq!((cells.gaps(), cells.end()), (vec![0..1, 2..4], 5));
        assert_eq!([0; 4].map(|_| cells.take_new()), [0, 2, 3, 5]);
        assert_eq!((cells.live_bytes(), cells.stale_bytes()), (60, 0));
        cells.give(3);
        cells.give(1);
        assert_eq!((cells.live_bytes(), cells.stale_bytes()), (40, 20));
        assert_eq!(cells.take_stale(), Some(1));
        assert_eq!(cells.take_to_punch(), Some(3));
        assert_eq!((cells.take_stale(), cells.take_new()), (None, 6));
        cells.punched(3);
        assert_eq!(cells.take_new(), 3);
    }
}
