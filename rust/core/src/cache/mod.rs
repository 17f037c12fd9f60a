//! The only door to index, slots and policy: lookup, acquire, reserve, commit, release.
//!
//! One lock guards everything behind the door and is held for microseconds, never while bytes
//! move. A panic under it closes the door for good. A lease holds the entries that it names and those that they can't be reached without, so
//! whatever may be evicted has nothing below it that somebody uses. Where the policy evicts no page before
//! what hangs from it, a write lease holds only the last page of the prefix that it extends.
//!
//! Leases are about the host: only there do the engine's workers copy. Tiers below it are filled when
//! entries are published, and read when [`Cache::promote`] asks for what only they have.

mod announce;
mod asked;
mod audit;
mod config;
mod copied;
mod copies;
mod entry;
mod kept;
mod lease;
mod leave;
mod passing;
mod plan;
mod promote;
mod proven;
mod reserve;
mod restore;
mod rise;
mod state;
mod stats;
mod tenants;
mod tips;
mod waves;
mod weigh;
mod write_behind;

use std::sync::Arc;

pub use config::{Admission, Arrival, CacheConfig, ClassConfig};
pub use entry::{LeaseEntry, Skipped, Slots};
pub use lease::{ReadLease, WriteLease};
pub use restore::{Progress, Restore};
pub use stats::{RestoreStats, Stats, TierStats};

pub use crate::prefix::{Changes, Medium, Removed, Span};

use crate::error::{Error, Result};
use crate::guarded::{Guarded, unless_it_panics};
use crate::ids::{NamespaceId, PrefixKey, SlotId};
use crate::policy::Hints;
use crate::prefix::Hit;
use crate::tier::Below;
use proven::Unoffered;
use state::State;

/// A prefix cache over the slots of one arena, and any tiers below. Every method may be called from any thread.
pub struct Cache {
    shared: Arc<Shared>,
}

/// The part that a cache shares with its leases. After a panic under its lock nobody gets at the state: nothing is
/// found or handed out, and leases end without a trace, so that no slot of theirs is ever used again.
struct Shared {
    state: Guarded<State>,
    /// What is said of it then.
    closed: (Stats, Vec<TierStats>),
}

impl Shared {
    fn new(state: State) -> Self {
        Self {
            closed: state.when_closed(),
            state: Guarded::new(state),
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> Result<R> {
        self.state.with(work)
    }

    /// Calls `step` until it has an answer, with the lock free in between for the next one that waits. None if the
    /// namespace ends meanwhile.
    fn in_portions<T>(
        &self,
        mut step: impl FnMut(&mut State) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut answer = self.with(&mut step)??;
        while answer.is_none() {
            let Ok(next) = self.state.with_again(&mut step)? else {
                break;
            };
            answer = next;
        }
        Ok(answer)
    }

    /// The same for what has to end, and ends by itself with the state.
    fn end(&self, work: impl FnOnce(&mut State)) {
        // Whoever asks for anything is told of the panic.
        drop(self.with(work));
    }
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a setting out of range, [`Error::Budget`] if the slots can't hold
    /// one entry of each class.
    pub fn new(config: &CacheConfig) -> Result<Self> {
        Self::with_tiers(config, Vec::new())
    }

    /// A cache whose host is empty, over tiers that may have entries from before: lookups find them. The
    /// rooms of the tiers must be empty. Reads prefer the first tier that has an entry.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and [`Error::InvalidArgument`] for more tiers, or more room in them, than
    /// a cache can follow.
    pub fn with_tiers(config: &CacheConfig, below: Vec<Box<dyn Below>>) -> Result<Self> {
        let made = unless_it_panics(|| State::new(config, below).map(Shared::new));
        let panicked =
            || Error::Panicked("expected a cache, found a panic while it was made".into());
        Ok(Self {
            shared: Arc::new(made.ok_or_else(panicked)??),
        })
    }

    /// The number of an identity under which prefix keys are unique, and one hold of it. It is the same
    /// for the same bytes as long as it has a hold or an entry; then the identity is freed, its number is
    /// unknown for good, and the identity gets another when it comes back.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when all 2^32 numbers are given.
    pub fn namespace(&self, identity: &[u8]) -> Result<NamespaceId> {
        self.namespace_of(identity, b"")
    }

    /// The same for a tenant other than the nameless one. All that is stored under the namespace counts
    /// against the tenant's share.
    ///
    /// # Errors
    /// Those of [`namespace`](Self::namespace), and [`Error::InvalidArgument`] for an identity that is another
    /// tenant's.
    pub fn namespace_of(&self, identity: &[u8], tenant: &[u8]) -> Result<NamespaceId> {
        self.shared
            .with(|state| state.namespace(identity, tenant))?
    }

    /// Gives back one hold of [`namespace`](Self::namespace). Without that the identity stays known.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace, and for one that has entries and no hold.
    pub fn release_namespace(&self, namespace: NamespaceId) -> Result<()> {
        self.shared
            .with(|state| state.release_namespace(namespace))?
    }

    /// The joint hit for a prefix, one key per block, over all tiers, and why it is no deeper. It refreshes
    /// nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn lookup(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Result<Hit> {
        let hit = self
            .shared
            .in_portions(|state| state.lookup(namespace, keys))?;
        Ok(hit.unwrap_or_default())
    }

    /// Brings what the joint hit needs and only tiers below have into the host, when the first `first`
    /// blocks need no load. Returns whether that is under way. A caller that can wait asks again; one that
    /// can't calls [`acquire`](Self::acquire) for the hit of the host alone. It is not under way when nothing
    /// is missing, when the host has no room, and when the engine writes one of the entries at this moment.
    /// With too little room for the joint hit, the deepest boundary that has room is read.
    ///
    /// Nothing is held for the caller until it asks again: [`restore`](Self::restore) does that.
    ///
    /// Bytes are seen when they have the checksums that they were published with; a tier's entry that can't be
    /// read, or has others, is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn promote(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<bool> {
        let mut rise = None;
        let under_way = self
            .shared
            .in_portions(|state| state.promote(namespace, keys, first, &mut rise))?;
        Ok(under_way.unwrap_or(false))
    }

    /// Begins to bring the joint hit to the engine, when its first `first` blocks need no load: also one that is
    /// larger than the host, in waves. `None` if the host has all of it, or it is no deeper: then
    /// [`acquire`](Self::acquire) it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn restore(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<Option<Restore>> {
        Restore::plan(&self.shared, namespace, keys, first)
    }

    /// Takes note of copies to and from tiers below that ended. Lookups, promotions and commits do so, too:
    /// it is for times when there are none.
    pub fn poll(&self) {
        self.shared.end(State::poll);
    }

    /// Holds what must be loaded to resume at the joint hit of the host when the first `first` blocks need no
    /// load; `None` if the hit is no deeper. Its pages and its checkpoint are refreshed when the lease ends.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn acquire(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<Option<ReadLease>> {
        let hold = self
            .shared
            .with(|state| state.acquire(namespace, keys, first))??;
        hold.map(|hold| ReadLease::new(&self.shared, first, hold))
            .transpose()
    }

    /// Which boundaries of a prompt deserve a checkpoint: the policy's choice, and where the prompt leaves
    /// what was asked before; both for the caller to follow. `keys` are those of all its full blocks. To be called once a
    /// request, before its entries are reserved: the policy learns from it what is used.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn admit(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        arrival: Arrival,
    ) -> Result<Admission> {
        let (admission, mut more) = self
            .shared
            .with(|state| state.admit(namespace, keys, arrival))??;
        // A portion was offered to tiers that wait for proof; the lock is free between the others.
        while let Some(Unoffered { from, to }) = more {
            let shared = &self.shared.state;
            more = shared.with_again(|state| state.prove_on(namespace, &keys[..to], from))?;
        }
        Ok(admission)
    }

    /// Tells the policy how many tokens a request produced. `keys` are those of all its full blocks, of
    /// which the prompt has the first `end`; forks are found in the rest as well.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace and an `end` that is not among the keys.
    pub fn finish(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        end: usize,
        output_tokens: u64,
    ) -> Result<()> {
        self.shared
            .with(|state| state.finish(namespace, keys, end, output_tokens))?
    }

    /// Finds room for entries, each a class and a block of `keys`, in any order. What is resident or
    /// in writing, what could never be reached and what there is no room for is skipped and counted.
    ///
    /// Shallow entries get room first; a checkpoint, the pages up to it that are not there yet and the
    /// window pages it needs get room together or not at all, and then nothing deeper does. The prefix
    /// being extended is never evicted for it, and is refreshed when the lease ends. A tenant that has its
    /// share of the room gets it from its own entries.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace, a class or block out of range, and keys
    /// that are in use for another prefix; those before the first entry may go unread, as chained keys vouch for
    /// them. Nothing has changed then.
    pub fn reserve(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        entries: &[(usize, usize)],
    ) -> Result<WriteLease> {
        self.reserve_hinted(namespace, keys, entries, &Hints::NONE)
    }

    /// The first block from `first` on whose page [`reserve`](Self::reserve) may have to write: for those before it
    /// there is nothing to do. It takes no longer for a longer prefix.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn unwritten(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<usize> {
        self.shared
            .with(|state| state.unwritten(namespace, keys, first))?
    }

    /// The same for a request with hints: they say how the entries are kept, and those that they stand on.
    ///
    /// # Errors
    /// Those of [`reserve`](Self::reserve).
    pub fn reserve_hinted(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        entries: &[(usize, usize)],
        hints: &Hints,
    ) -> Result<WriteLease> {
        let reservation = self.shared.with(|state| {
            let mut reservation = state.reserve(namespace, keys, entries, hints)?;
            let written = reservation.written.iter();
            reservation.entries = written
                .map(|&(at, id)| state.describe(at.block, id))
                .collect();
            Ok::<_, Error>(reservation)
        })??;
        Ok(WriteLease::new(Arc::clone(&self.shared), reservation))
    }

    /// The same for a caller that wants no list: `each` gets class, block and slots of every entry in the order of
    /// [`WriteLease::entries`], which are none then.
    ///
    /// # Errors
    /// Those of [`reserve`](Self::reserve).
    pub fn reserve_each(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        entries: &[(usize, usize)],
        hints: &Hints,
        mut each: impl FnMut(usize, usize, &[SlotId]),
    ) -> Result<WriteLease> {
        let reservation = self.shared.with(|state| {
            let reservation = state.reserve(namespace, keys, entries, hints)?;
            for &(at, id) in &reservation.written {
                each(at.class, at.block, &state.slots(id));
            }
            Ok::<_, Error>(reservation)
        })??;
        Ok(WriteLease::new(Arc::clone(&self.shared), reservation))
    }

    /// Drops the entries of a lease, and what can't be reached without them, from every tier: nobody
    /// finds them again. Their slots return when their last lease ends. Returns how many resident
    /// entries were dropped.
    ///
    /// # Errors
    /// [`Error::Lease`] if the lease was released or belongs to another cache.
    pub fn invalidate(&self, lease: &ReadLease) -> Result<usize> {
        let ids = lease.ids_in(&self.shared)?;
        self.shared.with(|state| state.invalidate(&ids))
    }

    /// Forgets every entry in every tier; slots under a lease return when it ends. Returns how many entries
    /// resident in the host were dropped. Namespaces that somebody holds stay.
    pub fn clear(&self) -> usize {
        self.shared.with(State::clear).unwrap_or_default()
    }

    /// Hands out only the first so many slots from now on: the memory of the others is not ready. All are at
    /// the beginning; while there are fewer, entries that find no room are counted as
    /// [`not_ready`](Skipped::not_ready).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if one behind them was handed out
    /// before, or the cache has not as many.
    pub fn set_ready_slots(&self, slots: usize) -> Result<()> {
        self.shared.with(|state| state.set_ready_slots(slots))?
    }

    /// Says how many blocks of a prompt the engine computes in a second; `None`, as at the beginning, if that is
    /// not known. Then what tiers below have is read even where computing it would be faster.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rate that is not above 0.
    pub fn set_compute_rate(&self, blocks_per_second: Option<f64>) -> Result<()> {
        self.shared
            .with(|state| state.set_compute_rate(blocks_per_second))?
    }

    /// Counts and sizes at this moment; after a [`failure`](Self::failure) all slots count as leased.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let stats = self.shared.with(|state| state.stats());
        stats.unwrap_or(self.shared.closed.0)
    }

    /// Counts of the tiers below the host, in order.
    #[must_use]
    pub fn tiers(&self) -> Vec<TierStats> {
        let tiers = self.shared.with(|state| state.tiers());
        tiers.unwrap_or_else(|_| self.shared.closed.1.clone())
    }

    /// Counts of restores from tiers below.
    #[must_use]
    pub fn restores(&self) -> RestoreStats {
        let restores = self.shared.with(|state| state.restores);
        restores.unwrap_or_default()
    }

    /// Why the cache finds and stores nothing any more, if that is so: there was a panic inside. Every other call
    /// that can fail fails with this, and leases end without giving anything back.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.shared.state.failure()
    }

    /// Walks everything and names the first contradiction, if there is one: for tests and tools.
    #[must_use]
    pub fn audit(&self) -> Option<String> {
        let audit = self.shared.with(|state| state.audit());
        audit.unwrap_or_else(|error| Some(error.to_string()))
    }
}
