//! Tells policies of requests: which checkpoints to make, and which entries are used, retained and proven.

use super::config::{Admission, Arrival};
use super::offer::Unoffered;
use super::state::CacheState;
use crate::error::{Error, Result};
use crate::ids::{EntryId, NamespaceId, PrefixKey};
use crate::policy::{Hints, NewRequest};
use crate::prefix::{IndexCell, boundary_name};
use crate::tier::Tier;

/// The names by which policies know the boundaries of a prefix.
fn boundary_names(seed: u64, keys: &[PrefixKey]) -> Vec<u64> {
    keys.iter().map(|key| boundary_name(seed, key)).collect()
}

impl CacheState {
    /// Chooses the boundaries of a request that deserve a checkpoint. Also returns the proven blocks that are not
    /// offered yet.
    pub(super) fn admit(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        arrival: Arrival,
    ) -> Result<(Admission, Option<Unoffered>)> {
        let seed = self.index.namespaces.seed(namespace)?;
        arrival.check()?;
        let limit = arrival.limit.min(keys.len());
        let mut path = Vec::new();
        let whole = self
            .index
            .joint_hit(namespace, keys, IndexCell::is_whole, |node| path.push(node));
        self.reconsider(&path);
        self.forget_queries(namespace, keys);
        let pages = whole.pages;
        // If the hit of the whole prompt is within the limit, it is also the hit under the limit.
        let resumed = if whole.blocks <= limit {
            whole.blocks
        } else {
            self.hit_anywhere(namespace, &keys[..limit]).blocks
        };
        let boundaries = boundary_names(seed, keys);
        let hints = arrival.hints;
        let seen = if hints.store {
            self.visits.visit(&boundaries)
        } else {
            self.visits.look(&boundaries)
        };
        let seen = seen.max(pages);
        let unoffered = self.prove(namespace, keys, &boundaries[..seen]);
        let request = NewRequest {
            now: arrival.now,
            tokens: arrival.tokens,
            boundaries: &boundaries,
            limit,
            resumed,
            pages,
            seen,
            free: 0,
            hints,
        };
        let mut admitted = self.tiers.host.room_mut().admit(&request);
        for lower in &mut self.tiers.below {
            // The tier's policy learns of the request, but the host's policy says which checkpoints are made.
            lower.tier.room_mut().admit(&request);
        }
        admitted.sort_unstable();
        admitted.dedup();
        if hints.retain > 0 {
            self.retain_hit(namespace, &keys[..resumed], &hints);
        }
        let fork = seen.min(if hints.store { limit } else { 0 });
        let admission = Admission {
            boundaries: admitted,
            fork: (fork > resumed).then_some(fork),
        };
        Ok((admission, unoffered))
    }

    /// Retains the entries of the host that a request finds. Returns the blocks of its hit.
    pub(super) fn retain_hit(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        hints: &Hints,
    ) -> usize {
        let mut path = Vec::new();
        let hit = self
            .index
            .joint_hit(namespace, keys, IndexCell::is_in_host, |node| {
                path.push(node);
            });
        if hit.blocks > 0 {
            let needed = self.needed_for(&path[..hit.blocks]);
            let ids: Vec<EntryId> = needed.into_iter().map(|(_, id)| id).collect();
            self.pin(&ids);
            self.pass_hints(&ids, hints);
            self.unpin(&ids);
        }
        hit.blocks
    }

    /// Tells the policy the hints of a request that stores or uses these pinned entries of the host.
    pub(super) fn pass_hints(&mut self, ids: &[EntryId], hints: &Hints) {
        for &id in ids.iter().filter(|_| hints.keep()) {
            let tenant = self.tenants.owner(id);
            self.tiers.host.room_mut().policy().keep(id, tenant, hints);
        }
    }

    /// Marks boundaries as proven, since their request asks to retain them.
    pub(super) fn vouch(&mut self, seed: u64, keys: &[PrefixKey]) {
        if self.visits.waiting().is_some() {
            self.visits.prove(&boundary_names(seed, keys));
        }
    }

    /// Tells the policy how much a request produced, and remembers all its boundaries.
    pub(super) fn finish(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        end: usize,
        output_tokens: u64,
    ) -> Result<()> {
        let boundaries = boundary_names(self.index.namespaces.seed(namespace)?, keys);
        if end == 0 || end > keys.len() {
            return Err(Error::InvalidArgument(format!(
                "end: expected 1 to {}, the number of keys, found {end}",
                keys.len()
            )));
        }
        for tier in 0..=self.tiers.below.len() {
            let room = self.tiers.room_mut(tier);
            room.policy().finish(&boundaries, end, output_tokens);
        }
        self.visits.visit(&boundaries);
        Ok(())
    }
}
