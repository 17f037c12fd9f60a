//! Doubly linked lists threaded through one vector: a number is in at most one list, every step O(1).

/// End of a list.
const END: u32 = u32::MAX;
/// Mark of a number that is in no list.
const ABSENT: u32 = u32::MAX - 1;

#[derive(Debug, Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
    list: u32,
}

const UNLINKED: Link = Link {
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

/// Lists over small numbers.
#[derive(Debug)]
pub(super) struct Lists {
    links: Vec<Link>,
    ends: Vec<Ends>,
}

impl Lists {
    /// So many empty lists, with room for so many numbers before anything moves.
    pub(super) fn new(count: usize, room: usize) -> Self {
        let empty = Ends {
            first: END,
            last: END,
        };
        Self {
            links: Vec::with_capacity(room),
            ends: vec![empty; count],
        }
    }

    fn join(&mut self, list: u32, before: u32, after: u32) {
        match before {
            END => self.ends[list as usize].first = after,
            at => self.links[at as usize].after = after,
        }
        match after {
            END => self.ends[list as usize].last = before,
            at => self.links[at as usize].before = before,
        }
    }

    /// Puts a number at the end of a list, taking it out of the one that it is in.
    pub(super) fn push(&mut self, list: usize, item: u32) {
        self.remove(item);
        let at = item as usize;
        if at >= self.links.len() {
            self.links.resize(at + 1, UNLINKED);
        }
        let list = list as u32;
        self.links[at].list = list;
        self.join(list, self.ends[list as usize].last, item);
        self.join(list, item, END);
    }

    /// Takes a number out; tells which list it was in.
    pub(super) fn remove(&mut self, item: u32) -> Option<usize> {
        let link = self.links.get_mut(item as usize)?;
        if link.before == ABSENT {
            return None;
        }
        let Link {
            before,
            after,
            list,
        } = std::mem::replace(link, UNLINKED);
        self.join(list, before, after);
        Some(list as usize)
    }

    /// First of a list.
    pub(super) fn first(&self, list: usize) -> Option<u32> {
        let first = self.ends[list].first;
        (first != END).then_some(first)
    }

    /// Bytes of memory held.
    pub(super) const fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>() + self.ends.capacity() * size_of::<Ends>()
    }
}
