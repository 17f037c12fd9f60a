//! A vector whose places are reused, so that a small integer names an item while it lives.

use crate::rows::Rows;

/// Items by number. A number is given again only after its item was removed.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Rows<Option<T>>,
    vacant: Rows<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            items: Rows::new(1),
            vacant: Rows::new(1),
        }
    }

    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(at) = self.vacant.pop() {
            self.items[at as usize] = Some(item);
            return at;
        }
        let at = u32::try_from(self.items.len()).expect("fewer than 2^32 items: each has a slot");
        self.items.push(Some(item));
        at
    }

    pub(crate) fn remove(&mut self, at: u32) -> T {
        let item = self.items[at as usize]
            .take()
            .expect("a number in use names an item");
        self.vacant.push(at);
        item
    }

    pub(crate) fn get(&self, at: u32) -> &T {
        self.items[at as usize]
            .as_ref()
            .expect("a number in use names an item")
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> &mut T {
        self.items[at as usize]
            .as_mut()
            .expect("a number in use names an item")
    }

    /// Whether a number names an item.
    pub(crate) fn has(&self, at: u32) -> bool {
        self.items.get(at as usize).is_some_and(Option::is_some)
    }

    /// Items that live, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(self.items.iter())
            .filter_map(|(at, item)| item.as_ref().map(|item| (at, item)))
    }

    pub(crate) const fn len(&self) -> usize {
        self.items.len() - self.vacant.len()
    }

    /// Places ever used: every number is below this.
    pub(crate) const fn span(&self) -> usize {
        self.items.len()
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.items.bytes() + self.vacant.bytes()
    }
}
