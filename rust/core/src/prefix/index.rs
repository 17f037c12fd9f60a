//! Boundaries by key, linked to the boundary before and to those after, with their entries.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use smallvec::{SmallVec, smallvec};

use super::boundary::boundary_name;
use super::cell::{Fate, IndexCell};
use super::namespace::Namespaces;
use super::roles::Roles;
use super::tails::{TailCounts, check_chain};
use crate::error::{Error, Result};
use crate::ids::{EntryId, EntryKey, NamespaceId, NodeId, PrefixKey};
use crate::rows::Rows;
use crate::shards::Shards;
use crate::slab::Slab;

/// A boundary of a prefix: known, or with the hash of its name.
#[derive(Debug, Clone, Copy)]
enum IndexBoundary {
    Known(NodeId),
    Unknown(u64),
}

impl IndexBoundary {
    const fn known(self) -> Option<NodeId> {
        match self {
            Self::Known(node) => Some(node),
            Self::Unknown(_) => None,
        }
    }
}

#[cold]
fn not_chained(block: usize) -> Error {
    Error::InvalidArgument(format!(
        "key of block {block}: expected a hash chained to those before it, found one that is in use for another \
         prefix"
    ))
}

/// Hears of every change of where entries are, with the index as it is at that moment.
pub(crate) trait Observer {
    /// The index has a new boundary; nothing is there yet.
    fn added(&mut self, index: &PrefixIndex, node: NodeId);

    /// The index is about to forget a boundary; nothing is there any more.
    fn removed(&mut self, index: &PrefixIndex, node: NodeId);

    /// The cell of a class at a boundary was replaced.
    fn moved(
        &mut self,
        index: &PrefixIndex,
        node: NodeId,
        class: usize,
        before: IndexCell,
        now: IndexCell,
    );

    /// The index has forgotten the boundaries from number `left` on, and is about to forget the others. When none is
    /// left, numbers start anew.
    fn cleared(&mut self, left: usize);
}

/// Stands for no node in a link.
const NIL: u32 = u32::MAX;

#[derive(Debug)]
struct PrefixNode {
    key: PrefixKey,
    namespace: NamespaceId,
    block: u32,
    parent: u32,
    /// Children are a list: the first, then each one's `next`.
    child: u32,
    next: u32,
    prev: u32,
}

/// All known boundaries of all namespaces.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    roles: Roles,
    /// The namespaces. They hear of every boundary that comes and goes.
    pub(crate) namespaces: Namespaces,
    nodes: Slab<PrefixNode>,
    tails: TailCounts,
    /// The cells of each node, one per class. They are kept apart from nodes, so that any number of classes costs no
    /// more than it needs.
    cells: Rows<IndexCell>,
    table: Shards<u32>,
    hasher: DefaultHashBuilder,
    /// A clear that is under way: boundaries whose numbers are below this still have entries, and the table finds none
    /// any more. None is found or added until it ends.
    clearing: Option<(u32, Shards<u32>)>,
}

impl PrefixIndex {
    /// An empty index.
    pub(crate) fn new(roles: Roles) -> Self {
        Self {
            cells: Rows::new(roles.count),
            roles,
            namespaces: Namespaces::default(),
            nodes: Slab::new(),
            tails: TailCounts::default(),
            table: Shards::default(),
            hasher: DefaultHashBuilder::default(),
            clearing: None,
        }
    }

    pub(crate) const fn roles(&self) -> &Roles {
        &self.roles
    }

    fn is(&self, at: u32, namespace: NamespaceId, key: &PrefixKey) -> bool {
        let node = self.nodes.get(at);
        node.key == *key && node.namespace == namespace
    }

    /// The node under a key. Few prefixes fork, so the first child of `parent` is tried before the
    /// table: of a prompt that was stored at once, it is also next to it in memory.
    fn find(&self, parent: Option<NodeId>, namespace: NamespaceId, key: &PrefixKey) -> Option<u32> {
        let boundary = self.boundary_after(parent, namespace, key);
        boundary.known().map(|node| node.0)
    }

    fn boundary_after(
        &self,
        parent: Option<NodeId>,
        namespace: NamespaceId,
        key: &PrefixKey,
    ) -> IndexBoundary {
        let first = parent.map(|parent| self.nodes.get(parent.0).child);
        if let Some(at) = first.filter(|&at| at != NIL && self.is(at, namespace, key)) {
            return IndexBoundary::Known(NodeId(at));
        }
        let hash = self.hash(namespace, key);
        let found = self.table.find(hash, |&at| self.is(at, namespace, key));
        found.map_or(IndexBoundary::Unknown(hash), |&at| {
            IndexBoundary::Known(NodeId(at))
        })
    }

    /// A hash of a boundary's name.
    pub(crate) fn hash(&self, namespace: NamespaceId, key: &PrefixKey) -> u64 {
        self.hasher.hash_one((namespace, key))
    }

    /// Whether a key is known, for whatever prefix.
    pub(crate) fn has(&self, namespace: NamespaceId, key: &PrefixKey) -> bool {
        self.find(None, namespace, key).is_some()
    }

    fn follows(&self, at: u32, parent: Option<NodeId>, block: usize) -> bool {
        let node = self.nodes.get(at);
        node.block as usize == block && node.parent == parent.map_or(NIL, |parent| parent.0)
    }

    /// The boundary of `block` under `key`, if it is known as the one after `parent`.
    pub(crate) fn child(
        &self,
        parent: Option<NodeId>,
        block: usize,
        namespace: NamespaceId,
        key: &PrefixKey,
    ) -> Option<NodeId> {
        self.find(parent, namespace, key)
            .filter(|&at| self.follows(at, parent, block))
            .map(NodeId)
    }

    /// The boundary that ends a prefix, if it is known there. Chained keys vouch for those before them, so of
    /// these only the last is looked at.
    pub(crate) fn end(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Option<NodeId> {
        let (last, before) = keys.split_last()?;
        let at = self.find(None, namespace, last)?;
        let node = self.nodes.get(at);
        let follows = match before.last() {
            Some(key) => node.parent != NIL && self.nodes.get(node.parent).key == *key,
            None => node.parent == NIL,
        };
        (follows && node.block as usize == before.len()).then_some(NodeId(at))
    }

    /// The leading blocks of a prefix whose boundaries are known.
    pub(crate) fn known_path(
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

    /// The boundary of a block of a prefix, if it is known there; of chained keys, the one before vouches for the rest.
    pub(crate) fn at(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        block: usize,
    ) -> Option<NodeId> {
        match self.roles.attention {
            Some(_) => self.end(namespace, keys.get(..=block)?),
            None => self.child(None, block, namespace, keys.get(block)?),
        }
    }

    /// The boundaries of a prefix: from `tip` on, which is one of them, or from block `first` on, which is 0 where
    /// pages chain them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a key stands for another prefix already, here or in the index:
    /// such keys are not chained hashes, and publishing under them would mix prefixes up. So it is for a tail that is
    /// not the last key, or hangs from another block.
    pub(crate) fn path(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        tip: Option<NodeId>,
        first: usize,
    ) -> Result<Vec<Option<NodeId>>> {
        let chained = self.roles.attention.is_some();
        let first = tip.map_or(first, |node| self.boundary_block(node) + 1);
        check_chain(keys, first.saturating_sub(1))?;
        let mut path = Vec::with_capacity(1 + keys.len() - first);
        path.extend(tip.map(Some));
        let mut parent = tip;
        let mut unknown = HashTable::new();
        for (block, key) in keys.iter().enumerate().skip(first) {
            let boundary = self.boundary_after(parent, namespace, key);
            let fits = match boundary {
                IndexBoundary::Known(node) => self.follows(node.0, parent, block),
                IndexBoundary::Unknown(hash) => {
                    let hash_of = |&at: &usize| self.hash(namespace, &keys[at]);
                    unknown.reserve(keys.len() - block, hash_of);
                    let is_new = unknown.find(hash, |&at| keys[at] == *key).is_none();
                    unknown.insert_unique(hash, block, hash_of);
                    is_new
                }
            };
            if !fits {
                return Err(not_chained(block));
            }
            path.push(boundary.known());
            if chained {
                parent = boundary.known();
            }
        }
        Ok(path)
    }

    /// Adds the boundary of `block` after `parent`; the namespace must be known, the key not.
    pub(crate) fn add(
        &mut self,
        parent: Option<NodeId>,
        block: usize,
        namespace: NamespaceId,
        key: &PrefixKey,
        observer: &mut impl Observer,
    ) -> NodeId {
        let hash = self.hash(namespace, key);
        self.add_hashed(parent, block, namespace, key, hash, observer)
    }

    /// The boundary of `block` after `parent`, which is added unless it is known.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the key stands for another prefix already.
    pub(crate) fn child_or_new(
        &mut self,
        parent: Option<NodeId>,
        block: usize,
        namespace: NamespaceId,
        key: &PrefixKey,
        observer: &mut impl Observer,
    ) -> Result<NodeId> {
        match self.boundary_after(parent, namespace, key) {
            IndexBoundary::Known(node) if self.follows(node.0, parent, block) => Ok(node),
            IndexBoundary::Known(_) => Err(not_chained(block)),
            IndexBoundary::Unknown(hash) => {
                Ok(self.add_hashed(parent, block, namespace, key, hash, observer))
            }
        }
    }

    /// Adds a boundary as [`add`](Self::add) does, with the hash of its name.
    fn add_hashed(
        &mut self,
        parent: Option<NodeId>,
        block: usize,
        namespace: NamespaceId,
        key: &PrefixKey,
        hash: u64,
        observer: &mut impl Observer,
    ) -> NodeId {
        let next = parent.map_or(NIL, |parent| self.nodes.get(parent.0).child);
        let parent = parent.map_or(NIL, |parent| parent.0);
        let node = PrefixNode {
            key: *key,
            namespace,
            block: block as u32,
            parent,
            child: NIL,
            next,
            prev: NIL,
        };
        let at = self.nodes.insert(node);
        self.namespaces.add_node(namespace);
        self.tails.add(namespace, key);
        if parent != NIL {
            self.nodes.get_mut(parent).child = at;
        }
        if next != NIL {
            self.nodes.get_mut(next).prev = at;
        }
        self.cells.grow(self.nodes.span(), &IndexCell::EMPTY);
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        self.table.insert_unique(hash, at, |&at| {
            let node = nodes.get(at);
            hasher.hash_one((node.namespace, &node.key))
        });
        observer.added(self, NodeId(at));
        NodeId(at)
    }

    pub(crate) fn cell(&self, node: NodeId, class: usize) -> IndexCell {
        self.cells.row(node.0 as usize)[class]
    }

    /// The page without which an entry here can't be reached: for a page, the one of the block before.
    pub(crate) fn support(&self, node: NodeId, class: usize) -> Option<EntryId> {
        let page = self.roles.attention?;
        let at = if class == page {
            self.parent(node)?
        } else {
            node
        };
        self.cell(at, page).entry()
    }

    fn cells_mut(&mut self, node: NodeId) -> &mut [IndexCell] {
        self.cells.row_mut(node.0 as usize)
    }

    /// Puts an entry's cell in place. Says whether it follows a whole one that went.
    pub(crate) fn set(
        &mut self,
        node: NodeId,
        class: usize,
        cell: IndexCell,
        observer: &mut impl Observer,
    ) -> bool {
        let place = &mut self.cells_mut(node)[class];
        let before = std::mem::replace(place, cell);
        observer.moved(self, node, class, before, cell);
        before == IndexCell::GONE
    }

    /// The boundary before, if the tree has one.
    pub(crate) fn parent(&self, node: NodeId) -> Option<NodeId> {
        let parent = self.nodes.get(node.0).parent;
        (parent != NIL).then_some(NodeId(parent))
    }

    /// The boundaries after.
    pub(crate) fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        let some = |at: u32| (at != NIL).then_some(at);
        let first = some(self.nodes.get(node.0).child);
        std::iter::successors(first, move |&at| some(self.nodes.get(at).next)).map(NodeId)
    }

    /// Boundaries below this one, each after those below it: at most so many, and only those that `has` leads to.
    pub(crate) fn ends_below(
        &self,
        top: NodeId,
        has: impl Fn(NodeId) -> bool,
        most: usize,
    ) -> Vec<NodeId> {
        let mut found = Vec::new();
        let mut path = vec![(top, self.children(top))];
        while let Some((node, children)) = path.last_mut() {
            if let Some(child) = children.find(|&child| has(child)) {
                path.push((child, self.children(child)));
                continue;
            }
            let end = *node;
            path.pop();
            if path.is_empty() || found.len() == most {
                break;
            }
            found.push(end);
        }
        found
    }

    /// Every boundary.
    pub(crate) fn all(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|(at, _)| NodeId(at))
    }

    /// Numbers of boundaries are below this.
    pub(crate) const fn span(&self) -> usize {
        self.nodes.span()
    }

    pub(crate) fn name(&self, node: NodeId) -> (NamespaceId, PrefixKey) {
        let node = self.nodes.get(node.0);
        (node.namespace, node.key)
    }

    /// Whether a boundary is a tail.
    pub(crate) fn is_tail(&self, node: NodeId) -> bool {
        self.nodes.get(node.0).key.is_tail()
    }

    /// How many tokens the known tails have that hang from the block with this key, or from the start; ascending.
    pub(crate) fn tail_lengths(
        &self,
        namespace: NamespaceId,
        before: Option<&PrefixKey>,
    ) -> impl Iterator<Item = u32> + use<'_> {
        self.tails.lengths(namespace, PrefixKey::stem_of(before))
    }

    pub(crate) fn boundary_block(&self, node: NodeId) -> usize {
        self.nodes.get(node.0).block as usize
    }

    /// Whether a number names a boundary; that may be another one by now.
    pub(crate) fn knows(&self, node: NodeId) -> bool {
        self.nodes.has(node.0)
    }

    /// Whether the namespace of a boundary was retired.
    pub(crate) fn is_retired(&self, node: NodeId) -> bool {
        self.namespaces.is_retired(self.nodes.get(node.0).namespace)
    }

    /// The name of an entry in any process.
    pub(crate) fn key(&self, node: NodeId, class_index: usize) -> EntryKey {
        let node = self.nodes.get(node.0);
        EntryKey {
            namespace: self.namespaces.identity(node.namespace),
            prefix: node.key,
            block_index: node.block as usize,
            class_index,
        }
    }

    /// The tenant whose namespace a boundary is in, as a hash.
    pub(crate) fn tenant(&self, node: NodeId) -> u64 {
        let namespace = self.nodes.get(node.0).namespace;
        self.namespaces.known_tenant(namespace)
    }

    /// Block that a boundary ends, and the policies' name of the boundary.
    pub(crate) fn boundary(&self, node: NodeId) -> (usize, u64) {
        let node = self.nodes.get(node.0);
        let seed = self.namespaces.known_seed(node.namespace);
        (node.block as usize, boundary_name(seed, &node.key))
    }

    /// Asks an entry to leave, and for a page also all that hangs from it: each page before the entries that hang from
    /// it, as far down as `leave` finds something to take. Forgets boundaries that have nothing left.
    pub(crate) fn take_out(
        &mut self,
        top: NodeId,
        class: usize,
        observer: &mut impl Observer,
        mut leave: impl FnMut(&Self, NodeId, EntryId) -> Fate,
    ) {
        let namespace = self.nodes.get(top.0).namespace;
        let before = self.nodes.len();
        if self.roles.attention == Some(class) {
            self.ask_below(top, observer, &mut leave);
        } else {
            self.ask(top, class, observer, &mut leave);
            if self.is_bare(top) {
                self.remove(top.0, false, observer);
            }
        }
        // Boundaries below another one are in the same namespace.
        let removed = before - self.nodes.len();
        self.namespaces.remove_nodes(namespace, removed);
    }

    /// Asks every entry of a boundary and of those below.
    fn ask_below(
        &mut self,
        top: NodeId,
        observer: &mut impl Observer,
        leave: &mut impl FnMut(&Self, NodeId, EntryId) -> Fate,
    ) {
        // Boundaries to ask, and whether the one before was forgotten.
        let mut pending: SmallVec<[_; 4]> = smallvec![(top.0, false)];
        while let Some((at, orphan)) = pending.pop() {
            let mut elsewhere = true;
            for class in self.roles.pages_first() {
                elsewhere &= self.ask(NodeId(at), class, observer, leave);
            }
            if elsewhere {
                continue;
            }
            let bare = self.is_bare(NodeId(at));
            let mut child = self.nodes.get(at).child;
            while child != NIL {
                pending.push((child, bare));
                child = self.nodes.get(child).next;
            }
            if bare {
                self.remove(at, orphan, observer);
            }
        }
    }

    /// Asks one entry to leave. Returns whether there was none, or it is elsewhere.
    fn ask(
        &mut self,
        node: NodeId,
        class: usize,
        observer: &mut impl Observer,
        leave: &mut impl FnMut(&Self, NodeId, EntryId) -> Fate,
    ) -> bool {
        let Some(id) = self.cell(node, class).entry() else {
            return true;
        };
        let cell = match leave(self, node, id) {
            Fate::Elsewhere => return true,
            Fate::Stays(cell) => cell,
            Fate::Gone { known: true } => IndexCell::GONE,
            Fate::Gone { known: false } => IndexCell::EMPTY,
        };
        self.set(node, class, cell, observer);
        false
    }

    /// Whether a boundary has no reason left to be known: its page, where there are pages, or else any entry.
    fn is_bare(&self, node: NodeId) -> bool {
        let cells = self.cells.row(node.0 as usize);
        match self.roles.attention {
            Some(page) => cells[page].entry().is_none(),
            None => cells.iter().all(|cell| cell.entry().is_none()),
        }
    }

    /// Forgets a boundary; `orphan` if the one before it is forgotten already.
    fn remove(&mut self, at: u32, orphan: bool, observer: &mut impl Observer) {
        observer.removed(self, NodeId(at));
        let node = self.nodes.remove(at);
        if !orphan {
            if node.prev != NIL {
                self.nodes.get_mut(node.prev).next = node.next;
            } else if node.parent != NIL {
                self.nodes.get_mut(node.parent).child = node.next;
            }
            if node.next != NIL {
                self.nodes.get_mut(node.next).prev = node.prev;
            }
        }
        self.cells_mut(NodeId(at)).fill(IndexCell::EMPTY);
        if self.is_clearing() {
            return;
        }
        self.tails.remove(node.namespace, &node.key);
        let hash = self.hasher.hash_one((node.namespace, &node.key));
        let removed = self.table.remove(hash, |&other| other == at);
        removed.expect("every node is in the table under its key");
    }

    /// Begins to forget every boundary: from now on none is found. [`clear_on`](Self::clear_on) ends it.
    pub(crate) fn clear(&mut self, observer: &mut impl Observer) {
        observer.cleared(self.nodes.span());
        self.tails.clear();
        self.clearing = Some((self.nodes.span() as u32, std::mem::take(&mut self.table)));
    }

    /// Whether a clear is under way.
    pub(crate) const fn is_clearing(&self) -> bool {
        self.clearing.is_some()
    }

    /// Adds the entries of so many boundaries that a clear has left to `gone`, those of a boundary after its page.
    /// When these were the last, returns what is to be dropped when the lock is free.
    pub(crate) fn clear_on<O: Observer>(
        &mut self,
        most: usize,
        gone: &mut Vec<EntryId>,
        observer: &mut O,
    ) -> Option<impl Sized + use<O>> {
        let (left, _) = self.clearing.as_mut()?;
        let end = *left;
        *left = end.saturating_sub(most as u32);
        let left = *left;
        for node in (left..end).map(NodeId) {
            if !self.nodes.has(node.0) {
                continue;
            }
            observer.removed(self, node);
            let entries = self
                .roles
                .pages_first()
                .map(|class| self.cell(node, class).entry());
            gone.extend(entries.flatten());
            self.cells_mut(node).fill(IndexCell::EMPTY);
        }
        observer.cleared(left as usize);
        if left > 0 {
            return None;
        }
        self.namespaces.clear_nodes();
        let nodes = std::mem::replace(&mut self.nodes, Slab::new());
        let cells = std::mem::replace(&mut self.cells, Rows::new(self.roles.count));
        Some((self.clearing.take(), nodes, cells))
    }

    /// Boundaries known.
    pub(crate) const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.namespaces.bytes()
            + self.nodes.bytes()
            + self.tails.bytes()
            + self.cells.bytes()
            + self.table.bytes()
    }

    /// The first thing found that contradicts the rules of the tree, walking all of it.
    pub(crate) fn audit(&self) -> Option<String> {
        let mut counts = HashMap::new();
        for (at, node) in self.nodes.iter() {
            *counts.entry(node.namespace).or_default() += 1;
            if self.find(None, node.namespace, &node.key) != Some(at) {
                return Some(format!("node {at} is not found by its key"));
            }
            if self.is_bare(NodeId(at)) {
                return Some(format!("node {at} has nothing to be known for"));
            }
            if node.child != NIL && node.key.is_tail() {
                return Some(format!("something hangs from the tail at node {at}"));
            }
            let parent_block = (node.parent != NIL).then(|| self.nodes.get(node.parent).block);
            let chained = self.roles.attention.is_some();
            if chained && parent_block != node.block.checked_sub(1) {
                return Some(format!(
                    "node {at} of block {} hangs from {parent_block:?}",
                    node.block
                ));
            }
        }
        if self.table.len() != self.nodes.len() {
            return Some("the table and the nodes differ".into());
        }
        let nodes = self.nodes.iter();
        let tails = || {
            self.tails
                .audit(nodes.map(|(_, node)| (node.namespace, &node.key)))
        };
        self.namespaces.audit(&counts).or_else(tails)
    }
}
