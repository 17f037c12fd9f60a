//! Changes that a follower is told: blocks that are stored in a medium, and blocks that were removed from it.

use std::sync::Arc;

use crate::ids::{NamespaceId, NodeId, PrefixKey};
use crate::prefix::IndexCell;
use crate::rows::Rows;

/// A medium that blocks are in. Each medium has announcements of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// The host's memory.
    Host,
    /// The tiers below the host that only this cache uses, together. Tiers that others share are not announced.
    Below,
}

impl Medium {
    pub(super) const ALL: [Self; 2] = [Self::Host, Self::Below];

    pub(super) const fn has(self, cell: IndexCell) -> bool {
        match self {
            Self::Host => cell.is_in_host(),
            Self::Below => cell.is_below(),
        }
    }
}

/// A block that is not announced any more, though the follower was told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedBlock {
    /// The block's namespace, which may be unknown by now.
    pub namespace: NamespaceId,
    /// Index of the block in prompts that have it.
    pub block_index: usize,
    /// Prefix key at the block's end.
    pub key: PrefixKey,
    /// Note of the block from [`Cache::note`](crate::cache::Cache::note); empty if there was none.
    pub note: Vec<u8>,
}

/// Consecutive blocks of one prefix that are announced and that the follower was not told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlocks {
    /// Namespace of the blocks.
    pub namespace: NamespaceId,
    /// Index of the first block in prompts that have it. The follower was told of the block before it earlier.
    pub block_index: usize,
    /// The prefix key at each block's end, and its note.
    pub blocks: Vec<(PrefixKey, Vec<u8>)>,
}

/// Changes of one medium for the follower: the removals come before what is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Removed blocks, deep ones first.
    pub removed: Vec<RemovedBlock>,
    /// Stored blocks. Blocks that go on from others come after those.
    pub stored: Vec<StoredBlocks>,
}

/// Bytes that a follower keeps with a block, since the block's key does not tell them.
pub(super) type Note = Arc<[u8]>;

/// Notes of known blocks, by the number of their boundary.
#[derive(Debug, Default)]
pub(super) struct BlockNotes {
    notes: Rows<Option<Note>>,
    bytes: usize,
}

impl BlockNotes {
    /// Makes room for boundaries whose numbers are below `span`.
    pub(super) fn resize(&mut self, span: usize) {
        self.notes.grow(span, &None);
    }

    /// Forgets the notes from a number on; they were taken.
    pub(super) fn truncate(&mut self, span: usize) {
        self.notes.truncate(span);
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.notes[node.0 as usize].is_some()
    }

    /// Keeps a note with a block that has none yet.
    pub(super) fn put(&mut self, node: NodeId, note: Note) {
        let place = &mut self.notes[node.0 as usize];
        if place.is_none() {
            self.bytes += note.len();
            *place = Some(note);
        }
    }

    pub(super) fn take(&mut self, node: NodeId) -> Option<Note> {
        let note = self.notes[node.0 as usize].take()?;
        self.bytes -= note.len();
        Some(note)
    }

    pub(super) fn copy(&self, node: NodeId) -> Vec<u8> {
        let note = self.notes[node.0 as usize].as_deref();
        note.unwrap_or_default().to_vec()
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.notes.bytes() + self.bytes
    }

    /// The first thing found that contradicts the counts.
    pub(super) fn audit(&self) -> Option<String> {
        let bytes = self.notes.iter().flatten().map(|note| note.len());
        (bytes.sum::<usize>() != self.bytes)
            .then(|| "the notes have other bytes than are counted".into())
    }
}
