//! What applications say of the future: prefixes that are expected soon, and those that nobody needs any more.

use super::Cache;
use super::config::Arrival;
use super::state::CacheState;
use crate::error::{Error, Result};
use crate::ids::{EntryId, NamespaceId, NodeId, PrefixKey};
use crate::policy::{Hints, Policy};
use crate::slot::HOST;

impl Cache {
    /// Retains what the joint hit of the host needs, as if a request with these hints had found it: the request is
    /// expected, and may come within that time. `now` is in milliseconds on the clock of
    /// [`Arrival::now`](super::Arrival::now). Returns the blocks of the hit. The policy learns nothing else.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace and a time out of range.
    pub fn expect(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        now: u64,
        hints: &Hints,
    ) -> Result<usize> {
        let (blocks, pinned) = self.locked.with(|state| {
            state.index.namespaces.check(namespace)?;
            Arrival::check_now(now)?;
            state.tiers.room_mut(HOST).policy().pass_time(now);
            Ok::<_, Error>(state.pin_hit(namespace, keys))
        })??;
        self.locked.retain(&pinned, hints);
        Ok(blocks)
    }

    /// Gives up what a prefix has behind its first `first` blocks, in every tier: until it is used again, it goes
    /// before everything else when room is needed. It begins at the end of the prefix, and stops at the first boundary
    /// where another prefix goes on, be it by a tail. `ends` are tails on the way that are of this prefix: they are
    /// given up with the boundaries that they hang from. Returns how many blocks were given up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn give_up(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
        ends: &[PrefixKey],
    ) -> Result<usize> {
        self.locked.with(|state| {
            state.index.namespaces.check(namespace)?;
            let mut given_up = 0;
            for block in (first..keys.len()).rev() {
                let Some(node) = state.index.at(namespace, keys, block) else {
                    continue;
                };
                let behind = keys.get(block + 1);
                let key = |&child: &NodeId| state.index.name(child).1;
                let others = state.index.children(node);
                let others: Vec<_> = others.filter(|child| Some(&key(child)) != behind).collect();
                if !others.iter().all(|child| ends.contains(&key(child))) {
                    break;
                }
                for end in others {
                    state.tell(end, |policy, id| policy.give_up(id));
                }
                state.tell(node, |policy, id| policy.give_up(id));
                given_up += 1;
            }
            Ok(given_up)
        })?
    }
}

impl CacheState {
    /// Tells the policy of each tier something about its entries at a boundary.
    pub(super) fn tell(&mut self, node: NodeId, say: impl Fn(&mut dyn Policy, EntryId)) {
        let classes = self.index.roles().pages_first();
        for id in classes.filter_map(|class| self.index.cell(node, class).entry()) {
            for tier in self.entries.get(id).members.tiers() {
                say(self.tiers.room_mut(tier).policy(), id);
            }
        }
    }
}
