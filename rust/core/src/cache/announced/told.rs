//! The state of one medium: which boundaries are announced, and which of them the follower was told of.

use std::cmp::Reverse;

use super::super::queries::PORTION;
use super::changes::{BlockNotes, Changes, Medium, Note, RemovedBlock, StoredBlocks};
use crate::ids::{NamespaceId, NodeId, PrefixKey};
use crate::prefix::PrefixIndex;
use crate::rows::Rows;
use crate::shards::Shards;

/// The state of one boundary, by the number of its node.
#[derive(Debug, Clone, Copy, Default)]
struct NodeMark {
    /// Whether the boundary's page and all pages before it are in the medium.
    rooted: bool,
    /// Whether a prompt can resume at the boundary from this medium alone.
    usable: bool,
    /// Whether the follower was told of the boundary.
    told: bool,
    /// Whether the boundary waits to be looked at. This stays with the number when the node goes.
    queued: bool,
    /// The number of announced children, plus one if the boundary is usable: it is announced while this is above 0.
    reasons: u32,
}

/// A boundary that was told and that the index has forgotten.
#[derive(Debug)]
struct GoneBoundary {
    name: (NamespaceId, PrefixKey),
    block: u32,
    note: Option<Note>,
}

/// Changes of one medium that are collected in portions.
#[derive(Debug, Default)]
pub(crate) struct Collection {
    begun: bool,
    /// Boundaries whose numbers are below this are told anew. Before the beginning: 1 if all are, otherwise 0.
    anew: usize,
    /// Boundaries to look at, once they were taken, and how many of them were looked at.
    queued: bool,
    queue: Rows<u32>,
    looked: usize,
    /// Those of them that are announced; how many of these are told, or come with one before them; and how many of
    /// these were checked.
    fresh: Rows<NodeId>,
    started: usize,
    checked: usize,
    /// Further boundaries that are announced behind one that was told.
    heads: Vec<NodeId>,
    gone: Shards<GoneBoundary>,
    /// The blocks that are removed, in portions: one long list would be moved as it grows.
    removed: Vec<RemovedBlock>,
    portions: Vec<Vec<RemovedBlock>>,
    stored: Vec<StoredBlocks>,
}

impl Collection {
    /// With `anew`, all that was told is removed first, and all that is announced is told again.
    pub(crate) fn new(anew: bool) -> Self {
        Self {
            anew: usize::from(anew),
            ..Self::default()
        }
    }

    /// All that was collected: this needs no lock.
    pub(crate) fn end(self) -> Changes {
        let gone = self.gone.into_iter().map(|gone| RemovedBlock {
            namespace: gone.name.0,
            block_index: gone.block as usize,
            key: gone.name.1,
            note: gone.note.map_or_else(Vec::new, |note| note.to_vec()),
        });
        let removed = self.portions.into_iter().flatten().chain(self.removed);
        let mut changes = Changes {
            removed: removed.chain(gone).collect(),
            stored: self.stored,
        };
        changes.removed.sort_unstable_by(|a, b| {
            let order = |it: &RemovedBlock| (Reverse(it.block_index), it.namespace.0);
            (order(a), a.key.as_bytes()).cmp(&(order(b), b.key.as_bytes()))
        });
        changes
    }
}

/// The follower's state of one medium.
#[derive(Debug)]
pub(super) struct Told {
    medium: Medium,
    marks: Rows<NodeMark>,
    /// For each node and window class: how many blocks in a row, of which the node's is the last, have their page in
    /// the medium. Not counted beyond the width of the window.
    runs: Rows<u32>,
    queue: Rows<u32>,
    gone: Shards<GoneBoundary>,
    /// Bytes of the notes in `gone`.
    note_bytes: usize,
}

impl Told {
    /// The state of a medium of which nothing was told.
    pub(super) fn new(medium: Medium, windows: usize) -> Self {
        Self {
            medium,
            marks: Rows::new(1),
            runs: Rows::new(windows),
            queue: Rows::new(1),
            gone: Shards::default(),
            note_bytes: 0,
        }
    }

    fn has(&self, index: &PrefixIndex, node: NodeId, class: usize) -> bool {
        self.medium.has(index.cell(node, class))
    }

    fn mark(&mut self, node: NodeId) -> &mut NodeMark {
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

    /// Follows a boundary that the index just got. Returns the note that the boundary had when it was here before.
    pub(super) fn added(&mut self, index: &PrefixIndex, node: NodeId) -> Option<Note> {
        let span = index.span();
        self.marks.grow(span, &NodeMark::default());
        self.runs.grow(span, &0);
        if self.gone.len() == 0 {
            return None;
        }
        let name = index.name(node);
        let hash = index.hash(name.0, &name.1);
        let gone = self.gone.remove(hash, |gone| gone.name == name)?;
        self.mark(node).told = true;
        self.enqueue(node);
        self.note_bytes -= bytes_of(gone.note.as_ref());
        gone.note
    }

    /// Stops following a boundary that the index is about to forget. Nothing of it is in the medium.
    pub(super) fn removed(&mut self, index: &PrefixIndex, node: NodeId, note: Option<&Note>) {
        let mark = self.mark(node);
        let told = mark.told;
        *mark = NodeMark {
            queued: mark.queued,
            ..NodeMark::default()
        };
        self.runs.row_mut(node.0 as usize).fill(0);
        if told {
            let block = index.boundary_block(node) as u32;
            self.note_bytes += bytes_of(note);
            let hash_of = |name: &(NamespaceId, PrefixKey)| index.hash(name.0, &name.1);
            let (name, note) = (index.name(node), note.cloned());
            let gone = GoneBoundary { name, block, note };
            let hash = hash_of(&name);
            self.gone
                .insert_unique(hash, gone, |gone| hash_of(&gone.name));
        }
    }

    /// Forgets the numbers of boundaries, which start anew; all boundaries were removed.
    pub(super) fn renumber(&mut self) {
        self.marks.truncate(0);
        self.runs.truncate(0);
        self.queue.truncate(0);
    }

    /// Notes that an entry's bytes are in the medium now, or are not any more.
    pub(super) fn flipped(&mut self, index: &PrefixIndex, node: NodeId, class: usize, there: bool) {
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

    /// Notes that the pages from the start of a prompt up to this one are in the medium, and maybe more behind it.
    fn root(&mut self, index: &PrefixIndex, top: NodeId) {
        let page = index.roles().attention;
        let mut pending = vec![top];
        while let Some(node) = pending.pop() {
            self.mark(node).rooted = true;
            self.refresh(index, node);
            let there = |child: &NodeId| page.is_some_and(|page| self.has(index, *child, page));
            pending.extend(index.children(node).filter(there));
        }
    }

    /// Notes that a page left: nothing from it on can be reached.
    pub(super) fn uproot(&mut self, index: &PrefixIndex, top: NodeId) {
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
            let rooted = |child: &NodeId| marks[child.0 as usize].rooted;
            pending.extend(index.children(node).filter(rooted));
        }
        if announced {
            self.count_reason(index, index.parent(top), false);
        }
    }

    /// Counts again how many window pages in a row are there, at a node and at those behind it.
    fn rerun(&mut self, index: &PrefixIndex, top: NodeId, window: usize, there: bool) {
        let (class, blocks) = index.roles().windows[window];
        let most = u32::try_from(blocks).unwrap_or(u32::MAX);
        let at = |node: NodeId| node.0 as usize;
        // Without a block before, the run starts here.
        let before = index
            .parent(top)
            .map_or(0, |node| self.runs.row(at(node))[window]);
        let run = if there {
            before.saturating_add(1).min(most)
        } else {
            0
        };
        let mut pending = vec![(top, run)];
        while let Some((node, run)) = pending.pop() {
            if std::mem::replace(&mut self.runs.row_mut(at(node))[window], run) == run {
                continue;
            }
            self.refresh(index, node);
            let there = |child: &NodeId| self.has(index, *child, class);
            let next = run.saturating_add(1).min(most);
            let children = index.children(node).filter(there);
            pending.extend(children.map(|child| (child, next)));
        }
    }

    fn is_usable(&self, index: &PrefixIndex, node: NodeId) -> bool {
        let roles = index.roles();
        let needed = index.boundary_block(node) + 1;
        let runs = self.runs.row(node.0 as usize);
        let has = |class| self.has(index, node, class);
        // Others know only whole blocks.
        !index.is_tail(node)
            && self.marks[node.0 as usize].rooted
            && roles.recurrent.is_none_or(has)
            && (roles.windows.iter().zip(runs))
                .all(|(&(_, window), &run)| run as usize >= window.min(needed))
    }

    fn refresh(&mut self, index: &PrefixIndex, node: NodeId) {
        let usable = self.is_usable(index, node);
        if std::mem::replace(&mut self.mark(node).usable, usable) != usable {
            self.count_reason(index, Some(node), usable);
        }
    }

    /// Counts a reason more or less, and another one of the boundary before if it is the first or was the last.
    fn count_reason(&mut self, index: &PrefixIndex, mut next: Option<NodeId>, more: bool) {
        while let Some(node) = next {
            let reasons = &mut self.mark(node).reasons;
            let others = if more { *reasons } else { *reasons - 1 };
            *reasons = others + u32::from(more);
            if others > 0 {
                break;
            }
            self.enqueue(node);
            next = index.parent(node);
        }
    }

    /// Collects a portion of the changes since the last call; `None` if there are more.
    pub(super) fn collect(
        &mut self,
        index: &PrefixIndex,
        notes: &BlockNotes,
        to: &mut Collection,
    ) -> Option<()> {
        let mut left = PORTION;
        to.portions.push(std::mem::take(&mut to.removed));
        if !std::mem::replace(&mut to.begun, true) {
            to.gone = std::mem::take(&mut self.gone);
            self.note_bytes = 0;
            to.anew *= self.marks.len();
        }
        while to.anew > 0 && left > 0 {
            (to.anew, left) = (to.anew - 1, left - 1);
            let node = NodeId(to.anew as u32);
            if self.forget(index, notes, node, to) && self.is_announced(node) {
                self.enqueue(node);
            }
        }
        if to.anew == 0 && !std::mem::replace(&mut to.queued, true) {
            to.queue = std::mem::take(&mut self.queue);
        }
        while let Some(&at) = to.queue.get(to.looked).filter(|_| left > 0) {
            (to.looked, left) = (to.looked + 1, left - 1);
            let node = NodeId(at);
            if (self.marks.get(at as usize)).is_some_and(|mark| mark.reasons > 0) {
                to.fresh.push(node); // It stays queued until it was told.
            } else if let Some(mark) = self.marks.get_mut(at as usize) {
                mark.queued = false;
                self.forget(index, notes, node, to);
            }
        }
        // Now every removal is known, and what is stored from here on comes after it.
        while left > 0 && to.queued && to.looked == to.queue.len() {
            let next = to.heads.pop().or_else(|| to.fresh.get(to.started).copied());
            let Some(head) = next else { break };
            to.started += usize::from(to.fresh.get(to.started) == Some(&head));
            left -= 1;
            let parent = (self.is_untold(head)).then(|| index.parent(head));
            if parent.is_some_and(|it| it.is_none_or(|it| self.marks[it.0 as usize].told)) {
                let stored = self.span(index, notes, head, &mut to.heads, &mut left);
                to.stored.push(stored);
            }
        }
        if left == 0 {
            return None;
        }
        // What has changed again, or come behind a boundary that was not told yet, waits for the next call.
        while let Some(&node) = to.fresh.get(to.checked).filter(|_| left > 0) {
            (to.checked, left) = (to.checked + 1, left - 1);
            if let Some(mark) = self.marks.get_mut(node.0 as usize) {
                mark.queued = false;
                if mark.told != (mark.reasons > 0) {
                    self.enqueue(node);
                }
            }
        }
        (left > 0).then_some(())
    }

    /// Whether a number is that of a boundary that is announced, and was not told.
    fn is_untold(&self, node: NodeId) -> bool {
        let mark = self.marks.get(node.0 as usize);
        mark.is_some_and(|mark| mark.reasons > 0 && !mark.told)
    }

    /// Removes a boundary, if the follower was told of it. Returns whether it was.
    fn forget(
        &mut self,
        index: &PrefixIndex,
        notes: &BlockNotes,
        node: NodeId,
        to: &mut Collection,
    ) -> bool {
        let mark = self.marks.get_mut(node.0 as usize);
        let told = mark.is_some_and(|mark| std::mem::take(&mut mark.told));
        if told {
            let (namespace, key) = index.name(node);
            to.removed.push(RemovedBlock {
                namespace,
                block_index: index.boundary_block(node),
                key,
                note: notes.copy(node),
            });
        }
        told
    }

    /// The blocks from `head` on that were not told, one after another, at most as many as are left; where they fork,
    /// or there are more, the others are added to `heads`.
    fn span(
        &mut self,
        index: &PrefixIndex,
        notes: &BlockNotes,
        head: NodeId,
        heads: &mut Vec<NodeId>,
        left: &mut usize,
    ) -> StoredBlocks {
        let mut blocks = Vec::new();
        let mut next = Some(head);
        while let Some(node) = next.take() {
            self.mark(node).told = true;
            blocks.push((index.name(node).1, notes.copy(node)));
            for child in index.children(node) {
                if !self.is_untold(child) {
                    continue;
                }
                if let Some(other) = next.replace(child) {
                    heads.push(other);
                }
            }
            *left = left.saturating_sub(1);
            if *left == 0 {
                heads.extend(next.take());
            }
        }
        StoredBlocks {
            namespace: index.name(head).0,
            block_index: index.boundary_block(head),
            blocks,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.marks.bytes()
            + self.runs.bytes()
            + self.queue.bytes()
            + self.gone.bytes()
            + self.note_bytes
    }

    /// The first boundary whose state differs from what its path shows.
    pub(super) fn audit(&self, index: &PrefixIndex) -> Option<String> {
        let medium = self.medium;
        let bytes = |gone: &GoneBoundary| bytes_of(gone.note.as_ref());
        if self.gone.iter().map(bytes).sum::<usize>() != self.note_bytes {
            return Some(format!(
                "{medium:?}: the notes have other bytes than are counted"
            ));
        }
        for node in index.all() {
            let at = node.0;
            let mark = self.marks[at as usize];
            let announced = |child: &NodeId| self.is_announced(*child);
            let children = index.children(node).filter(announced).count();
            if mark.usable != self.is_usable(index, node)
                || mark.reasons as usize != children + usize::from(mark.usable)
            {
                return Some(format!(
                    "{medium:?}: node {at} has other reasons than are counted"
                ));
            }
            if mark.told != (mark.reasons > 0) && !mark.queued {
                return Some(format!(
                    "{medium:?}: what was told of node {at} is wrong, and nobody looks"
                ));
            }
        }
        None
    }
}

fn bytes_of(note: Option<&Note>) -> usize {
    note.map_or(0, |note| note.len())
}
