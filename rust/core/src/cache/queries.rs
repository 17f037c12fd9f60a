//! The questions of lookups to tiers below. They are remembered, so that a repeated lookup goes on instead of starting
//! anew.

use hashbrown::HashMap;

use crate::ids::{NamespaceId, PrefixKey};

/// Blocks or entries of one portion: what is done while the lock is held once.
pub(super) const PORTION: usize = if cfg!(shuttle) { 2 } else { 256 };
/// Blocks that a lookup asks about again where blocks stand alone.
pub(super) const AGAIN: usize = 64;
/// Prompts that are remembered at most; beyond that all are forgotten, and asked about anew.
const MOST: usize = 4096;

/// A prompt: its namespace, its blocks, and the key of the last of them. Keys need not be chained, so the key alone
/// does not tell how many there are.
pub(super) type Prompt = (NamespaceId, usize, PrefixKey);

/// The prompt of these keys; `None` if there are none.
pub(super) fn prompt_of(namespace: NamespaceId, keys: &[PrefixKey]) -> Option<Prompt> {
    keys.last().map(|&last| (namespace, keys.len(), last))
}

/// How far the questions about a prompt have come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// The block at which the tier asks, or 0 where blocks stand alone.
    pub(super) from: usize,
    /// The block to ask about next.
    pub(super) next: usize,
    /// Whether all blocks were asked about, and the tier asks nobody for any of them.
    pub(super) all: bool,
    /// Whether the tier asks somebody for one of the blocks before `next`.
    pub(super) asking: bool,
}

/// The questions that one tier was asked, by prompt.
#[derive(Debug, Default)]
pub(super) struct Queries(HashMap<Prompt, Query>);

impl Queries {
    pub(super) fn get(&self, prompt: &Prompt) -> Option<Query> {
        self.0.get(prompt).copied()
    }

    pub(super) fn set(&mut self, prompt: Prompt, query: Query) {
        if self.0.len() >= MOST && !self.0.contains_key(&prompt) {
            self.0.clear();
        }
        self.0.insert(prompt, query);
    }

    /// Forgets the questions about a prompt: the tier has answered, or nobody waits for it any more.
    pub(super) fn forget(&mut self, prompt: &Prompt) {
        self.0.remove(prompt);
    }

    /// Whether no more prompts are remembered than may be.
    pub(super) fn is_bounded(&self) -> bool {
        self.0.len() <= MOST
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.0.allocation_size()
    }
}
