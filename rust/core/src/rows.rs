//! A table that grows by pieces: its values never move all at once.

use std::ops::{Index, IndexMut};

/// Rows of a piece.
const PIECE: usize = 1 << 12;

/// Rows of so many values each.
#[derive(Debug)]
pub struct Rows<T> {
    pieces: Vec<Vec<T>>,
    width: usize,
    len: usize,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self::new(1)
    }
}

impl<T> Rows<T> {
    /// No rows yet, of so many values each.
    #[must_use]
    pub const fn new(width: usize) -> Self {
        Self {
            pieces: Vec::new(),
            width,
            len: 0,
        }
    }

    /// Number of rows.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no rows.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The piece that the next row is in.
    fn last(&mut self) -> &mut Vec<T> {
        let at = self.len / PIECE;
        if at == self.pieces.len() {
            // The first piece grows with a small table.
            let room = if at == 0 { 0 } else { PIECE * self.width };
            self.pieces.push(Vec::with_capacity(room));
        }
        &mut self.pieces[at]
    }

    /// Adds a row of one value.
    #[inline]
    pub fn push(&mut self, value: T) {
        self.last().push(value);
        self.len += 1;
    }

    /// Takes the last row of one value.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        self.pieces[self.len / PIECE].pop()
    }

    /// Adds rows of this value until there are so many.
    pub fn grow(&mut self, len: usize, value: &T)
    where
        T: Clone,
    {
        while self.len < len {
            let width = self.width;
            let new = std::iter::repeat_n(value, width).cloned();
            self.last().extend(new);
            self.len += 1;
        }
    }

    /// Drops the rows from this one on; their memory is kept.
    pub fn truncate(&mut self, len: usize) {
        while self.len > len {
            let at = (self.len - 1) / PIECE;
            let left = len.max(at * PIECE);
            self.pieces[at].truncate((left - at * PIECE) * self.width);
            self.len = left;
        }
    }

    /// A row.
    ///
    /// # Panics
    /// If there are not so many rows, as [`row_mut`](Self::row_mut) does.
    #[inline]
    #[must_use]
    pub fn row(&self, at: usize) -> &[T] {
        &self.pieces[at / PIECE][at % PIECE * self.width..][..self.width]
    }

    /// A row, to be changed.
    #[inline]
    pub fn row_mut(&mut self, at: usize) -> &mut [T] {
        &mut self.pieces[at / PIECE][at % PIECE * self.width..][..self.width]
    }

    /// The value of a row of one, if there are so many.
    #[inline]
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&T> {
        self.pieces.get(at / PIECE)?.get(at % PIECE)
    }

    /// The value of a row of one, to be changed.
    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.pieces.get_mut(at / PIECE)?.get_mut(at % PIECE)
    }

    /// All values, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flatten()
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let values: usize = self.pieces.iter().map(Vec::capacity).sum();
        values * size_of::<T>() + self.pieces.capacity() * size_of::<Vec<T>>()
    }
}

/// All values, in order.
impl<T> IntoIterator for Rows<T> {
    type Item = T;
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Vec<T>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.pieces.into_iter().flatten()
    }
}

/// The value of a row of one.
impl<T> Index<usize> for Rows<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.pieces[at / PIECE][at % PIECE]
    }
}

impl<T> IndexMut<usize> for Rows<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.pieces[at / PIECE][at % PIECE]
    }
}
