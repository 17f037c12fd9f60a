//! Boundaries of recent prompts, whether anything of them is in the cache or not: they show where prompts fork.

use hashbrown::HashSet;

/// The boundaries of recent prompts, by name, in two generations: the older one is forgotten when the younger is full.
#[derive(Debug)]
pub struct Seen {
    young: HashSet<u64>,
    old: HashSet<u64>,
    room: usize,
}

impl Seen {
    /// An empty memory for at least `room` boundaries, which never grows.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self {
            young: HashSet::with_capacity(room),
            old: HashSet::with_capacity(room),
            room,
        }
    }

    /// The number of leading boundaries that an earlier prompt had too.
    #[must_use]
    pub fn look(&self, boundaries: &[u64]) -> usize {
        let known = |name: &u64| self.young.contains(name) || self.old.contains(name);
        boundaries.iter().take_while(|name| known(name)).count()
    }

    /// The number of leading boundaries that an earlier prompt had too. All boundaries are remembered.
    pub fn visit(&mut self, boundaries: &[u64]) -> usize {
        let seen = self.look(boundaries);
        for &name in boundaries {
            if self.young.len() >= self.room && !self.young.contains(&name) {
                std::mem::swap(&mut self.young, &mut self.old);
                self.young.clear();
            }
            self.young.insert(name);
        }
        seen
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.young.allocation_size() + self.old.allocation_size()
    }
}
