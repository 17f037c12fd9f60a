//! A vector that grows a chunk at a time: nothing that is in it ever moves.

use std::ops::{Index, IndexMut};

/// Elements a chunk.
const CHUNK: usize = 1024;

/// Values by small number.
#[derive(Debug)]
pub(super) struct Table<T> {
    chunks: Vec<Box<[T; CHUNK]>>,
    blank: T,
}

impl<T: Copy> Table<T> {
    /// An empty table; what was never set is `blank`.
    pub(super) const fn new(blank: T) -> Self {
        Self {
            chunks: Vec::new(),
            blank,
        }
    }

    /// Makes sure that a number has a place.
    #[inline]
    pub(super) fn reach(&mut self, at: u32) {
        if at as usize / CHUNK >= self.chunks.len() {
            self.grow(at);
        }
    }

    #[cold]
    fn grow(&mut self, at: u32) {
        while at as usize / CHUNK >= self.chunks.len() {
            self.chunks.push(Box::new([self.blank; CHUNK]));
        }
    }

    /// A value, if the number has a place.
    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<&T> {
        let chunk = self.chunks.get(at as usize / CHUNK)?;
        Some(&chunk[at as usize % CHUNK])
    }

    /// Bytes of memory held.
    pub(super) const fn bytes(&self) -> usize {
        self.chunks.len() * size_of::<[T; CHUNK]>() + self.chunks.capacity() * size_of::<usize>()
    }
}

impl<T> Index<u32> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        &self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Table<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }
}
