//! Keys of all tenants that grow from one root, any one of which can be destroyed.
//!
//! The keys are the leaves of a binary tree, whose paths are the first 128 bits of the tenants' names. The key of a node
//! makes those of both its children, and none above it or beside it. So a tree without a leaf is the nodes beside the
//! way from the root to it: they make every other leaf, and nothing makes this one.

use hybrid_pages::error::{Error, Result};

pub(crate) const KEY_BYTES: usize = 32;
pub(crate) type Key = [u8; KEY_BYTES];

const MOST_DEPTH: usize = 128;

/// A part of the tree of tenants' keys: all leaves whose paths begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyNode {
    /// The bits that lead here, from the highest on; the others are zero.
    path: u128,
    depth: usize,
    key: Key,
}

/// What is left of the tree of tenants' keys: nodes that have no leaf in common, in order.
#[derive(Default)]
pub(crate) struct KeyTree(Vec<KeyNode>);

impl KeyNode {
    /// The root of a tree.
    pub(crate) const fn root(key: Key) -> Self {
        let (path, depth) = (0, 0);
        Self { path, depth, key }
    }

    /// The node at a place such as `8a2/11`: the first 11 bits of a path, filled up with zeros to whole hexadecimal
    /// digits. `None` for any other text.
    pub(crate) fn at(place: &str, key: Key) -> Option<Self> {
        let (digits, depth) = place.split_once('/')?;
        let depth: usize = depth.parse().ok().filter(|&depth| depth <= MOST_DEPTH)?;
        let is_hex = digits.bytes().all(|it| it.is_ascii_hexdigit());
        if !is_hex || digits.is_empty() || digits.len() != depth.div_ceil(4) {
            return None;
        }
        let path = u128::from_str_radix(digits, 16).ok()? << (MOST_DEPTH - 4 * digits.len());
        let node = Self { path, depth, key };
        (node.first_bits(path) == path).then_some(node)
    }

    /// The place and the key, as a key file has them.
    pub(crate) fn line(&self) -> String {
        if self.depth == 0 {
            return hex(&self.key);
        }
        let digits = format!("{:032x}", self.path);
        let digits = &digits[..self.depth.div_ceil(4)];
        format!("{digits}/{} {}", self.depth, hex(&self.key))
    }

    pub(crate) const fn key(&self) -> Key {
        self.key
    }

    /// Whether the leaf of a tenant grows from this node.
    pub(crate) fn has(&self, tenant: &Key) -> bool {
        self.first_bits(path_of(tenant)) == self.path
    }

    const fn first_bits(&self, path: u128) -> u128 {
        match self.depth {
            0 => 0,
            depth => path >> (MOST_DEPTH - depth) << (MOST_DEPTH - depth),
        }
    }

    fn child(&self, bit: bool) -> Self {
        let depth = self.depth + 1;
        Self {
            path: self.path | u128::from(bit) << (MOST_DEPTH - depth),
            depth,
            key: *blake3::keyed_hash(&self.key, &[u8::from(bit)]).as_bytes(),
        }
    }

    /// The key of a tenant whose leaf grows from this node, and the nodes beside the way to it.
    pub(crate) fn take(mut self, tenant: &Key) -> (Key, Vec<Self>) {
        let (path, mut beside) = (path_of(tenant), Vec::new());
        while self.depth < MOST_DEPTH {
            let bit = path >> (MOST_DEPTH - 1 - self.depth) & 1 == 1;
            beside.push(self.child(!bit));
            self = self.child(bit);
        }
        (self.key, beside)
    }

    fn leaf(mut self, tenant: &Key) -> Key {
        let path = path_of(tenant);
        while self.depth < MOST_DEPTH {
            self = self.child(path >> (MOST_DEPTH - 1 - self.depth) & 1 == 1);
        }
        self.key
    }
}

impl KeyTree {
    /// A tree of these nodes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if two nodes have a leaf in common.
    pub(crate) fn of(mut nodes: Vec<KeyNode>) -> Result<Self> {
        nodes.sort_unstable_by_key(|node| (node.path, node.depth));
        let mut pairs = nodes.array_windows();
        if pairs.any(|[node, next]| node.first_bits(next.path) == node.path) {
            return Err(Error::InvalidArgument(
                "encrypt_key: expected `tenants` lines for different tenants, found two for the same: take one away"
                    .into(),
            ));
        }
        Ok(Self(nodes))
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The nodes in order, as a key file has them.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(KeyNode::line)
    }

    /// The key of a tenant; `None` if it was destroyed.
    pub(crate) fn leaf(&self, tenant: &Key) -> Option<Key> {
        let behind = self.0.partition_point(|node| node.path <= path_of(tenant));
        let node = self.0.get(behind.checked_sub(1)?)?;
        node.has(tenant).then(|| node.leaf(tenant))
    }
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn path_of(tenant: &Key) -> u128 {
    let (path, _) = tenant.split_first_chunk().expect("a name has 32 bytes");
    u128::from_be_bytes(*path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(first: u8, last: u8) -> Key {
        let mut name = [first; 32];
        name[15] = last;
        name
    }

    #[test]
    fn every_leaf_but_the_one_that_was_taken_still_grows() {
        let root = KeyNode::root([7; 32]);
        let names: Vec<Key> = (0..=255).map(|at| name(at, at ^ 5)).collect();
        let whole = KeyTree::of(vec![root]).unwrap();
        let all: Vec<Key> = names.iter().map(|it| whole.leaf(it).unwrap()).collect();
        let mut nodes = vec![root];
        for (at, gone) in [3, 200, 0, 255, 4].into_iter().enumerate() {
            let from = nodes.iter().position(|node| node.has(&names[gone]));
            let (key, beside) = nodes.remove(from.unwrap()).take(&names[gone]);
            assert_eq!(key, all[gone]);
            assert!(beside.len() <= MOST_DEPTH);
            nodes.extend(beside);
            let tree = KeyTree::of(nodes.clone()).unwrap();
            let left = names.iter().map(|it| tree.leaf(it));
            let lost: Vec<usize> = std::iter::zip(left, &all)
                .enumerate()
                .filter(|(_, (left, key))| *left != Some(**key))
                .map(|(at, _)| at)
                .collect();
            assert_eq!(lost.len(), at + 1, "{lost:?}");
            assert!(lost.contains(&gone));
            // The nearest leaf of all.
            let mut twin = names[gone];
            twin[15] ^= 1;
            assert_eq!(tree.leaf(&twin), whole.leaf(&twin));
            // Neither the way to the leaf nor the leaf is left.
            let mut way = root;
            for depth in 0..=MOST_DEPTH {
                assert!(nodes.iter().all(|node| node.key != way.key), "at {depth}");
                if depth < MOST_DEPTH {
                    way = way.child(path_of(&names[gone]) >> (MOST_DEPTH - 1 - depth) & 1 == 1);
                }
            }
        }
    }

    #[test]
    fn places_are_read_as_they_are_written() {
        let (_, beside) = KeyNode::root([7; 32]).take(&name(0xa5, 1));
        for node in beside {
            let line = node.line();
            let (place, key) = line.split_once(' ').unwrap();
            assert_eq!(key, hex(&node.key));
            assert!(KeyNode::at(place, node.key) == Some(node), "{line}");
        }
        let far = format!("{}/129", "0".repeat(33));
        for other in [
            "", "/", "/0", "8", "8/", "8/x", "8/-1", "8/5", "81/4", "9/3", "8/129", "+8/4", &far,
        ] {
            assert!(KeyNode::at(other, [0; 32]).is_none(), "{other}");
        }
    }

    #[test]
    fn nodes_with_a_leaf_in_common_are_refused() {
        let root = KeyNode::root([7; 32]);
        let (left, right) = (root.child(false), root.child(true));
        assert!(KeyTree::of(vec![right, left]).is_ok());
        for nodes in [[root, root], [root, right], [left.child(true), left]] {
            assert!(KeyTree::of(nodes.to_vec()).is_err());
        }
    }
}
