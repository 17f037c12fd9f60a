//! Interned identities.

use hashbrown::HashMap;

use crate::error::{Error, Result};
use crate::ids::NamespaceId;

/// Numbers for identities, given once and kept.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    ids: HashMap<Box<[u8]>, NamespaceId>,
    identity_bytes: usize,
}

impl Namespaces {
    /// The number of an identity.
    pub(crate) fn intern(&mut self, identity: &[u8]) -> Result<NamespaceId> {
        if let Some(&id) = self.ids.get(identity) {
            return Ok(id);
        }
        let id = u32::try_from(self.ids.len())
            .map(NamespaceId)
            .map_err(|_| Error::InvalidArgument("namespace: 2^32 identities are in use".into()))?;
        self.ids.insert(identity.into(), id);
        self.identity_bytes += identity.len();
        Ok(id)
    }

    /// Refuses a number that was never given.
    pub(crate) fn check(&self, id: NamespaceId) -> Result<()> {
        if (id.0 as usize) < self.ids.len() {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "namespace: expected a number that namespace() returned, found {}",
            id.0
        )))
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.ids.allocation_size() + self.identity_bytes
    }
}
