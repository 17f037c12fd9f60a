//! The entries of a store: what to copy from engine blocks into slots.

use hybrid_pages::ids::SlotId;
use hybrid_pages::transfer::EntryCopy;

/// One entry: its class, where its slots and engine blocks end in the lists of all entries, and its tokens.
#[derive(Debug, PartialEq, Eq)]
struct PackedEntry {
    class: usize,
    slots: usize,
    blocks: usize,
    tokens: Option<usize>,
}

/// A state that is copied within the engine's memory, behind the step that makes it and before the next one: a store
/// reads the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateCopy {
    /// The index of the state's group.
    pub group: usize,
    /// The engine block that holds the state after the step.
    pub from: u32,
    /// The engine block that it is copied to.
    pub to: u32,
}

/// One entry of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreEntry<'a> {
    /// The index of its class.
    pub class: usize,
    /// Its slots, in order.
    pub slots: &'a [SlotId],
    /// The ids of its engine blocks, in order. An id of 0 means that there is none: a page that has not all of its
    /// tokens may lack those behind.
    pub blocks: &'a [u32],
    /// How many tokens the page has, counted from its start; `None` for all.
    pub tokens: Option<usize>,
}

impl StoreEntry<'_> {
    /// The engine blocks that there are, `None` in place of the others.
    pub fn sources(&self) -> impl Iterator<Item = Option<u32>> {
        let is_part = self.tokens.is_some();
        let source = move |&id: &u32| (id != 0 || !is_part).then_some(id);
        self.blocks.iter().map(source)
    }

    fn copy(&self) -> EntryCopy {
        EntryCopy {
            class: self.class,
            slots: self.slots.to_vec(),
            blocks: self.sources().map(|id| id.map(|id| id as usize)).collect(),
            checksum: None,
            tokens: self.tokens,
        }
    }
}

/// The entries that one store copies, packed in three lists.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoreEntries {
    entries: Vec<PackedEntry>,
    slots: Vec<SlotId>,
    blocks: Vec<u32>,
    copies: Vec<StateCopy>,
}

impl StoreEntries {
    /// An empty list with room for so many entries and engine blocks.
    #[must_use]
    pub fn with_capacity(entries: usize, blocks: usize) -> Self {
        Self {
            entries: Vec::with_capacity(entries),
            slots: Vec::new(),
            blocks: Vec::with_capacity(blocks),
            copies: Vec::new(),
        }
    }

    /// The number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry.
    pub fn push(&mut self, entry: StoreEntry<'_>) {
        let StoreEntry {
            class,
            slots,
            blocks,
            tokens,
        } = entry;
        if self.entries.is_empty() {
            // Most often nearly all entries are pages, which take equally many slots.
            self.slots.reserve(slots.len() * self.entries.capacity());
        }
        self.slots.extend_from_slice(slots);
        self.blocks.extend_from_slice(blocks);
        self.entries.push(PackedEntry {
            class,
            slots: self.slots.len(),
            blocks: self.blocks.len(),
            tokens,
        });
    }

    /// Adds a copy that is made before the entries are read. One of them reads what it copies to.
    pub fn push_state_copy(&mut self, copy: StateCopy) {
        self.copies.push(copy);
    }

    /// The copies that are made before the entries are read.
    #[must_use]
    pub fn state_copies(&self) -> &[StateCopy] {
        &self.copies
    }

    /// Makes an entry, by its index, read copies of its states. `groups` are those of its class, and `next` gives the
    /// engine blocks to copy to. Does nothing without such an entry.
    pub fn read_copies(
        &mut self,
        entry: usize,
        groups: &[usize],
        mut next: impl Iterator<Item = u32>,
    ) {
        let before = entry.checked_sub(1).and_then(|at| self.entries.get(at));
        let from = before.map_or(0, |before| before.blocks);
        let end = self.entries.get(entry).map_or(from, |entry| entry.blocks);
        for (block, &group) in self.blocks[from..end].iter_mut().zip(groups) {
            if let Some(to) = next.next() {
                let from = std::mem::replace(block, to);
                self.copies.push(StateCopy { group, from, to });
            }
        }
    }

    /// The engine blocks that the entries are read from, in the order of the entries.
    #[must_use]
    pub fn sources(&self) -> Vec<u32> {
        let mut sources = Vec::with_capacity(self.blocks.len());
        for entry in self.iter() {
            sources.extend(entry.sources().flatten());
        }
        sources
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = StoreEntry<'_>> {
        let mut from = (0, 0);
        self.entries.iter().map(move |entry| {
            let (slots, blocks) = std::mem::replace(&mut from, (entry.slots, entry.blocks));
            let (slots, blocks) = (slots..entry.slots, blocks..entry.blocks);
            StoreEntry {
                class: entry.class,
                slots: &self.slots[slots],
                blocks: &self.blocks[blocks],
                tokens: entry.tokens,
            }
        })
    }

    /// The entries as a copy engine takes them.
    #[must_use]
    pub fn copies(&self) -> Vec<EntryCopy> {
        self.iter().map(|entry| entry.copy()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_page_without_all_its_tokens_lacks_engine_blocks() {
        let mut entries = StoreEntries::default();
        for tokens in [Some(3), None] {
            entries.push(StoreEntry {
                class: 1,
                slots: &[SlotId(7)],
                blocks: &[5, 0],
                tokens,
            });
        }
        assert_eq!(entries.sources(), [5, 5, 0]);
        let [part, whole] = &entries.copies()[..] else {
            panic!("expected two entries")
        };
        assert_eq!(
            (part.tokens, &part.blocks[..]),
            (Some(3), &[Some(5), None][..])
        );
        assert_eq!(
            (whole.tokens, &whole.blocks[..]),
            (None, &[Some(5), Some(0)][..])
        );
    }
    #[test]
    fn an_entry_reads_what_its_states_are_copied_to() {
        let mut entries = StoreEntries::default();
        for (class, blocks) in [(0, &[3, 4][..]), (1, &[5, 6])] {
            entries.push(StoreEntry {
                class,
                slots: &[SlotId(7)],
                blocks,
                tokens: None,
            });
        }
        let mut taken = [8, 9].into_iter();
        entries.read_copies(2, &[2, 1], &mut taken);
        entries.read_copies(1, &[2, 1], &mut taken);
        assert_eq!(entries.sources(), [3, 4, 8, 9]);
        let copies = [(2, 5, 8), (1, 6, 9)];
        let copies = copies.map(|(group, from, to)| StateCopy { group, from, to });
        assert_eq!(entries.state_copies(), copies);
    }
}
