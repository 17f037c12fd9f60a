//! Interned identities: known while somebody holds them or a boundary is known under them.

use std::sync::Arc;

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::ids::NamespaceId;

/// Tables with room for no more identities than this are not shrunk.
const SMALL: usize = 64;

const KNOWN: &str = "a namespace is known while it is held or has a boundary";

#[derive(Debug)]
struct NamespaceRecord {
    identity: Arc<[u8]>,
    seed: u64,
    /// A hash of the tenant's name.
    tenant: u64,
    holds: u64,
    /// Boundaries in the index.
    nodes: usize,
    /// Whether nothing of it is announced any more.
    retired: bool,
}

impl NamespaceRecord {
    const fn is_idle(&self) -> bool {
        self.holds == 0 && self.nodes == 0
    }
}

/// Numbers for identities. An identity is freed when nobody holds it and no boundary is known under it. Its number is
/// never given again, so whoever kept the number too long does not find another identity under it.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    ids: HashMap<Arc<[u8]>, NamespaceId>,
    records: HashMap<NamespaceId, NamespaceRecord>,
    /// How many numbers were given so far, which is also the next number.
    given: u64,
    identity_bytes: usize,
}

impl Namespaces {
    /// The number of an identity, held once more. All that is stored under one identity is one tenant's.
    pub(crate) fn intern(&mut self, identity: &[u8], tenant: &[u8]) -> Result<NamespaceId> {
        let tenant = xxh3_64(tenant);
        if let Some(&id) = self.ids.get(identity) {
            if self.known(id).tenant != tenant {
                return Err(Error::InvalidArgument(
                    "tenant: expected the one that the identity was first given with, found another: \
                     put its name into the identity"
                        .into(),
                ));
            }
            self.hold(id);
            return Ok(id);
        }
        let id = u32::try_from(self.given)
            .map(NamespaceId)
            .map_err(|_| Error::InvalidArgument("namespace: all 2^32 numbers were given".into()))?;
        self.given += 1;
        let identity: Arc<[u8]> = identity.into();
        self.identity_bytes += identity.len();
        let record = NamespaceRecord {
            identity: Arc::clone(&identity),
            seed: xxh3_64(&identity),
            tenant,
            holds: 1,
            nodes: 0,
            retired: false,
        };
        self.ids.insert(identity, id);
        self.records.insert(id, record);
        Ok(id)
    }

    /// Refuses a number that was never given, or whose identity was freed.
    pub(crate) fn check(&self, id: NamespaceId) -> Result<()> {
        self.seed(id).map(drop)
    }

    /// A hash of the identity, which does not depend on its number: an identity that was freed and comes back has the
    /// hash it had. Refuses what [`check`](Self::check) rejects.
    pub(crate) fn seed(&self, id: NamespaceId) -> Result<u64> {
        let record = self.records.get(&id).ok_or_else(|| self.unknown(id))?;
        Ok(record.seed)
    }

    /// The bytes of an identity that is known.
    pub(crate) fn identity(&self, id: NamespaceId) -> Arc<[u8]> {
        Arc::clone(&self.known(id).identity)
    }

    /// The [`seed`](Self::seed) of an identity that is known.
    pub(crate) fn known_seed(&self, id: NamespaceId) -> u64 {
        self.known(id).seed
    }

    /// A hash of the name of the tenant that a known identity belongs to.
    pub(crate) fn known_tenant(&self, id: NamespaceId) -> u64 {
        self.known(id).tenant
    }

    /// Notes that nothing of a namespace is announced any more.
    pub(crate) fn retire(&mut self, id: NamespaceId) {
        self.record(id).retired = true;
    }

    pub(super) fn is_retired(&self, id: NamespaceId) -> bool {
        self.known(id).retired
    }

    fn known(&self, id: NamespaceId) -> &NamespaceRecord {
        self.records.get(&id).expect(KNOWN)
    }

    #[cold]
    fn unknown(&self, id: NamespaceId) -> Error {
        let freed = u64::from(id.0) < self.given;
        Error::InvalidArgument(format!(
            "namespace: expected a number that namespace() returned, found {}{}",
            id.0,
            if freed { ", which was freed" } else { "" }
        ))
    }

    fn record(&mut self, id: NamespaceId) -> &mut NamespaceRecord {
        self.records.get_mut(&id).expect(KNOWN)
    }

    /// Adds a hold to a known number.
    pub(crate) fn hold(&mut self, id: NamespaceId) {
        self.record(id).holds += 1;
    }

    /// Gives one hold back.
    pub(crate) fn release(&mut self, id: NamespaceId) -> Result<()> {
        self.check(id)?;
        if self.record(id).holds == 0 {
            return Err(Error::InvalidArgument(format!(
                "namespace: expected a number that is held, found {}, whose holds were all released",
                id.0
            )));
        }
        self.let_go(id);
        Ok(())
    }

    /// Ends a [`hold`](Self::hold).
    pub(crate) fn let_go(&mut self, id: NamespaceId) {
        let record = self.record(id);
        record.holds -= 1;
        if record.is_idle() {
            self.free(id);
        }
    }

    /// Counts a boundary that the index just got.
    pub(super) fn add_node(&mut self, id: NamespaceId) {
        self.record(id).nodes += 1;
    }

    /// Counts boundaries that the index just lost.
    pub(super) fn remove_nodes(&mut self, id: NamespaceId, count: usize) {
        let record = self.record(id);
        record.nodes -= count;
        if record.is_idle() {
            self.free(id);
        }
    }

    /// Notes that the index lost all its boundaries.
    pub(super) fn clear_nodes(&mut self) {
        let Self {
            ids,
            records,
            identity_bytes,
            ..
        } = self;
        records.retain(|_, record| {
            record.nodes = 0;
            if record.is_idle() {
                ids.remove(&record.identity);
                *identity_bytes -= record.identity.len();
            }
            !record.is_idle()
        });
        self.shrink();
    }

    fn free(&mut self, id: NamespaceId) {
        if let Some(record) = self.records.remove(&id) {
            self.ids.remove(&record.identity);
            self.identity_bytes -= record.identity.len();
        }
        self.shrink();
    }

    /// Gives memory back when few places of the tables are left in use.
    fn shrink(&mut self) {
        let len = self.records.len();
        if self.records.capacity() > SMALL.max(len * 8) {
            self.records.shrink_to(len * 2);
            self.ids.shrink_to(len * 2);
        }
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        // In the memory of an `Arc`, two counts of its users come before the identity.
        self.ids.allocation_size()
            + self.records.allocation_size()
            + self.identity_bytes
            + self.records.len() * 2 * size_of::<usize>()
    }

    /// The first thing found that contradicts the rules, given the boundaries of each namespace.
    pub(super) fn audit(&self, nodes: &HashMap<NamespaceId, usize>) -> Option<String> {
        for (id, record) in &self.records {
            let found = nodes.get(id).copied().unwrap_or_default();
            if found != record.nodes {
                return Some(format!(
                    "namespace {} has {found} nodes, {} are counted",
                    id.0, record.nodes
                ));
            }
            if record.is_idle() {
                return Some(format!("namespace {} is kept for nobody", id.0));
            }
            if self.ids.get(&record.identity) != Some(id) {
                return Some(format!("namespace {} is not found by its identity", id.0));
            }
        }
        if let Some(id) = nodes.keys().find(|id| !self.records.contains_key(*id)) {
            return Some(format!("namespace {} has nodes and is free", id.0));
        }
        let bytes: usize = self.records.values().map(|it| it.identity.len()).sum();
        (self.ids.len() != self.records.len() || bytes != self.identity_bytes)
            .then(|| "the identities and their numbers differ".into())
    }
}

#[cfg(test)]
#[path = "../../../../tests/rust/core/inside/namespace.rs"]
mod tests;
