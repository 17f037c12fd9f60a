//! Doubly linked lists threaded through one table: a number is in at most one list, every step O(1).

use super::chunk_table::ChunkTable;

/// End of a list.
const END: u32 = u32::MAX;
/// Mark of a number that is in no list.
const ABSENT: u32 = u32::MAX - 1;

#[derive(Debug, Clone, Copy)]
struct Neighbours {
    before: u32,
    after: u32,
    list: u32,
}

const UNLINKED: Neighbours = Neighbours {
    before: ABSENT,
    after: ABSENT,
    list: 0,
};

/// First and last of one list.
#[derive(Debug, Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

/// Doubly linked lists of small numbers. A number is in at most one list, and every step takes constant time.
#[derive(Debug)]
pub struct Lists {
    links: ChunkTable<Neighbours>,
    ends: Vec<Ends>,
}

impl Lists {
    /// Makes `count` empty lists.
    pub fn new(count: usize) -> Self {
        let empty = Ends {
            first: END,
            last: END,
        };
        Self {
            links: ChunkTable::new(UNLINKED),
            ends: vec![empty; count],
        }
    }

    /// Adds empty lists until there are `count`.
    pub fn grow(&mut self, count: usize) {
        if count > self.ends.len() {
            let empty = Ends {
                first: END,
                last: END,
            };
            self.ends.resize(count, empty);
        }
    }

    #[inline]
    fn join(&mut self, list: u32, before: u32, after: u32) {
        match before {
            END => self.ends[list as usize].first = after,
            at => self.links[at].after = after,
        }
        match after {
            END => self.ends[list as usize].last = before,
            at => self.links[at].before = before,
        }
    }

    /// Puts a number at the end of a list, taking it out of the one that it is in.
    pub fn push(&mut self, list: usize, item: u32) {
        let old = *self.links.reach(item);
        if old.before != ABSENT {
            self.join(old.list, old.before, old.after);
        }
        let ends = &mut self.ends[list];
        let before = std::mem::replace(&mut ends.last, item);
        match before {
            END => ends.first = item,
            at => self.links[at].after = item,
        }
        self.links[item] = Neighbours {
            before,
            after: END,
            list: list as u32,
        };
    }

    /// Takes a number out of its list, and says which list that was.
    pub fn remove(&mut self, item: u32) -> Option<usize> {
        let &Neighbours {
            before,
            after,
            list,
        } = self.links.get(item)?;
        if before == ABSENT {
            return None;
        }
        self.links[item] = UNLINKED;
        self.join(list, before, after);
        Some(list as usize)
    }

    /// Whether a number is in any list.
    pub fn has(&self, item: u32) -> bool {
        self.links
            .get(item)
            .is_some_and(|link| link.before != ABSENT)
    }

    /// The first number of a list.
    pub fn first(&self, list: usize) -> Option<u32> {
        let first = self.ends.get(list)?.first;
        (first != END).then_some(first)
    }

    /// Bytes of memory held.
    pub const fn bytes(&self) -> usize {
        self.links.bytes() + self.ends.capacity() * size_of::<Ends>()
    }
}
