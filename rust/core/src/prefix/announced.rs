//! What a follower may tell others that this cache has.
//!
//! A boundary is *usable* while a lookup of the host could end there, and *announced* while it or one below
//! it is usable: so the announced boundaries of a prompt are dense from its start, and end where it would
//! resume. What the follower was told is kept beside what is so: changes that cancel out are never told,
//! and what waits to be told is never more than what was told and what is announced.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::index::{Cell, Index};
use crate::ids::{NamespaceId, NodeId, PrefixKey};

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

/// One boundary, by the number of its node.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    /// Its page and all before it are in the host.
    rooted: bool,
    usable: bool,
    /// The follower was told.
    told: bool,
    /// Among those to look at; stays with the number when the node goes.
    queued: bool,
    /// Announced children, and one if it is usable: it is announced while there are any.
    reasons: u32,
}

/// Boundaries that were told and that the index has forgotten: with their block and their note.
type Gone = HashMap<(NamespaceId, PrefixKey), (u32, Option<Box<[u8]>>)>;

/// The state of one follower.
#[derive(Debug, Default)]
pub(super) struct Announced {
    marks: Vec<Mark>,
    /// Of each node and window class: how many blocks in a row, up to here and up to the window, have
    /// their page in the host.
    runs: Vec<u32>,
    notes: Vec<Option<Box<[u8]>>>,
    note_bytes: usize,
    queue: Vec<u32>,
    gone: Gone,
}

impl Announced {
    fn mark(&mut self, node: NodeId) -> &mut Mark {
        &mut self.marks[node.0 as usize]
    }

    fn is_announced(&self, node: NodeId) -> bool {
        self.marks[node.0 as usize].reasons > 0
    }

    fn enqueue(&mut self, node: NodeId) {
        if !std::mem::replace(&mut self.mark(node).queued, true) {
            self.queue.push(node.0);
        }
    }

    /// Follows a boundary that the index just got.
    fn added(&mut self, index: &Index, node: NodeId) {
        let span = index.span();
        self.marks.resize(span, Mark::default());
        self.notes.resize(span, None);
        self.runs.resize(span * index.roles().windows.len(), 0);
        if self.gone.is_empty() {
            return;
        }
        if let Some((_, note)) = self.gone.remove(&index.name(node)) {
            self.mark(node).told = true;
            self.enqueue(node);
            self.notes[node.0 as usize] = note;
        }
    }

    /// Takes leave of a boundary that the index is about to forget. Nothing of it is in the host.
    fn removed(&mut self, index: &Index, node: NodeId) {
        let mark = self.mark(node);
        let told = mark.told;
        *mark = Mark {
            queued: mark.queued,
            ..Mark::default()
        };
        let windows = index.roles().windows.len();
        self.runs[node.0 as usize * windows..][..windows].fill(0);
        let note = self.notes[node.0 as usize].take();
        if told {
            let block = index.boundary_block(node) as u32;
            self.gone.insert(index.name(node), (block, note));
        } else {
            self.note_bytes -= note.map_or(0, |note| note.len());
        }
    }

    /// An entry's bytes are in the host now, or not any more.
    fn flipped(&mut self, index: &Index, node: NodeId, class: usize, there: bool) {
        let roles = index.roles();
        if roles.attention == Some(class) {
            if !there {
                self.uproot(index, node);
            } else if index.parent(node).map_or_else(
                || !index.is_retired(node),
                |parent| self.mark(parent).rooted,
            ) {
                self.root(index, node);
            }
        } else if roles.recurrent == Some(class) {
            self.refresh(index, node);
        } else if let Some(window) = roles.windows.iter().position(|&(at, _)| at == class) {
            self.rerun(index, node, window, there);
        }
    }

    /// Pages from the start of a prompt up to this one are in the host, and maybe more behind it.
    fn root(&mut self, index: &Index, top: NodeId) {
        let page = index.roles().attention;
        let mut pending = vec![top];
        while let Some(node) = pending.pop() {
            self.mark(node).rooted = true;
            self.refresh(index, node);
            let there =
                |child: &NodeId| page.is_some_and(|page| index.cell(*child, page).is_in_host());
            pending.extend(index.children(node).filter(there));
        }
    }

    /// A page went: nothing from it on can be reached.
    fn uproot(&mut self, index: &Index, top: NodeId) {
        if !self.mark(top).rooted {
            return;
        }
        let announced = self.is_announced(top);
        let mut pending = vec![top];
        while let Some(node) = pending.pop() {
            let mark = self.mark(node);
            (mark.rooted, mark.usable) = (false, false);
            if std::mem::take(&mut mark.reasons) > 0 {
                self.enqueue(node);
            }
            let marks = &self.marks;
            pending.extend(
                index
                    .children(node)
                    .filter(|child| marks[child.0 as usize].rooted),
            );
        }
        if announced {
            self.drop_reason(index, index.parent(top));
        }
    }

    /// Counts again how many window pages in a row are there, here and behind.
    fn rerun(&mut self, index: &Index, top: NodeId, window: usize, there: bool) {
        let (class, blocks) = index.roles().windows[window];
        let windows = index.roles().windows.len();
        let most = u32::try_from(blocks).unwrap_or(u32::MAX);
        let at = |node: NodeId| node.0 as usize * windows + window;
        let before = |parent: NodeId| self.runs[at(parent)];
        let run = if there {
            // Without a block before, the run starts here.
            index
                .parent(top)
                .map_or(0, before)
                .saturating_add(1)
                .min(most)
        } else {
            0
        };
        let mut pending = vec![(top, run)];
        while let Some((node, run)) = pending.pop() {
            if std::mem::replace(&mut self.runs[at(node)], run) == run {
                continue;
            }
            self.refresh(index, node);
            let there = |child: &NodeId| index.cell(*child, class).is_in_host();
            let next = run.saturating_add(1).min(most);
            pending.extend(
                index
                    .children(node)
                    .filter(there)
                    .map(|child| (child, next)),
            );
        }
    }

    fn is_usable(&self, index: &Index, node: NodeId) -> bool {
        let roles = index.roles();
        let needed = index.boundary_block(node) + 1;
        let runs = &self.runs[node.0 as usize * roles.windows.len()..];
        let in_host = |class| Cell::is_in_host(index.cell(node, class));
        self.marks[node.0 as usize].rooted
            && roles.recurrent.is_none_or(in_host)
            && (roles.windows.iter().zip(runs))
                .all(|(&(_, window), &run)| run as usize >= window.min(needed))
    }

    fn refresh(&mut self, index: &Index, node: NodeId) {
        let usable = self.is_usable(index, node);
        if std::mem::replace(&mut self.mark(node).usable, usable) == usable {
            return;
        }
        if usable {
            self.add_reason(index, node);
        } else {
            self.drop_reason(index, Some(node));
        }
    }

    fn add_reason(&mut self, index: &Index, node: NodeId) {
        let mut next = Some(node);
        while let Some(node) = next {
            let mark = self.mark(node);
            mark.reasons += 1;
            if mark.reasons > 1 {
                break;
            }
            self.enqueue(node);
            next = index.parent(node);
        }
    }

    fn drop_reason(&mut self, index: &Index, mut next: Option<NodeId>) {
        while let Some(node) = next {
            let mark = self.mark(node);
            mark.reasons -= 1;
            if mark.reasons > 0 {
                break;
            }
            self.enqueue(node);
            next = index.parent(node);
        }
    }

    fn take_changes(&mut self, index: &Index, anew: bool) -> Changes {
        if anew {
            let all = index.all();
            all.for_each(|node| self.enqueue(node));
        }
        let mut removed = Vec::with_capacity(self.gone.len());
        for ((namespace, key), (block, note)) in self.gone.drain() {
            self.note_bytes -= note.as_ref().map_or(0, |note| note.len());
            removed.push(Removed {
                namespace,
                block_index: block as usize,
                key,
                note: note.unwrap_or_default().into(),
            });
        }
        let mut fresh = Vec::new();
        for at in std::mem::take(&mut self.queue) {
            let node = NodeId(at);
            let announced = self.is_announced(node);
            let mark = self.mark(node);
            mark.queued = false;
            if mark.told && (anew || !announced) {
                mark.told = false;
                let (namespace, key) = index.name(node);
                removed.push(Removed {
                    namespace,
                    block_index: index.boundary_block(node),
                    key,
                    note: self.note_of(node),
                });
            }
            if announced && !self.mark(node).told {
                fresh.push(node);
            }
        }
        removed.sort_unstable_by(|a, b| {
            let order = |it: &Removed| (Reverse(it.block_index), it.namespace.0);
            (order(a), a.key.as_bytes()).cmp(&(order(b), b.key.as_bytes()))
        });
        let starts = |node: &NodeId| {
            let before = index.parent(*node);
            before.is_none_or(|parent| self.marks[parent.0 as usize].told)
        };
        let mut heads: Vec<NodeId> = fresh.into_iter().rev().filter(starts).collect();
        let mut stored = Vec::with_capacity(heads.len());
        while let Some(head) = heads.pop() {
            stored.push(self.span(index, head, &mut heads));
        }
        Changes { removed, stored }
    }

    /// The blocks from `head` on that were not told, one after another; where they fork, the others are
    /// added to `heads`.
    fn span(&mut self, index: &Index, head: NodeId, heads: &mut Vec<NodeId>) -> Span {
        let mut blocks = Vec::new();
        let mut next = Some(head);
        while let Some(node) = next.take() {
            self.mark(node).told = true;
            blocks.push((index.name(node).1, self.note_of(node)));
            for child in index.children(node) {
                let mark = self.marks[child.0 as usize];
                if mark.told || mark.reasons == 0 {
                    continue;
                }
                if let Some(other) = next.replace(child) {
                    heads.push(other);
                }
            }
        }
        Span {
            namespace: index.name(head).0,
            block_index: index.boundary_block(head),
            blocks,
        }
    }

    fn note_of(&self, node: NodeId) -> Vec<u8> {
        let note = self.notes[node.0 as usize].as_deref();
        note.unwrap_or_default().to_vec()
    }

    fn bytes(&self) -> usize {
        self.marks.capacity() * size_of::<Mark>()
            + self.runs.capacity() * size_of::<u32>()
            + self.notes.capacity() * size_of::<Option<Box<[u8]>>>()
            + self.queue.capacity() * size_of::<u32>()
            + self.gone.allocation_size()
            + self.note_bytes
    }

    /// The first boundary of which something else is said than its path shows.
    fn audit(&self, index: &Index) -> Option<String> {
        let notes = self
            .notes
            .iter()
            .chain(self.gone.values().map(|(_, note)| note));
        if notes.flatten().map(|note| note.len()).sum::<usize>() != self.note_bytes {
            return Some("the notes have other bytes than are counted".into());
        }
        for node in index.all() {
            let at = node.0;
            let mark = self.marks[at as usize];
            let announced = |child: &NodeId| self.is_announced(*child);
            let children = index.children(node).filter(announced).count();
            if mark.usable != self.is_usable(index, node)
                || mark.reasons as usize != children + usize::from(mark.usable)
            {
                return Some(format!("node {at} has other reasons than are counted"));
            }
            if mark.told != (mark.reasons > 0) && !mark.queued {
                return Some(format!(
                    "what was told of node {at} is wrong, and nobody looks"
                ));
            }
        }
        None
    }
}

impl Index {
    /// Follows what is announced from now on; nothing was told yet.
    pub(crate) fn follow(&mut self) {
        if self.announced.is_some() {
            return;
        }
        let mut announced = Announced::default();
        for node in self.all() {
            announced.added(self, node);
        }
        for node in self.all() {
            for class in self.roles().pages_first() {
                if self.cell(node, class).is_in_host() {
                    announced.flipped(self, node, class, true);
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

    pub(super) fn tell_flipped(&mut self, node: NodeId, class: usize, there: bool) {
        self.tell(|announced, index| announced.flipped(index, node, class, there));
    }

    pub(super) fn tell_cleared(&mut self) {
        self.tell(|announced, index| {
            for node in index.all() {
                announced.removed(index, node);
            }
            // Numbers start anew.
            announced.marks.clear();
            announced.runs.clear();
            announced.notes.clear();
            announced.queue.clear();
        });
    }

    /// Announces nothing of a namespace any more, until it is freed.
    pub(crate) fn retire(&mut self, namespace: NamespaceId) {
        self.namespaces.retire(namespace);
        self.tell(|announced, index| {
            for node in index.all() {
                if index.parent(node).is_none() && index.name(node).0 == namespace {
                    announced.uproot(index, node);
                }
            }
        });
    }

    /// What changed since the last call; with `anew`, everything that was told is removed, and what is
    /// announced is told again.
    pub(crate) fn take_changes(&mut self, anew: bool) -> Changes {
        let changes = self.tell(|announced, index| announced.take_changes(index, anew));
        changes.unwrap_or_default()
    }

    /// The blocks of a prefix that the index knows and that have no note.
    pub(crate) fn unnoted(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Vec<usize> {
        let Some(announced) = &self.announced else {
            return Vec::new();
        };
        let known = self.known_path(namespace, keys);
        let bare = |node: NodeId| announced.notes[node.0 as usize].is_none();
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
            let place = &mut announced.notes[node.0 as usize];
            if place.is_none() {
                announced.note_bytes += note.len();
                *place = Some(note);
            }
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
