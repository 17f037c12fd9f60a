//! The entries of a store: what to copy from engine blocks into slots.

use hybrid_pages::ids::SlotId;
use hybrid_pages::transfer::EntryCopy;

/// One entry: its class, and where its slots and engine blocks end in the lists of all entries.
#[derive(Debug, PartialEq, Eq)]
struct PackedEntry {
    class: usize,
    slots: usize,
    blocks: usize,
}

/// The entries that one store copies, packed in three lists.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoreEntries {
    entries: Vec<PackedEntry>,
    slots: Vec<SlotId>,
    blocks: Vec<u32>,
}

impl StoreEntries {
    /// An empty list with room for so many entries and engine blocks.
    #[must_use]
    pub fn with_capacity(entries: usize, blocks: usize) -> Self {
        Self {
            entries: Vec::with_capacity(entries),
            slots: Vec::new(),
            blocks: Vec::with_capacity(blocks),
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

    /// Adds an entry of a class, with its slots and its engine blocks.
    pub fn push(&mut self, class: usize, slots: &[SlotId], blocks: &[u32]) {
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
        });
    }

    /// The engine blocks of all entries, in the order of the entries.
    #[must_use]
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The class, the slots and the engine blocks of each entry.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[SlotId], &[u32])> {
        let mut from = (0, 0);
        self.entries.iter().map(move |entry| {
            let (slots, blocks) = std::mem::replace(&mut from, (entry.slots, entry.blocks));
            let (slots, blocks) = (slots..entry.slots, blocks..entry.blocks);
            (entry.class, &self.slots[slots], &self.blocks[blocks])
        })
    }

    /// The entries as a copy engine takes them.
    #[must_use]
    pub fn copies(&self) -> Vec<EntryCopy> {
        let copy = |(class, slots, blocks): (usize, &[SlotId], &[u32])| EntryCopy {
            class,
            slots: slots.to_vec(),
            blocks: blocks.iter().map(|&id| Some(id as usize)).collect(),
            checksum: None,
        };
        self.iter().map(copy).collect()
    }
}
