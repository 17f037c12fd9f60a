//! The calls of a follower, which tells others what the cache has.

use super::Cache;
use super::announced::{Changes, Collection, Medium};
use crate::error::{Error, Result};
use crate::ids::{NamespaceId, PrefixKey};

impl Cache {
    /// Follows from now on which blocks are announced, for [`changes`](Self::changes). Before this call the cache keeps
    /// no such state, and the other calls of a follower do nothing.
    ///
    /// A block is announced in a medium while some boundary at its end or deeper can be resumed from by that
    /// medium alone.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without a class of attention pages: nothing links the blocks then.
    pub fn follow(&self) -> Result<()> {
        self.locked.with(|state| {
            if state.index.roles().attention.is_none() {
                return Err(Error::InvalidArgument(
                    "follow: expected a class of attention pages, found none".into(),
                ));
            }
            state.announced.follow(&state.index);
            Ok(())
        })?
    }

    /// The blocks of a prefix that the cache knows and that have no [`note`](Self::note).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn unnoted(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Result<Vec<usize>> {
        self.locked.with(|state| {
            state.index.namespaces.check(namespace)?;
            Ok(state.announced.unnoted(&state.index, namespace, keys))
        })?
    }

    /// Keeps a note with blocks of a prefix, for [`changes`](Self::changes), for as long as they are known.
    /// A block that has a note keeps it; unknown blocks get none.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn note(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        notes: impl IntoIterator<Item = (usize, Box<[u8]>)>,
    ) -> Result<()> {
        self.locked.with(|state| {
            state.index.namespaces.check(namespace)?;
            let notes = notes.into_iter();
            state.announced.note(&state.index, namespace, keys, notes);
            Ok(())
        })?
    }

    /// Blocks that were announced or removed in a medium since the last call. With `anew`, all that the follower was
    /// told is removed first, and all that is announced is told again: for a follower whose listeners may have lost it.
    #[must_use]
    pub fn changes(&self, medium: Medium, anew: bool) -> Changes {
        let mut to = Collection::new(anew);
        let collected = self
            .locked
            .to_the_end(|state| Ok(state.announced.collect(&state.index, medium, &mut to)));
        collected.map(|()| to.end()).unwrap_or_default()
    }

    /// Announces no blocks of a namespace any more, until it is freed: for a namespace that no request will use.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn retire(&self, namespace: NamespaceId) -> Result<()> {
        self.locked.with(|state| {
            state.index.namespaces.check(namespace)?;
            state.index.namespaces.retire(namespace);
            state.announced.retire(&state.index, namespace);
            Ok(())
        })?
    }
}
