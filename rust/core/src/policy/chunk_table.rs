//! A sparse vector that allocates memory in chunks, where it is used: no value ever moves.

use std::ops::{Index, IndexMut};

/// Elements in a chunk.
const CHUNK: usize = 1024;

/// Values by small number, in chunks of memory that are allocated where a number is first used.
#[derive(Debug)]
pub struct ChunkTable<T> {
    chunks: Vec<Option<Box<[T; CHUNK]>>>,
    filled: usize,
    blank: T,
}

impl<T: Copy> ChunkTable<T> {
    /// An empty table; what was never set is `blank`.
    pub const fn new(blank: T) -> Self {
        Self {
            chunks: Vec::new(),
            filled: 0,
            blank,
        }
    }

    /// The value of a number, `blank` if it was never set.
    #[inline]
    pub fn reach(&mut self, at: u32) -> &mut T {
        if self.get(at).is_none() {
            self.fill(at as usize / CHUNK);
        }
        &mut self[at]
    }

    #[cold]
    fn fill(&mut self, chunk: usize) {
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        self.chunks[chunk] = Some(Box::new([self.blank; CHUNK]));
        self.filled += 1;
    }

    /// The value of a number, if it or a neighbour in its chunk was ever reached.
    #[inline]
    pub fn get(&self, at: u32) -> Option<&T> {
        let chunk = self.chunks.get(at as usize / CHUNK)?.as_ref()?;
        Some(&chunk[at as usize % CHUNK])
    }

    /// Bytes of memory held.
    pub const fn bytes(&self) -> usize {
        self.filled * size_of::<[T; CHUNK]>() + self.chunks.capacity() * size_of::<usize>()
    }
}

/// The message of a panic if a chunk is missing.
const PLACE: &str = "the number was reached before";

impl<T> Index<u32> for ChunkTable<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        let chunk = self.chunks[at as usize / CHUNK].as_ref();
        &chunk.expect(PLACE)[at as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for ChunkTable<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        let chunk = self.chunks[at as usize / CHUNK].as_mut();
        &mut chunk.expect(PLACE)[at as usize % CHUNK]
    }
}
