//! The tails among the entries of a tier, by the boundary that they hang from.

use std::collections::BTreeMap;

use crate::Name;
use crate::name::tail_of;

/// How many tokens the tails of each group have, as far as names tell.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TailNames(BTreeMap<(u64, u32), u32>);

impl TailNames {
    /// Counts an entry that the tier just got, if it is of a tail.
    pub fn add(&mut self, name: &Name) {
        if let Some(tail) = tail_of(name) {
            *self.0.entry(tail).or_default() += 1;
        }
    }

    /// Counts an entry that the tier just lost, if it was of a tail.
    pub fn remove(&mut self, name: &Name) {
        if let Some(tail) = tail_of(name)
            && let Some(count) = self.0.get_mut(&tail)
        {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&tail);
            }
        }
    }

    /// Adds the numbers of tokens of the tails in a [group](crate::tail_group). Returns whether there are any.
    pub fn lengths(&self, group: u64, lengths: &mut Vec<u32>) -> bool {
        let before = lengths.len();
        let of_it = self.0.range((group, 0)..=(group, u32::MAX));
        lengths.extend(of_it.map(|(&(_, tokens), _)| tokens));
        lengths.len() > before
    }

    /// Number of groups and lengths, for tests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no tails.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hybrid_pages::ids::{EntryKey, PrefixKey};

    use super::*;
    use crate::{name_of, tail_group};

    fn name(
        namespace: &[u8],
        before: Option<&PrefixKey>,
        digest: u8,
        tokens: u32,
        class: usize,
    ) -> Name {
        name_of(&EntryKey {
            namespace: Arc::from(namespace),
            prefix: PrefixKey::tail(before, &[digest; 19], tokens).unwrap(),
            block_index: usize::from(before.is_some()),
            class_index: class,
        })
    }

    #[test]
    fn names_tell_the_lengths_of_tails_behind_a_boundary() {
        let before = PrefixKey::new(&[7; 32]).unwrap();
        let mut tails = TailNames::default();
        let names = [
            name(b"a", None, 1, 20, 0),
            name(b"a", None, 1, 20, 1),
            name(b"a", None, 2, 20, 0),
            name(b"a", None, 2, 783, 0),
            name(b"a", Some(&before), 2, 3, 0),
            name(b"b", None, 2, 5, 0),
        ];
        names.iter().for_each(|name| tails.add(name));
        let lengths = |tails: &TailNames, namespace: &[u8], before| {
            let mut lengths = Vec::new();
            let group = tail_group(namespace, PrefixKey::stem_of(before));
            assert_eq!(tails.lengths(group, &mut lengths), !lengths.is_empty());
            lengths
        };
        assert_eq!(lengths(&tails, b"a", None), [20, 783]);
        assert_eq!(lengths(&tails, b"a", Some(&before)), [3]);
        assert_eq!(lengths(&tails, b"b", None), [5]);
        assert!(lengths(&tails, b"b", Some(&before)).is_empty());
        let all: std::collections::HashSet<Name> = names.into_iter().collect();
        assert_eq!(all.len(), names.len());
        for name in &names[..2] {
            assert_eq!(lengths(&tails, b"a", None), [20, 783]);
            tails.remove(name);
        }
        tails.remove(&names[2]);
        assert_eq!(lengths(&tails, b"a", None), [783]);
        names[3..].iter().for_each(|name| tails.remove(name));
        assert!(tails.is_empty());
    }

    #[test]
    fn few_names_of_other_entries_look_like_a_tails() {
        let mut tails = TailNames::default();
        for block_index in 0..20_000_usize {
            tails.add(&name_of(&EntryKey {
                namespace: Arc::from(&b"a"[..]),
                prefix: PrefixKey::new(&[7; 32]).unwrap(),
                block_index,
                class_index: 0,
            }));
        }
        assert!(tails.len() < 50, "{}", tails.len());
    }
}
