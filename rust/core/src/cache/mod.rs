//! The only door to index, slots and policy: lookup, acquire, reserve, commit, release.
//!
//! One lock guards everything behind the door and is held for microseconds, never while bytes
//! move. A lease holds the entries that it names and those that they can't be reached without, so
//! whatever may be evicted has nothing below it that somebody uses.

mod config;
mod entry;
mod lease;
mod plan;
mod reserve;
mod state;
mod stats;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use config::{Admission, Arrival, CacheConfig, ClassConfig};
pub use entry::{LeaseEntry, Skipped};
pub use lease::{ReadLease, WriteLease};
pub use stats::Stats;

use crate::error::Result;
use crate::ids::{NamespaceId, PrefixKey};
use crate::prefix::Hit;
use state::State;

/// A prefix cache over the slots of one arena. Every method may be called from any thread.
pub struct Cache {
    shared: Arc<Shared>,
}

/// What a cache and its leases have in common.
struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Poison is no reason to fail: only a broken invariant panics in here, and leases must still end.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) for a setting out of range, [`Error::Budget`](crate::error::Error::Budget) if the slots can't hold
    /// one entry of each class.
    pub fn new(config: &CacheConfig) -> Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared(Mutex::new(State::new(config)?))),
        })
    }

    /// The number of an identity under which prefix keys are unique, and one hold of it. It is the same
    /// for the same bytes as long as it has a hold or an entry; then the identity is freed, its number is
    /// unknown for good, and the identity gets another when it comes back.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) when all 2^32 numbers are given.
    pub fn namespace(&self, identity: &[u8]) -> Result<NamespaceId> {
        self.shared.lock().namespace(identity)
    }

    /// Gives back one hold of [`namespace`](Self::namespace). Who never does keeps the identity known.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) for an unknown namespace, and for one that has entries and no hold.
    pub fn release_namespace(&self, namespace: NamespaceId) -> Result<()> {
        self.shared.lock().release_namespace(namespace)
    }

    /// The joint hit for a prefix, a key a block, and why it is no deeper. It refreshes nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) for an unknown namespace.
    pub fn lookup(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Result<Hit> {
        self.shared.lock().lookup(namespace, keys)
    }

    /// Holds what must be loaded to resume at the joint hit when the first `first` blocks need no load;
    /// `None` if the hit is no deeper. Its pages and its checkpoint are refreshed when the lease ends.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) for an unknown namespace.
    pub fn acquire(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<Option<ReadLease>> {
        let hold = self.shared.lock().acquire(namespace, keys, first)?;
        Ok(hold.map(|hold| ReadLease::new(Arc::clone(&self.shared), first, hold)))
    }

    /// Which boundaries of a prompt deserve a checkpoint: the policy's choice, and where the prompt leaves
    /// what was asked before; both for the caller to follow. `keys` are those of all its full blocks. To be called once a
    /// request, before its entries are reserved: the policy learns from it what is used.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) for an unknown namespace.
    pub fn admit(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        arrival: Arrival,
    ) -> Result<Admission> {
        self.shared.lock().admit(namespace, keys, arrival)
    }

    /// Tells the policy how many tokens a request produced. `keys` are those of all its full blocks, of
    /// which the prompt has the first `end`; forks are found in the rest as well.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) for an unknown namespace and an `end` that is not among the keys.
    pub fn finish(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        end: usize,
        output_tokens: u64,
    ) -> Result<()> {
        self.shared
            .lock()
            .finish(namespace, keys, end, output_tokens)
    }

    /// Finds room for entries, each a class and a block of `keys`, in any order. What is resident or
    /// in writing, what could never be reached and what there is no room for is skipped and counted.
    ///
    /// Shallow entries get room first; a checkpoint, the pages up to it that are not there yet and the
    /// window pages it needs get room together or not at all, and then nothing deeper does. The prefix
    /// being extended is never evicted for it, and is refreshed when the lease ends.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) for an unknown namespace, a class or block out of range, and keys
    /// that are in use for another prefix. Nothing has changed then.
    pub fn reserve(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        entries: &[(usize, usize)],
    ) -> Result<WriteLease> {
        let reservation = self.shared.lock().reserve(namespace, keys, entries)?;
        Ok(WriteLease::new(Arc::clone(&self.shared), reservation))
    }

    /// Drops the entries of a lease, and what can't be reached without them, from the index: nobody
    /// finds them again. Their slots return when their last lease ends. Returns how many resident
    /// entries were dropped.
    ///
    /// # Errors
    /// [`Error::Lease`](crate::error::Error::Lease) if the lease was released or belongs to another cache.
    pub fn invalidate(&self, lease: &ReadLease) -> Result<usize> {
        let ids = lease.ids_in(&self.shared)?;
        Ok(self.shared.lock().invalidate(ids))
    }

    /// Forgets every entry; slots under a lease return when it ends. Returns how many resident
    /// entries were dropped. Namespaces that somebody holds stay.
    pub fn clear(&self) -> usize {
        self.shared.lock().clear()
    }

    /// Counts and sizes at this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats()
    }

    /// Walks everything and names the first contradiction, if there is one: for tests and tools.
    #[must_use]
    pub fn audit(&self) -> Option<String> {
        self.shared.lock().audit()
    }
}
