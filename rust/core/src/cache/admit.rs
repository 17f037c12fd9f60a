//! Tells policies of requests: which checkpoints to make, and which entries are used, retained and proven.

use super::config::{Admission, Arrival};
use super::locked::Locked;
use super::offer::Unoffered;
use super::queries::PORTION;
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

/// A request that is told to policies: for many blocks in steps between which the lock is free.
pub(super) struct Admitting<'a> {
    namespace: NamespaceId,
    keys: &'a [PrefixKey],
    arrival: Arrival,
    /// The names of the boundaries: empty before the first step.
    boundaries: Vec<u64>,
    pages: usize,
    resumed: usize,
    /// How many leading boundaries an earlier request had, from the second step on.
    seen: Option<usize>,
    /// How many of these were marked as proven.
    proven: usize,
    /// Entries of the host that are pinned, to be retained when the last step has ended.
    pub(super) retained: Vec<EntryId>,
}

impl<'a> Admitting<'a> {
    pub(super) const fn new(
        namespace: NamespaceId,
        keys: &'a [PrefixKey],
        arrival: Arrival,
    ) -> Self {
        Self {
            namespace,
            keys,
            arrival,
            boundaries: Vec::new(),
            pages: 0,
            resumed: 0,
            seen: None,
            proven: 0,
            retained: Vec::new(),
        }
    }
}

impl Locked {
    /// Tells the policy the hints of a request for pinned entries of the host, and ends their pins.
    pub(super) fn retain(&self, pinned: &[EntryId], hints: &Hints) {
        for portion in pinned.chunks(PORTION) {
            self.end(|state| {
                state.pass_hints(portion, hints);
                state.unpin(portion);
            });
        }
    }
}

impl CacheState {
    /// Chooses the boundaries of a request that deserve a checkpoint; `None` before the last step. Also returns the
    /// proven blocks that are not offered yet.
    pub(super) fn admit(
        &mut self,
        admitting: &mut Admitting<'_>,
    ) -> Result<Option<(Admission, Option<Unoffered>)>> {
        let Admitting {
            namespace,
            keys,
            arrival,
            ..
        } = *admitting;
        let is_long = keys.len() > PORTION;
        let limit = arrival.limit.min(keys.len());
        let hints = arrival.hints;
        if admitting.boundaries.len() < keys.len() || keys.is_empty() {
            let seed = self.index.namespaces.seed(namespace)?;
            arrival.check()?;
            let mut path = Vec::new();
            let whole = self
                .index
                .joint_hit(namespace, keys, IndexCell::is_whole, |node| path.push(node));
            self.reconsider(&path);
            self.forget_queries(namespace, keys);
            admitting.pages = whole.pages;
            // If the hit of the whole prompt is within the limit, it is also the hit under the limit.
            admitting.resumed = if whole.blocks <= limit {
                whole.blocks
            } else {
                self.hit_anywhere(namespace, &keys[..limit]).blocks
            };
            admitting.boundaries = boundary_names(seed, keys);
            if is_long {
                return Ok(None);
            }
        }
        let (pages, resumed) = (admitting.pages, admitting.resumed);
        let boundaries = &admitting.boundaries;
        let Some(seen) = admitting.seen else {
            let seen = if hints.store {
                self.visits.visit(boundaries)
            } else {
                self.visits.look(boundaries)
            };
            admitting.seen = Some(seen.max(pages));
            return if is_long {
                Ok(None)
            } else {
                self.admit(admitting)
            };
        };
        if admitting.proven < seen {
            let from = admitting.proven;
            admitting.proven = seen.min(from + 16 * PORTION);
            self.visits.prove(&boundaries[from..admitting.proven]);
            if is_long {
                return Ok(None);
            }
        }
        let unoffered = self.prove_on(namespace, &keys[..seen], 0);
        let request = NewRequest {
            now: arrival.now,
            tokens: arrival.tokens,
            boundaries,
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
            admitting.retained = self.pin_hit(namespace, &keys[..resumed]).1;
        }
        let fork = seen.min(if hints.store { limit } else { 0 });
        let admission = Admission {
            boundaries: admitted,
            fork: (fork > resumed).then_some(fork),
        };
        Ok(Some((admission, unoffered)))
    }

    /// Pins what the joint hit of the host needs: the deepest first. Also returns the blocks of the hit.
    pub(super) fn pin_hit(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
    ) -> (usize, Vec<EntryId>) {
        let mut path = Vec::new();
        let (index, walked) = (&self.index, |node| path.push(node));
        let hit = index.joint_hit(namespace, keys, IndexCell::is_in_host, walked);
        if hit.blocks == 0 {
            return (0, Vec::new());
        }
        let needed = self.needed_for(&path[..hit.blocks]);
        let ids: Vec<EntryId> = needed.into_iter().map(|(_, id)| id).collect();
        self.pin(&ids);
        (hit.blocks, ids)
    }

    /// Tells the policy the hints of a request that stores or uses these pinned entries, those that the host still has.
    pub(super) fn pass_hints(&mut self, ids: &[EntryId], hints: &Hints) {
        for &id in ids.iter().filter(|_| hints.keep()) {
            if !self.entries.get(id).members.in_host() {
                continue;
            }
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
