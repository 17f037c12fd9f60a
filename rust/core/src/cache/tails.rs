//! Tails: which of them prompts may go on from, and what becomes of those that a conversation has left behind.

use super::Cache;
use super::state::CacheState;
use crate::error::{Error, Result};
use crate::ids::{NamespaceId, PrefixKey};
use crate::prefix::{boundary_name, check_chain};

/// How many tokens the tails have that hang from the boundaries of a prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TailLengths {
    /// Boundaries in blocks, the deepest last, each with the numbers of tokens of its tails, ascending. Boundaries
    /// without tails are left out.
    pub behind: Vec<(usize, Vec<u32>)>,
    /// Whether a tier below is asking somebody for tails: the same call may find more soon.
    pub asking: bool,
}

impl Cache {
    /// How many tokens the tails have, in any tier, that hang from the boundaries of a prefix: from boundary `first`
    /// on, as far as the pages of the prefix are known. Boundary 0 is the start of prompts. A [`lookup`](Self::lookup)
    /// makes known what tiers below have. `ask` tells whether to ask them, too, for tails that are not known yet.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn tail_lengths(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
        ask: bool,
    ) -> Result<TailLengths> {
        self.locked.with(|state| {
            state.index.namespaces.check(namespace)?;
            let known = match state.index.roles().attention {
                Some(_) => state.index.known_path(namespace, keys).count(),
                None => keys.len(),
            };
            let mut found = TailLengths::default();
            for blocks in first..=known {
                let before = blocks.checked_sub(1).map(|block| &keys[block]);
                if before.is_some_and(PrefixKey::is_tail) {
                    break;
                }
                let mut lengths: Vec<u32> = state.index.tail_lengths(namespace, before).collect();
                if ask && state.tiers.has_lower() {
                    let identity = state.index.namespaces.identity(namespace);
                    let lower = state.tiers.below.iter_mut();
                    for lower in lower.filter(|_| known - blocks < MOST_ASKED) {
                        let stem = PrefixKey::stem_of(before);
                        found.asking |= lower.tier.tail_lengths(&identity, stem, &mut lengths);
                    }
                    lengths.sort_unstable();
                    lengths.dedup();
                }
                if !lengths.is_empty() {
                    found.behind.push((blocks, lengths));
                }
            }
            Ok(found)
        })?
    }

    /// Which of these tails, which hang from the boundary after `blocks` blocks, may be there, in any tier: for those a
    /// [`lookup`](Self::lookup) is worth its time. Also returns whether a tier below is asking somebody: the same call
    /// may find more soon.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn has_tails(
        &self,
        namespace: NamespaceId,
        blocks: usize,
        tails: &[PrefixKey],
    ) -> Result<(Vec<bool>, bool)> {
        self.locked.with(|state| {
            state.index.namespaces.check(namespace)?;
            let class = state.index.roles().pages_first().next().unwrap_or(0);
            let mut asking = false;
            let mut has = Vec::with_capacity(tails.len());
            for key in tails {
                let mut found = state.index.has(namespace, key);
                for tier in state.tiers.below_host() {
                    if !found {
                        let name = state.name(namespace, blocks, key, class);
                        let may_have = state.tiers.lower_mut(tier).tier.may_have(&name);
                        asking |= may_have.is_none();
                        found = may_have.unwrap_or(false);
                    }
                }
                has.push(found);
            }
            Ok((has, asking))
        })?
    }

    /// Tells the policies that a request goes on from the tail that ends `keys`, so that the checkpoints before are
    /// superseded where no other prefix goes on. Call it once per request.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace, and for keys that do not end in a tail of the block before.
    pub fn continue_tail(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Result<()> {
        self.locked.with(|state| {
            let name = state.tail_name(namespace, keys)?;
            state.visits.continue_tail(name);
            for tier in 0..=state.tiers.below.len() {
                state.tiers.room_mut(tier).policy().go_on(name);
            }
            let last = keys.len() - 1;
            let passed: Vec<_> = state.index.known_path(namespace, &keys[..last]).collect();
            for (_, node) in passed {
                if state.index.children(node).nth(1).is_none() {
                    state.tell(node, |policy, id| policy.supersede(id));
                }
            }
            // Tiers that wait for proof are offered the tail now.
            state.reconsider(&[state.index.at(namespace, keys, last)]);
            state.visits.prove(&[name]);
            state.prove_on(namespace, keys, last);
            Ok(())
        })?
    }

    /// Tells the policies that a request which went on from the tail that ends `keys`, or passed it, has stored a
    /// deeper end: until it is used again, the tail goes before everything else when room is needed. One that several
    /// requests [went on](Self::continue_tail) from keeps its worth, and so does one that is retained.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace, and for keys that do not end in a tail of the block before.
    pub fn supersede(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Result<()> {
        self.locked.with(|state| {
            let name = state.tail_name(namespace, keys)?;
            let node = state.index.at(namespace, keys, keys.len() - 1);
            if let Some(node) = node.filter(|_| !state.visits.forks_at_tail(name)) {
                state.tell(node, |policy, id| policy.supersede(id));
            }
            Ok(())
        })?
    }
}

/// Boundaries of a prefix, the deepest ones, of which tiers below are asked for tails.
const MOST_ASKED: usize = 32;

impl CacheState {
    /// The name by which policies know the tail that ends these keys.
    fn tail_name(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Result<u64> {
        let seed = self.index.namespaces.seed(namespace)?;
        let Some(last) = keys.last().filter(|key| key.is_tail()) else {
            return Err(Error::InvalidArgument(
                "keys: expected the last one to be that of a tail, found another or none".into(),
            ));
        };
        check_chain(keys, 0)?;
        Ok(boundary_name(seed, last))
    }
}
