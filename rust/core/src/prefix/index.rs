//! Boundaries by key, linked to the boundary before and to those after, with their entries.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use super::{Namespaces, Roles};
use crate::error::{Error, Result};
use crate::ids::{EntryId, NamespaceId, NodeId, PrefixKey};
use crate::slab::Slab;

/// What a boundary has of one class, in four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell(u32);

impl Cell {
    pub(super) const EMPTY: Self = Self(u32::MAX);
    /// Empty, after an entry that was whole. `SlotPool::MAX_SLOTS` leaves this value free.
    pub(super) const GONE: Self = Self(u32::MAX - 1);
    const WRITING: u32 = 1 << 31;

    const fn writing(id: EntryId) -> Self {
        Self(id.0 | Self::WRITING)
    }

    /// The entry that is here, whole or not.
    pub(crate) fn entry(self) -> Option<EntryId> {
        (self.0 < Self::GONE.0).then_some(EntryId(self.0 & !Self::WRITING))
    }

    /// Whether an entry is here and its bytes are whole.
    pub(crate) const fn is_resident(self) -> bool {
        self.0 & Self::WRITING == 0
    }
}

/// A link to another node, or none.
const NIL: u32 = u32::MAX;

#[derive(Debug)]
struct Node {
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
pub(crate) struct Index {
    roles: Roles,
    /// Told of every boundary that comes and goes.
    pub(crate) namespaces: Namespaces,
    nodes: Slab<Node>,
    /// Of node `n` and class `c`: at `n * classes + c`. Beside the nodes, so that any number of
    /// classes costs no more than it needs.
    cells: Vec<Cell>,
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Index {
    /// An empty index.
    pub(crate) fn new(roles: Roles) -> Self {
        Self {
            roles,
            namespaces: Namespaces::default(),
            nodes: Slab::new(),
            cells: Vec::new(),
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
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
        let first = parent.map(|parent| self.nodes.get(parent.0).child);
        if let Some(at) = first.filter(|&at| at != NIL && self.is(at, namespace, key)) {
            return Some(at);
        }
        let hash = self.hasher.hash_one((namespace, key));
        self.table
            .find(hash, |&at| self.is(at, namespace, key))
            .copied()
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

    /// The boundaries of a prefix, `None` where one isn't known.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a key stands for another prefix already, here or in the index:
    /// such keys are not chained hashes, and publishing under them would mix prefixes up.
    pub(crate) fn path(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
    ) -> Result<Vec<Option<NodeId>>> {
        let chained = self.roles.attention.is_some();
        let mut fresh = hashbrown::HashSet::new();
        let mut path = Vec::with_capacity(keys.len());
        let mut parent = None;
        for (block, key) in keys.iter().enumerate() {
            let known = self.find(parent, namespace, key);
            let fits = match known {
                Some(at) => self.follows(at, parent, block),
                None => fresh.insert(key),
            };
            if !fits {
                return Err(Error::InvalidArgument(format!(
                    "key of block {block}: expected a hash chained to those before it, found one \
                     that is in use for another prefix"
                )));
            }
            path.push(known.map(NodeId));
            if chained {
                parent = path[block];
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
    ) -> NodeId {
        let parent = parent.map_or(NIL, |parent| parent.0);
        let next = if parent == NIL {
            NIL
        } else {
            self.nodes.get(parent).child
        };
        let node = Node {
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
        if parent != NIL {
            self.nodes.get_mut(parent).child = at;
        }
        if next != NIL {
            self.nodes.get_mut(next).prev = at;
        }
        self.cells
            .resize(self.nodes.span() * self.roles.count, Cell::EMPTY);
        let Self {
            table,
            nodes,
            hasher,
            ..
        } = self;
        let hash = hasher.hash_one((namespace, key));
        table.insert_unique(hash, at, |&at| {
            let node = nodes.get(at);
            hasher.hash_one((node.namespace, &node.key))
        });
        NodeId(at)
    }

    pub(crate) fn cell(&self, node: NodeId, class: usize) -> Cell {
        self.cells[node.0 as usize * self.roles.count + class]
    }

    /// The page without which an entry here can't be reached: for a page, the one of the block before.
    pub(crate) fn support(&self, node: NodeId, class: usize) -> Option<EntryId> {
        let page = self.roles.attention?;
        let at = if class == page {
            self.nodes.get(node.0).parent
        } else {
            node.0
        };
        (at != NIL)
            .then(|| self.cell(NodeId(at), page))
            .and_then(Cell::entry)
    }

    fn cells_mut(&mut self, node: NodeId) -> &mut [Cell] {
        let count = self.roles.count;
        &mut self.cells[node.0 as usize * count..][..count]
    }

    /// Notes that an entry is being written here. Says whether it follows one that was whole and went:
    /// for [`vacate`](Self::vacate), should it not be written after all.
    pub(crate) fn begin(&mut self, node: NodeId, class: usize, id: EntryId) -> bool {
        let cell = &mut self.cells_mut(node)[class];
        std::mem::replace(cell, Cell::writing(id)) == Cell::GONE
    }

    /// Lets lookups see the entry.
    pub(crate) fn publish(&mut self, node: NodeId, class: usize, id: EntryId) {
        self.cells_mut(node)[class] = Cell(id.0);
    }

    /// Forgets an entry and whatever can't be reached without it; all of them are added to `gone`.
    /// `known`: as long as the boundary stays, a whole entry is known to have been here.
    pub(crate) fn vacate(
        &mut self,
        node: NodeId,
        class: usize,
        known: bool,
        gone: &mut Vec<EntryId>,
    ) {
        if self.roles.attention == Some(class) {
            self.prune(node, gone);
            return;
        }
        let left = if known { Cell::GONE } else { Cell::EMPTY };
        gone.extend(std::mem::replace(&mut self.cells_mut(node)[class], left).entry());
        let mut cells = self.cells_mut(node).iter();
        let bare = cells.all(|cell| cell.entry().is_none());
        if bare {
            self.prune(node, gone);
        }
    }

    /// Removes a boundary and all below it.
    fn prune(&mut self, top: NodeId, gone: &mut Vec<EntryId>) {
        let Node {
            namespace,
            parent,
            next,
            prev,
            ..
        } = *self.nodes.get(top.0);
        let before = self.nodes.len();
        if prev != NIL {
            self.nodes.get_mut(prev).next = next;
        } else if parent != NIL {
            self.nodes.get_mut(parent).child = next;
        }
        if next != NIL {
            self.nodes.get_mut(next).prev = prev;
        }
        let mut pending = vec![top.0];
        while let Some(at) = pending.pop() {
            let mut child = self.nodes.get(at).child;
            while child != NIL {
                pending.push(child);
                child = self.nodes.get(child).next;
            }
            self.remove(at, gone);
        }
        // What hangs from a boundary is in its namespace.
        let removed = before - self.nodes.len();
        self.namespaces.remove_nodes(namespace, removed);
    }

    fn remove(&mut self, at: u32, gone: &mut Vec<EntryId>) {
        let node = self.nodes.remove(at);
        let hash = self.hasher.hash_one((node.namespace, &node.key));
        self.table
            .find_entry(hash, |&other| other == at)
            .expect("every node is in the table under its key")
            .remove();
        let cells = self.cells_mut(NodeId(at));
        gone.extend(cells.iter().filter_map(|cell| cell.entry()));
        cells.fill(Cell::EMPTY);
    }

    /// Forgets every boundary; their entries are added to `gone`.
    pub(crate) fn clear(&mut self, gone: &mut Vec<EntryId>) {
        gone.extend(self.cells.iter().filter_map(|cell| cell.entry()));
        self.cells.clear();
        self.nodes = Slab::new();
        self.table.clear();
        self.namespaces.clear_nodes();
    }

    /// Boundaries known.
    pub(crate) const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.namespaces.bytes()
            + self.nodes.bytes()
            + self.cells.capacity() * size_of::<Cell>()
            + self.table.allocation_size()
    }

    /// The first thing found that contradicts the rules of the tree, walking all of it.
    pub(crate) fn audit(&self) -> Option<String> {
        let mut counts = HashMap::new();
        for (at, node) in self.nodes.iter() {
            *counts.entry(node.namespace).or_default() += 1;
            if self.find(None, node.namespace, &node.key) != Some(at) {
                return Some(format!("node {at} is not found by its key"));
            }
            let cells = &self.cells[at as usize * self.roles.count..][..self.roles.count];
            let bare = match self.roles.attention {
                Some(page) => cells[page].entry().is_none(),
                None => cells.iter().all(|cell| cell.entry().is_none()),
            };
            if bare {
                return Some(format!("node {at} has nothing to be known for"));
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
        self.namespaces.audit(&counts)
    }
}
