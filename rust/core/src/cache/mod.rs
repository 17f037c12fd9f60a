//! The only door to index, slots and policy: lookup, acquire, reserve, commit, release.
//!
//! One lock guards everything behind the door and is held for microseconds, never while bytes move. A panic under it
//! closes the door for good. A lease pins the entries that it names and the pages that lead to them, so an entry in use
//! never loses a page that it hangs from. Where the policy evicts no page before those that hang from it, a write lease
//! pins only the last page of the prefix that it extends.
//!
//! Leases are about the host: only there do the engine's workers copy. Tiers below it are filled when entries are
//! published. Entries that only they have come back by [`Cache::restore`], or by [`Cache::promote`] for callers that
//! copy all at once.
//!
//! `state.rs` has the state that the lock guards and the moves that keep its parts in agreement.

mod admit;
mod announced;
mod audit;
mod classes;
mod config;
mod copies;
mod discover;
mod entry;
mod follow;
mod lease;
mod leave;
mod locked;
mod lookup;
mod offer;
mod outlook;
mod poll;
mod prefix_pins;
mod queries;
mod reserve;
mod restore;
mod restoring;
mod room;
mod state;
mod stats;
mod tails;
mod tenants;
mod tier_pins;
mod tiers;
mod transient;
mod visits;
mod write_order;

use std::sync::Arc;

pub use announced::{Changes, Medium, RemovedBlock, StoredBlocks};
pub use config::{Admission, Arrival, CacheConfig, ClassConfig};
pub use entry::{LeaseEntry, Skipped, Slots};
pub use lease::{ReadLease, WriteLease};
pub use restore::{Restore, RestoreProgress};
pub use stats::{CacheStats, RestoreStats, TierStats};
pub use tails::TailLengths;

use crate::error::{Error, Result};
use crate::guarded::unless_it_panics;
use crate::ids::{NamespaceId, PrefixKey, SlotId};
use crate::policy::Hints;
use crate::prefix::Hit;
use crate::tier::Below;
use admit::Admitting;
use discover::Discovery;
use locked::Locked;
use offer::Unoffered;
use state::CacheState;

/// A prefix cache over the slots of one arena, and any tiers below. Every method may be called from any thread.
pub struct Cache {
    locked: Arc<Locked>,
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
    /// The errors of [`new`](Self::new), and [`Error::InvalidArgument`] for more tiers, or more room in them, than a
    /// cache can follow.
    pub fn with_tiers(config: &CacheConfig, below: Vec<Box<dyn Below>>) -> Result<Self> {
        let made = unless_it_panics(|| CacheState::new(config, below).map(Locked::new));
        let panicked =
            || Error::Panicked("expected a cache, found a panic while it was made".into());
        Ok(Self {
            locked: Arc::new(made.ok_or_else(panicked)??),
        })
    }

    /// Gives an identity, under which prefix keys are unique, its number and one hold. The same bytes keep their number
    /// while the identity has a hold or an entry. After that the number is unknown for good, and the identity gets
    /// another one when it comes back.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when all 2^32 numbers are given.
    pub fn namespace(&self, identity: &[u8]) -> Result<NamespaceId> {
        self.namespace_of(identity, b"")
    }

    /// Gives an identity of a named tenant its number, as [`namespace`](Self::namespace) does. All that is stored under
    /// the namespace counts against the tenant's share of the room.
    ///
    /// # Errors
    /// The errors of [`namespace`](Self::namespace), and [`Error::InvalidArgument`] for an identity of another tenant.
    pub fn namespace_of(&self, identity: &[u8], tenant: &[u8]) -> Result<NamespaceId> {
        self.locked
            .with(|state| state.namespace(identity, tenant))?
    }

    /// Gives back one hold on a namespace. An identity stays known while it has holds.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace, and for one that has entries and no hold.
    pub fn release_namespace(&self, namespace: NamespaceId) -> Result<()> {
        self.locked
            .with(|state| state.release_namespace(namespace))?
    }

    /// The joint hit for a prefix, one key per block, over all tiers, and why it is no deeper. A lookup does not count
    /// as a use of what it finds. The last key may be that of a tail: a hit of all keys ends after its tokens.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace, and for a tail that is not the last key or hangs from
    /// another block.
    pub fn lookup(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Result<Hit> {
        let mut discovery = Discovery::default();
        let lookup = |state: &mut CacheState| state.lookup(namespace, keys, &mut discovery);
        let hit = self.locked.in_portions(lookup)?;
        Ok(hit.unwrap_or_default())
    }

    /// Begins to read into the host what the joint hit needs and only tiers below have, when the first `first` blocks
    /// need no load. Returns whether reads are under way. A caller that can wait asks again; one that can't calls
    /// [`acquire`](Self::acquire) for the hit of the host alone. No reads are under way when nothing is missing, when
    /// the host has no room, and when the engine writes one of the entries at this moment. With too little room for the
    /// joint hit, the deepest boundary that has room is read.
    /// Nothing is pinned for the caller until it asks again: [`restore`](Self::restore) does that.
    ///
    /// Lookups see an entry when its bytes have the checksums that they were published with. A tier's entry that can't
    /// be read, or has other bytes, is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn promote(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<bool> {
        let (mut discovery, mut promotion) = (Discovery::default(), None);
        let under_way = self.locked.in_portions(|state| {
            state.promote(namespace, keys, first, &mut discovery, &mut promotion)
        })?;
        Ok(under_way.unwrap_or(false))
    }

    /// Begins to bring the joint hit to the engine when the first `first` blocks need no load. A hit that is larger
    /// than the host comes in waves. `None` if the host has all of the hit, or it is no deeper than `first`: then
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
        Restore::plan(&self.locked, namespace, keys, first)
    }

    /// Takes note of copies to and from tiers below that ended. Lookups, promotions and commits do so, too: this call
    /// is for times when there are none.
    pub fn poll(&self) {
        let ended = |state: &mut CacheState| Ok((!state.poll()).then_some(()));
        drop(self.locked.in_portions(ended));
    }

    /// Pins the entries that must be loaded to resume at the joint hit of the host when the first `first` blocks need
    /// no load; `None` if the hit is no deeper than that. The end of the lease counts as a use of all that it pins.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn acquire(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<Option<ReadLease>> {
        let read = self
            .locked
            .with(|state| state.acquire(namespace, keys, first))??;
        read.map(|read| ReadLease::new(&self.locked, first, read))
            .transpose()
    }

    /// Chooses the boundaries of a prompt that deserve a checkpoint: those that the policy wants, and the one where the
    /// prompt leaves earlier prompts. The caller stores checkpoints there. `keys` has a key for each full block of the
    /// prompt. Call this once per request, before its entries are reserved: the policy learns from it what is used.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn admit(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        arrival: Arrival,
    ) -> Result<Admission> {
        let mut admitting = Admitting::new(namespace, keys, arrival);
        let (admission, mut more) = self
            .locked
            .to_the_end(|state| state.admit(&mut admitting))?;
        self.locked.retain(&admitting.retained, &arrival.hints);
        // One portion was offered to tiers that wait for proof. Between further portions the lock is free.
        while let Some(Unoffered { from, to }) = more {
            let state = &self.locked.state;
            more = state.with_again(|state| state.prove_on(namespace, &keys[..to], from))?;
        }
        Ok(admission)
    }

    /// Tells the policy how many tokens a request produced. `keys` has a key for each full block of the request; the
    /// first `end` are those of the prompt. Later prompts may fork anywhere in them.
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
        self.locked
            .with(|state| state.finish(namespace, keys, end, output_tokens))?
    }

    /// Reserves room for entries, each a class and a block of `keys`, in any order. Entries that are resident or in
    /// writing, that could never be reached, or that find no room are skipped and counted.
    ///
    /// Shallow entries get room first; a checkpoint, the pages up to it that are not there yet and the
    /// window pages it needs get room together or not at all, and then nothing deeper does. The prefix
    /// being extended is never evicted for it, and counts as used when the lease ends. A tenant that has its
    /// share of the room gets room from its own entries.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace, a class or block out of range, a tail that is not the last
    /// key or hangs from another block, and keys that are in use for another prefix; those before the first entry may
    /// go unread, as chained keys vouch for them. Nothing stays reserved then, but what made room for a part of many
    /// entries has left, and the part of the prefix that was looked at counts as used.
    pub fn reserve(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        entries: &[(usize, usize)],
    ) -> Result<WriteLease> {
        self.reserve_hinted(namespace, keys, entries, &Hints::NONE)
    }

    /// The first block from `first` on whose page [`reserve`](Self::reserve) may have to write: the host has those
    /// before it. This call takes no longer for a longer prefix.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown namespace.
    pub fn unwritten(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
    ) -> Result<usize> {
        self.locked
            .with(|state| state.unwritten(namespace, keys, first))?
    }

    /// Reserves room as [`reserve`](Self::reserve) does, for a request with hints. The hints say how its entries and
    /// the prefix before them are kept.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn reserve_hinted(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        entries: &[(usize, usize)],
        hints: &Hints,
    ) -> Result<WriteLease> {
        let prefix = (namespace, keys);
        WriteLease::reserve(
            &self.locked,
            prefix,
            entries,
            hints,
            |state, at, id, shown| {
                shown.push(state.describe(at.block, id));
            },
        )
    }

    /// Reserves room as [`reserve_hinted`](Self::reserve_hinted) does, without a list: `each` gets class, block and
    /// slots of every entry that is to be written, in order, and [`WriteLease::entries`] is empty.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn reserve_each(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        entries: &[(usize, usize)],
        hints: &Hints,
        mut each: impl FnMut(usize, usize, &[SlotId]),
    ) -> Result<WriteLease> {
        let prefix = (namespace, keys);
        WriteLease::reserve(&self.locked, prefix, entries, hints, |state, at, id, _| {
            each(at.class, at.block, &state.slots(id));
        })
    }

    /// Drops the entries of a lease, and all that can't be reached without them, from every tier: nobody finds them
    /// again. Slots are free again when the last lease on them ends. Returns how many resident entries were dropped.
    /// Many of them go in portions, from the end of the prefix.
    ///
    /// # Errors
    /// [`Error::Lease`] if the lease was released or belongs to another cache.
    pub fn invalidate(&self, lease: &ReadLease) -> Result<usize> {
        let mut ids = lease.ids_in(&self.locked)?;
        let (mut dropped, mut cleared) = (0, Vec::new());
        self.locked.to_the_end(|state| {
            if state.index.is_clearing() {
                cleared.push(state.clear_on());
                return Ok(None);
            }
            Ok(state.invalidate(&mut ids, &mut dropped))
        })?;
        Ok(dropped as usize)
    }

    /// Takes the entries of a lease, and all that hangs from their pages, out of the tiers before the one of this number
    /// below the host, counted from 1, if that has them all. Returns how many left the host.
    ///
    /// # Errors
    /// The errors of [`invalidate`](Self::invalidate).
    pub fn leave_to(&self, lease: &ReadLease, tier: usize) -> Result<usize> {
        let (mut ids, mut left) = (lease.ids_in(&self.locked)?, 0);
        self.locked
            .to_the_end(|state| Ok(state.leave_to(&mut ids, tier, &mut left)))?;
        Ok(left as usize)
    }

    /// Forgets every entry in every tier; slots under a lease return when it ends. Returns how many entries
    /// resident in the host were dropped. Namespaces that somebody holds stay.
    ///
    /// Nothing is found from its beginning on. The entries are let go in portions, and reservations that come meanwhile
    /// help with that first.
    pub fn clear(&self) -> usize {
        let mut begun = false;
        let clear = |state: &mut CacheState| {
            if !std::mem::replace(&mut begun, true) && !state.index.is_clearing() {
                state.clear();
            }
            // Others may have ended it: then what has come since stays.
            let under_way = state.index.is_clearing();
            let cleared = under_way.then(|| state.clear_on()).flatten();
            let ended = !state.index.is_clearing();
            Ok(ended.then(|| (std::mem::take(&mut state.dropped), cleared)))
        };
        let cleared = self.locked.in_portions(clear);
        cleared.map_or(0, |cleared| cleared.map_or(0, |it| it.0 as usize))
    }

    /// Hands out only the first so many slots from now on: the memory of the others is not ready. At the beginning all
    /// slots are ready. While fewer are, entries that find no room are counted as [`not_ready`](Skipped::not_ready).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a slot behind them was handed out before, or the cache has fewer slots.
    pub fn set_ready_slots(&self, slots: usize) -> Result<()> {
        self.locked.with(|state| state.set_ready_slots(slots))?
    }

    /// Says how many blocks of a prompt the engine computes in a second; `None`, as at the beginning, if that is not
    /// known. Then entries of tiers below are read even where computing would be faster.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rate that is not above 0.
    pub fn set_compute_rate(&self, blocks_per_second: Option<f64>) -> Result<()> {
        self.locked
            .with(|state| state.set_compute_rate(blocks_per_second))?
    }

    /// Says how many tokens a block has, so that reads for a tail are weighed against its tokens. If that is not known,
    /// as at the beginning, a tail counts as a block.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no tokens.
    pub fn set_block_tokens(&self, tokens: u32) -> Result<()> {
        self.locked.with(|state| state.set_block_tokens(tokens))?
    }

    /// Counts and sizes at this moment; after a [`failure`](Self::failure) all slots count as leased.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let stats = self.locked.with(|state| state.stats());
        stats.unwrap_or(self.locked.closed.0)
    }

    /// Counts of the tiers below the host, in order.
    #[must_use]
    pub fn tiers(&self) -> Vec<TierStats> {
        let tiers = self.locked.with(|state| state.tiers.stats());
        tiers.unwrap_or_else(|_| self.locked.closed.1.clone())
    }

    /// Counts of restores from tiers below.
    #[must_use]
    pub fn restores(&self) -> RestoreStats {
        let restores = self.locked.with(|state| state.restoring.stats);
        restores.unwrap_or_default()
    }

    /// The error of a panic inside, if there was one: then the cache finds and stores nothing any more. Every other
    /// call that can fail returns this error, and leases end without giving anything back.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.locked.state.failure()
    }

    /// Batches of copies that have not ended.
    #[cfg(shuttle)] // tests/rust/races
    #[must_use]
    pub fn batches(&self) -> usize {
        self.locked
            .with(|state| state.copies.batches())
            .unwrap_or(0)
    }

    /// Walks everything and names the first contradiction, if there is one: for tests and tools.
    #[must_use]
    pub fn audit(&self) -> Option<String> {
        let audit = self.locked.with(|state| state.audit());
        audit.unwrap_or_else(|error| Some(error.to_string()))
    }
}
