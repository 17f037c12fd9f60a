//! Tails: boundaries inside blocks, by the boundary that they hang from.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::ids::{NamespaceId, PrefixKey};

/// How many tokens the known tails have, by namespace and stem.
#[derive(Debug, Default)]
pub(super) struct TailCounts(BTreeMap<(u32, u64, u32), u32>);

impl TailCounts {
    fn place(namespace: NamespaceId, key: &PrefixKey) -> Option<(u32, u64, u32)> {
        Some((namespace.0, key.stem()?, key.tail_tokens()?))
    }

    /// Counts a boundary that the index just got, if it is a tail.
    pub(super) fn add(&mut self, namespace: NamespaceId, key: &PrefixKey) {
        if let Some(place) = Self::place(namespace, key) {
            *self.0.entry(place).or_default() += 1;
        }
    }

    /// Counts a boundary that the index just lost, if it was a tail.
    pub(super) fn remove(&mut self, namespace: NamespaceId, key: &PrefixKey) {
        let Some(place) = Self::place(namespace, key) else {
            return;
        };
        if let Some(count) = self.0.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&place);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// How many tokens the tails with this stem have, ascending.
    pub(super) fn lengths(
        &self,
        namespace: NamespaceId,
        stem: u64,
    ) -> impl Iterator<Item = u32> + use<'_> {
        let range = (namespace.0, stem, 0)..=(namespace.0, stem, u32::MAX);
        self.0.range(range).map(|(&(.., tokens), _)| tokens)
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        // The nodes of a tree are at least half full.
        2 * self.0.len() * size_of::<((u32, u64, u32), u32)>()
    }

    /// The first contradiction with the boundaries that are known.
    pub(super) fn audit<'a>(
        &self,
        known: impl Iterator<Item = (NamespaceId, &'a PrefixKey)>,
    ) -> Option<String> {
        let mut found = Self::default();
        known.for_each(|(namespace, key)| found.add(namespace, key));
        (found.0 != self.0).then(|| "the tails are others than those that are counted".into())
    }
}

/// Whether the block of a prefix is a tail.
pub(crate) fn is_tail_at(keys: &[PrefixKey], block: usize) -> bool {
    keys.get(block).is_some_and(PrefixKey::is_tail)
}

/// Refuses a tail that other keys follow, and one that hangs from another block than the one before it. The keys before
/// `first` are not looked at.
pub(crate) fn check_chain(keys: &[PrefixKey], first: usize) -> Result<()> {
    let Some((last, before)) = keys.split_last() else {
        return Ok(());
    };
    if let Some(block) = (first..before.len()).find(|&block| before[block].is_tail()) {
        return Err(Error::InvalidArgument(format!(
            "key of block {block}: expected a tail to be the last of {} keys, found keys behind it",
            keys.len()
        )));
    }
    if last
        .stem()
        .is_some_and(|stem| stem != PrefixKey::stem_of(before.last()))
    {
        return Err(Error::InvalidArgument(format!(
            "key of block {}: expected a tail of the block before it, found one of another: make it with tail_key()",
            before.len()
        )));
    }
    Ok(())
}
