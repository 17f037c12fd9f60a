//! What a follower may tell others that this cache has, by medium.
//!
//! A boundary is *usable* in a medium while a lookup of it alone could end there, and *announced* while it or one
//! below it is usable: so the announced boundaries of a prompt are dense from its start, and end where it would
//! resume. What the follower was told is kept beside what is so: changes that cancel out are never told,
//! and what waits to be told is never more than what was told and what is announced.

mod told;

use std::sync::Arc;

use self::told::Told;
use super::index::{Cell, Index};
use crate::ids::{NamespaceId, NodeId, PrefixKey};

/// Where announced blocks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// The host's memory.
    Host,
    /// The tiers below it that only this cache uses, together: what others share is theirs, too.
    Below,
}

impl Medium {
    const ALL: [Self; 2] = [Self::Host, Self::Below];

    const fn has(self, cell: Cell) -> bool {
        match self {
            Self::Host => cell.is_in_host(),
            Self::Below => cell.is_below(),
        }
    }
}

/// A block that the follower was told of and that is not announced any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Its namespace, which may be unknown by now.
    pub namespace: NamespaceId,
    /// Which block of its prompts it is.
    pub block_index: usize,
    /// Prefix key at its end.
    pub key: PrefixKey,
    /// What [`Cache::note`](crate::cache::Cache::note) was given for it; empty if nothing was.
    pub note: Vec<u8>,
}

/// Consecutive blocks of one prefix that are announced and that the follower was not told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Their namespace.
    pub namespace: NamespaceId,
    /// Which block of its prompts the first one is. The one before was told earlier.
    pub block_index: usize,
    /// The prefix key at each block's end, and its note.
    pub blocks: Vec<(PrefixKey, Vec<u8>)>,
}

/// What the follower is to be told: the removals, then the spans, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Deep blocks first.
    pub removed: Vec<Removed>,
    /// A span comes after the one that it goes on from.
    pub stored: Vec<Span>,
}

/// What a follower wants to know of a block that its key does not tell.
type Note = Arc<[u8]>;

/// Notes of known boundaries, by number.
#[derive(Debug, Default)]
struct Notes {
    notes: Vec<Option<Note>>,
    bytes: usize,
}

impl Notes {
    fn has(&self, node: NodeId) -> bool {
        self.notes[node.0 as usize].is_some()
    }

    /// The first one counts.
    fn put(&mut self, node: NodeId, note: Note) {
        let place = &mut self.notes[node.0 as usize];
        if place.is_none() {
            self.bytes += note.len();
            *place = Some(note);
        }
    }

    fn take(&mut self, node: NodeId) -> Option<Note> {
        let note = self.notes[node.0 as usize].take()?;
        self.bytes -= note.len();
        Some(note)
    }

    fn copy(&self, node: NodeId) -> Vec<u8> {
        let note = self.notes[node.0 as usize].as_deref();
        note.unwrap_or_default().to_vec()
    }
}

/// The state of one follower.
#[derive(Debug)]
pub(super) struct Announced {
    notes: Notes,
    media: [Told; 2],
}

impl Announced {
    fn new() -> Self {
        Self {
            notes: Notes::default(),
            media: Medium::ALL.map(Told::new),
        }
    }

    fn added(&mut self, index: &Index, node: NodeId) {
        self.notes.notes.resize(index.span(), None);
        for told in &mut self.media {
            if let Some(note) = told.added(index, node) {
                self.notes.put(node, note);
            }
        }
    }

    fn removed(&mut self, index: &Index, node: NodeId) {
        let note = self.notes.take(node);
        for told in &mut self.media {
            told.removed(index, node, note.as_ref());
        }
    }

    fn bytes(&self) -> usize {
        let media: usize = self.media.iter().map(Told::bytes).sum();
        media + self.notes.notes.capacity() * size_of::<Option<Note>>() + self.notes.bytes
    }

    fn audit(&self, index: &Index) -> Option<String> {
        let bytes = self.notes.notes.iter().flatten().map(|note| note.len());
        if bytes.sum::<usize>() != self.notes.bytes {
            return Some("the notes have other bytes than are counted".into());
        }
        self.media.iter().find_map(|told| told.audit(index))
    }
}

impl Index {
    /// Follows what is announced from now on; nothing was told yet.
    pub(crate) fn follow(&mut self) {
        if self.announced.is_some() {
            return;
        }
        let mut announced = Announced::new();
        for node in self.all() {
            announced.added(self, node);
        }
        for node in self.all() {
            for class in self.roles().pages_first() {
                for (told, medium) in announced.media.iter_mut().zip(Medium::ALL) {
                    if medium.has(self.cell(node, class)) {
                        told.flipped(self, node, class, true);
                    }
                }
            }
        }
        self.announced = Some(Box::new(announced));
    }

    /// Calls the follower, if there is one, with the index as it is.
    fn tell<T>(&mut self, call: impl FnOnce(&mut Announced, &Self) -> T) -> Option<T> {
        let mut announced = self.announced.take()?;
        let result = call(&mut announced, self);
        self.announced = Some(announced);
        Some(result)
    }

    pub(super) fn tell_added(&mut self, node: NodeId) {
        self.tell(|announced, index| announced.added(index, node));
    }

    pub(super) fn tell_removed(&mut self, node: NodeId) {
        self.tell(|announced, index| announced.removed(index, node));
    }

    /// An entry's cell was replaced.
    pub(super) fn tell_moved(&mut self, node: NodeId, class: usize, before: Cell, now: Cell) {
        self.tell(|announced, index| {
            for (told, medium) in announced.media.iter_mut().zip(Medium::ALL) {
                if medium.has(before) != medium.has(now) {
                    told.flipped(index, node, class, medium.has(now));
                }
            }
        });
    }

    pub(super) fn tell_cleared(&mut self) {
        self.tell(|announced, index| {
            for node in index.all() {
                announced.removed(index, node);
            }
            announced.notes.notes.clear();
            announced.media.iter_mut().for_each(Told::renumber);
        });
    }

    /// Announces nothing of a namespace any more, until it is freed.
    pub(crate) fn retire(&mut self, namespace: NamespaceId) {
        self.namespaces.retire(namespace);
        self.tell(|announced, index| {
            for node in index.all() {
                if index.parent(node).is_none() && index.name(node).0 == namespace {
                    for told in &mut announced.media {
                        told.uproot(index, node);
                    }
                }
            }
        });
    }

    /// What changed in a medium since the last call; with `anew`, everything that was told is removed, and
    /// what is announced is told again.
    pub(crate) fn take_changes(&mut self, medium: Medium, anew: bool) -> Changes {
        let changes = self.tell(|announced, index| {
            let Announced { notes, media } = announced;
            let told = match medium {
                Medium::Host => &mut media[0],
                Medium::Below => &mut media[1],
            };
            told.take_changes(index, notes, anew)
        });
        changes.unwrap_or_default()
    }

    /// The blocks of a prefix that the index knows and that have no note.
    pub(crate) fn unnoted(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Vec<usize> {
        let Some(announced) = &self.announced else {
            return Vec::new();
        };
        let known = self.known_path(namespace, keys);
        let bare = |node: NodeId| !announced.notes.has(node);
        let blocks = known.filter(|&(_, node)| bare(node));
        blocks.map(|(block, _)| block).collect()
    }

    /// Gives blocks of a prefix their notes; those that have one keep it, and unknown ones get none.
    pub(crate) fn note(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        notes: impl Iterator<Item = (usize, Box<[u8]>)>,
    ) {
        let mut path = vec![None; keys.len()];
        for (block, node) in self.known_path(namespace, keys) {
            path[block] = Some(node);
        }
        let Some(announced) = &mut self.announced else {
            return;
        };
        for (block, note) in notes {
            let Some(node) = path.get(block).copied().flatten() else {
                continue;
            };
            announced.notes.put(node, note.into());
        }
    }

    /// The leading blocks of a prefix that are known.
    fn known_path(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
    ) -> impl Iterator<Item = (usize, NodeId)> {
        let mut parent = None;
        keys.iter().enumerate().map_while(move |(block, key)| {
            parent = self.child(parent, block, namespace, key);
            parent.map(|node| (block, node))
        })
    }

    pub(super) fn announced_bytes(&self) -> usize {
        self.announced
            .as_ref()
            .map_or(0, |announced| announced.bytes())
    }

    pub(super) fn audit_announced(&self) -> Option<String> {
        self.announced
            .as_ref()
            .and_then(|announced| announced.audit(self))
    }
}
