//! Leases: pins on entries that end by themselves.

use std::sync::Arc;

use super::entry::{LeaseEntry, Skipped};
use super::locked::Locked;
use super::lookup::ReadSet;
use super::offer::Publication;
use super::queries::PORTION;
use super::reserve::{Reservation, Store};
use super::state::CacheState;
use super::write_order::Wanted;
use crate::error::{Error, Result};
use crate::ids::{EntryId, NamespaceId, PrefixKey};
use crate::policy::Hints;

/// A lease on entries that are loaded: it pins them until it is released or dropped.
pub struct ReadLease {
    locked: Arc<Locked>,
    first: usize,
    read: ReadSet,
    released: bool,
}

impl ReadLease {
    /// A lease on what was pinned; entries that are not described yet are described in portions.
    pub(super) fn new(locked: &Arc<Locked>, first: usize, read: ReadSet) -> Result<Self> {
        let mut lease = Self {
            locked: Arc::clone(locked),
            first,
            read,
            released: false,
        };
        let read = &mut lease.read;
        read.entries.reserve(read.loads.len() - read.entries.len());
        while read.entries.len() < read.loads.len() {
            locked.state.with_again(|state| state.describe_more(read))?;
        }
        Ok(lease)
    }

    /// The first block that the load covers.
    pub const fn first(&self) -> usize {
        self.first
    }

    /// The joint hit: the block after the last that the load covers.
    pub const fn blocks(&self) -> usize {
        self.read.blocks
    }

    /// The entries to load.
    pub fn entries(&self) -> &[LeaseEntry] {
        &self.read.entries
    }

    /// Whether the lease has ended.
    pub const fn released(&self) -> bool {
        self.released
    }

    /// Ends the lease; a second call does nothing.
    pub fn release(&mut self) {
        if !std::mem::replace(&mut self.released, true) {
            self.locked.unpin(std::mem::take(&mut self.read.pinned));
        }
    }

    /// Ids of the entries, which mean something only while the lease lasts, and to the cache that gave it.
    pub(super) fn ids_in(&self, cache: &Arc<Locked>) -> Result<Vec<EntryId>> {
        if !Arc::ptr_eq(&self.locked, cache) {
            return Err(Error::Lease(
                "expected a lease of this cache, found one of another".into(),
            ));
        }
        if self.released {
            return Err(Error::Lease(
                "expected a lease that lasts, found one that was released".into(),
            ));
        }
        Ok(self.read.loads.iter().map(|&(_, id)| id).collect())
    }
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        self.release();
    }
}

/// A lease on room for entries that are written. Lookups see them after [`commit`](WriteLease::commit); if the lease is
/// dropped without it, the room is free again.
pub struct WriteLease {
    locked: Arc<Locked>,
    reservation: Reservation,
    ended: bool,
}

impl WriteLease {
    /// Reserves room for entries, and shows those that are to be written. What was reserved before an error is given
    /// back.
    pub(super) fn reserve(
        locked: &Arc<Locked>,
        (namespace, keys): (NamespaceId, &[PrefixKey]),
        entries: &[(usize, usize)],
        hints: &Hints,
        mut show: impl FnMut(&CacheState, Wanted, EntryId, &mut Vec<LeaseEntry>),
    ) -> Result<Self> {
        let mut store = Store::new(&locked.roles, namespace, keys, entries, hints)?;
        let mut lease = Self {
            locked: Arc::clone(locked),
            reservation: Reservation::default(),
            ended: false,
        };
        let reservation = &mut lease.reservation;
        let mut cleared = Vec::new();
        loop {
            let ended = locked.to_the_end(|state| {
                if state.index.is_clearing() {
                    cleared.push(state.clear_on());
                    return Ok(None);
                }
                loop {
                    let (phase, all) = state.reserve_on(&mut store, reservation, &mut show)?;
                    if !phase || all || entries.len() > PORTION {
                        return Ok(phase.then_some(all));
                    }
                    store.advance(reservation);
                }
            })?;
            if ended {
                return Ok(lease);
            }
            store.advance(reservation);
        }
    }

    /// The entries to write, unless [`reserve_each`](super::Cache::reserve_each) has shown them.
    pub fn entries(&self) -> &[LeaseEntry] {
        &self.reservation.entries
    }

    /// How many wanted entries the lease does not write, by reason.
    pub const fn skipped(&self) -> Skipped {
        self.reservation.skipped
    }

    /// Whether the lease was committed or aborted.
    pub const fn ended(&self) -> bool {
        self.ended
    }

    /// Publishes all entries, when their bytes are whole: many of them in portions, a page before what hangs from it.
    /// `checksums` has for each entry one value per rank.
    /// Entries that were dropped meanwhile stay unpublished. Returns how many were published.
    ///
    /// # Errors
    /// [`Error::Lease`] if the lease has ended, [`Error::InvalidArgument`] if the checksums are not of that shape; the
    /// lease goes on then.
    pub fn commit<C: AsRef<[u64]>>(&mut self, checksums: &[C]) -> Result<usize> {
        self.check_lasts()?;
        let entries = self.reservation.written.len();
        if checksums.len() != entries {
            return Err(Error::InvalidArgument(format!(
                "checksums: expected a list for each of {entries} entries, found {}",
                checksums.len()
            )));
        }
        let ranks = self.locked.with(|state| state.classes.ranks())?;
        for (index, shards) in checksums.iter().enumerate() {
            let found = shards.as_ref().len();
            if found != ranks {
                return Err(Error::InvalidArgument(format!(
                    "checksums of entry {index}: expected a value for each of {ranks} ranks, found {found}"
                )));
            }
        }
        let checksums: Vec<u64> = checksums.iter().flat_map(AsRef::as_ref).copied().collect();
        self.commit_flat(&checksums)
    }

    /// Publishes all entries as [`commit`](Self::commit) does, with the checksums of all entries in one list, entry
    /// after entry.
    ///
    /// # Errors
    /// The errors of [`commit`](Self::commit).
    pub fn commit_flat(&mut self, checksums: &[u64]) -> Result<usize> {
        self.check_lasts()?;
        let ranks = self.locked.with(|state| state.classes.ranks())?;
        let entries = self.reservation.written.len();
        if checksums.len() != ranks * entries {
            return Err(Error::InvalidArgument(format!(
                "checksums: expected {} for {entries} entries of {ranks} ranks, found {}",
                ranks * entries,
                checksums.len()
            )));
        }
        self.publish(|at| Some(&checksums[at * ranks..][..ranks]))
    }

    /// Publishes all entries as [`commit`](Self::commit) does, without checksums: a load can't verify the bytes.
    ///
    /// # Errors
    /// [`Error::Lease`] if the lease has ended, [`Error::InvalidArgument`] if the cache has tiers below: bytes that
    /// leave the process need checksums. The lease goes on then.
    pub fn commit_without_checksums(&mut self) -> Result<usize> {
        self.check_lasts()?;
        if self.locked.with(|state| state.tiers.has_lower())? {
            return Err(Error::InvalidArgument(
                "commit: expected checksums, since this cache has tiers below the host, found none"
                    .into(),
            ));
        }
        self.publish(|_| None)
    }

    fn publish<'a>(&mut self, checksums: impl Fn(usize) -> Option<&'a [u64]>) -> Result<usize> {
        self.ended = true;
        let mut publication = Publication::new(&mut self.reservation);
        let mut cleared = Vec::new();
        self.locked.to_the_end(|state| {
            if state.index.is_clearing() {
                cleared.push(state.clear_on());
                return Ok(None);
            }
            Ok(state.publish(&mut publication, &checksums))
        })
    }

    fn check_lasts(&self) -> Result<()> {
        if self.ended {
            return Err(Error::Lease(
                "commit: expected a lease that lasts, found one that ended".into(),
            ));
        }
        Ok(())
    }

    /// Gives the room back; after the lease's end this call does nothing.
    pub fn abort(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.reservation.settle(&self.locked.roles);
            // What hangs from an entry goes before it, so that each portion is small.
            for ids in self.reservation.ids().rchunks(PORTION) {
                self.locked.end(|state| state.abandon(ids));
            }
            self.locked
                .unpin(std::mem::take(&mut self.reservation.pinned));
        }
    }
}

impl Drop for WriteLease {
    fn drop(&mut self) {
        self.abort();
    }
}
