//! Least recently used: a doubly linked list threaded through a vector, every step O(1).

use super::Policy;
use crate::ids::EntryId;

/// End of the list.
const END: u32 = u32::MAX;
/// Mark of an entry that is not in the list.
const ABSENT: u32 = u32::MAX - 1;

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
}

/// Evicts what was used longest ago.
#[derive(Debug)]
pub struct Lru {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
}

impl Lru {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            links: Vec::new(),
            oldest: END,
            newest: END,
        }
    }

    fn join(&mut self, older: u32, newer: u32) {
        match older {
            END => self.oldest = newer,
            at => self.links[at as usize].newer = newer,
        }
        match newer {
            END => self.newest = older,
            at => self.links[at as usize].older = older,
        }
    }
}

impl Default for Lru {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Lru {
    fn insert(&mut self, id: EntryId) {
        self.remove(id);
        let at = id.0 as usize;
        if at >= self.links.len() {
            self.links.resize(
                at + 1,
                Link {
                    older: ABSENT,
                    newer: ABSENT,
                },
            );
        }
        self.join(self.newest, id.0);
        self.join(id.0, END);
    }

    fn remove(&mut self, id: EntryId) {
        let Some(link) = self.links.get_mut(id.0 as usize) else {
            return;
        };
        if link.older == ABSENT {
            return;
        }
        let Link { older, newer } = std::mem::replace(
            link,
            Link {
                older: ABSENT,
                newer: ABSENT,
            },
        );
        self.join(older, newer);
    }

    fn victim(&self) -> Option<EntryId> {
        (self.oldest != END).then_some(EntryId(self.oldest))
    }

    fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>()
    }
}
