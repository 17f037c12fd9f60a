//! Follows the index, and remembers what the follower was told.

use super::changes::{BlockNotes, Medium};
use super::told::{Collection, Told};
use crate::ids::{NamespaceId, NodeId, PrefixKey};
use crate::prefix::{IndexCell, Observer, PrefixIndex};

/// The state that is kept once there is a follower.
#[derive(Debug)]
struct Following {
    notes: BlockNotes,
    media: [Told; 2],
}

/// The announcements of this cache to a follower. Without a follower they cost nothing.
#[derive(Debug, Default)]
pub(crate) struct Announced(Option<Box<Following>>);

impl Announced {
    /// Begins to follow what is announced. The follower was told nothing yet.
    pub(crate) fn follow(&mut self, index: &PrefixIndex) {
        if self.0.is_some() {
            return;
        }
        self.0 = Some(Box::new(Following {
            notes: BlockNotes::default(),
            media: Medium::ALL.map(|medium| Told::new(medium, index.roles().windows.len())),
        }));
        for node in index.all() {
            self.added(index, node);
        }
        let Some(following) = &mut self.0 else { return };
        for node in index.all() {
            for class in index.roles().pages_first() {
                for (told, medium) in following.media.iter_mut().zip(Medium::ALL) {
                    if medium.has(index.cell(node, class)) {
                        told.flipped(index, node, class, true);
                    }
                }
            }
        }
    }

    /// Announces nothing of a namespace any more; the index was told that it is retired.
    pub(crate) fn retire(&mut self, index: &PrefixIndex, namespace: NamespaceId) {
        let Some(following) = &mut self.0 else { return };
        for node in index.all() {
            if index.parent(node).is_none() && index.name(node).0 == namespace {
                for told in &mut following.media {
                    told.uproot(index, node);
                }
            }
        }
    }

    /// Collects a portion of the changes in a medium since the last call; `None` if there are more.
    pub(crate) fn collect(
        &mut self,
        index: &PrefixIndex,
        medium: Medium,
        to: &mut Collection,
    ) -> Option<()> {
        let Some(following) = &mut self.0 else {
            return Some(());
        };
        let Following { notes, media } = &mut **following;
        let told = match medium {
            Medium::Host => &mut media[0],
            Medium::Below => &mut media[1],
        };
        told.collect(index, notes, to)
    }

    /// The blocks of a prefix that the index knows and that have no note.
    pub(crate) fn unnoted(
        &self,
        index: &PrefixIndex,
        namespace: NamespaceId,
        keys: &[PrefixKey],
    ) -> Vec<usize> {
        let Some(following) = &self.0 else {
            return Vec::new();
        };
        let known = index.known_path(namespace, keys);
        let bare = known.filter(|&(_, node)| !following.notes.has(node));
        bare.map(|(block, _)| block).collect()
    }

    /// Gives blocks of a prefix their notes; those that have one keep it, and unknown ones get none.
    pub(crate) fn note(
        &mut self,
        index: &PrefixIndex,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        notes: impl Iterator<Item = (usize, Box<[u8]>)>,
    ) {
        let Some(following) = &mut self.0 else { return };
        let mut path = vec![None; keys.len()];
        for (block, node) in index.known_path(namespace, keys) {
            path[block] = Some(node);
        }
        for (block, note) in notes {
            if let Some(node) = path.get(block).copied().flatten() {
                following.notes.put(node, note.into());
            }
        }
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |following| {
            let media: usize = following.media.iter().map(Told::bytes).sum();
            media + following.notes.bytes()
        })
    }

    /// The first thing found that contradicts the index.
    pub(crate) fn audit(&self, index: &PrefixIndex) -> Option<String> {
        let following = self.0.as_ref()?;
        let media = || following.media.iter().find_map(|told| told.audit(index));
        following.notes.audit().or_else(media)
    }
}

impl Observer for Announced {
    fn added(&mut self, index: &PrefixIndex, node: NodeId) {
        let Some(following) = &mut self.0 else { return };
        following.notes.resize(index.span());
        for told in &mut following.media {
            if let Some(note) = told.added(index, node) {
                following.notes.put(node, note);
            }
        }
    }

    fn removed(&mut self, index: &PrefixIndex, node: NodeId) {
        let Some(following) = &mut self.0 else { return };
        let note = following.notes.take(node);
        for told in &mut following.media {
            told.removed(index, node, note.as_ref());
        }
    }

    fn moved(
        &mut self,
        index: &PrefixIndex,
        node: NodeId,
        class: usize,
        before: IndexCell,
        now: IndexCell,
    ) {
        let Some(following) = &mut self.0 else { return };
        if index.is_clearing() {
            return; // Each boundary is removed soon.
        }
        for (told, medium) in following.media.iter_mut().zip(Medium::ALL) {
            if medium.has(before) != medium.has(now) {
                told.flipped(index, node, class, medium.has(now));
            }
        }
    }

    fn cleared(&mut self, left: usize) {
        let Some(following) = &mut self.0 else { return };
        following.notes.truncate(left);
        for told in &mut following.media {
            if left == 0 {
                told.renumber();
            }
        }
    }
}
