//! Holds on entries that end by themselves.

use std::sync::Arc;

use super::Shared;
use super::entry::{LeaseEntry, Skipped};
use super::reserve::Reservation;
use super::state::ReadHold;
use crate::error::{Error, Result};
use crate::ids::EntryId;

/// Keeps what a load reads where it is. Ends when released or dropped.
pub struct ReadLease {
    shared: Arc<Shared>,
    first: usize,
    hold: ReadHold,
    released: bool,
}

impl ReadLease {
    /// Describes what is left to describe, in portions.
    pub(super) fn new(shared: &Arc<Shared>, first: usize, hold: ReadHold) -> Result<Self> {
        let mut lease = Self {
            shared: Arc::clone(shared),
            first,
            hold,
            released: false,
        };
        let hold = &mut lease.hold;
        hold.entries.reserve(hold.loads.len() - hold.entries.len());
        while hold.entries.len() < hold.loads.len() {
            shared.state.with_again(|state| state.describe_more(hold))?;
        }
        Ok(lease)
    }

    /// First block that the load covers.
    #[must_use]
    pub const fn first(&self) -> usize {
        self.first
    }

    /// The joint hit: the block after the last that the load covers.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.hold.blocks
    }

    /// The entries to load.
    #[must_use]
    pub fn entries(&self) -> &[LeaseEntry] {
        &self.hold.entries
    }

    /// Whether it has ended.
    #[must_use]
    pub const fn released(&self) -> bool {
        self.released
    }

    /// Ends it; a second time does nothing.
    pub fn release(&mut self) {
        if !std::mem::replace(&mut self.released, true) {
            let held = std::mem::take(&mut self.hold.held);
            self.shared.end(|state| state.let_go(held));
        }
    }

    /// Ids of the entries, which mean something only while the lease lasts and to its own cache.
    pub(super) fn ids_in(&self, cache: &Arc<Shared>) -> Result<Vec<EntryId>> {
        if !Arc::ptr_eq(&self.shared, cache) {
            return Err(Error::Lease(
                "expected a lease of this cache, found one of another".into(),
            ));
        }
        if self.released {
            return Err(Error::Lease(
                "expected a lease that lasts, found one that was released".into(),
            ));
        }
        Ok(self.hold.loads.iter().map(|&(_, id)| id).collect())
    }
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        self.release();
    }
}

/// Room for entries that nobody sees until [`commit`](WriteLease::commit); dropped without it, the room
/// is free again.
pub struct WriteLease {
    shared: Arc<Shared>,
    reservation: Reservation,
    ended: bool,
}

impl WriteLease {
    pub(super) const fn new(shared: Arc<Shared>, reservation: Reservation) -> Self {
        Self {
            shared,
            reservation,
            ended: false,
        }
    }

    /// The entries to write, unless [`reserve_each`](super::Cache::reserve_each) has shown them.
    #[must_use]
    pub fn entries(&self) -> &[LeaseEntry] {
        &self.reservation.entries
    }

    /// How many wanted entries are not among them, by reason.
    #[must_use]
    pub const fn skipped(&self) -> Skipped {
        self.reservation.skipped
    }

    /// Whether it was committed or aborted.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.ended
    }

    /// Publishes all entries at once: their bytes are whole, and `checksums` has for each of them a
    /// value a rank. Entries that were dropped meanwhile stay unpublished. Returns how many were published.
    ///
    /// # Errors
    /// [`Error::Lease`] if it has ended, [`Error::InvalidArgument`] if the checksums are not of that
    /// shape; the lease goes on then.
    pub fn commit<C: AsRef<[u64]>>(&mut self, checksums: &[C]) -> Result<usize> {
        self.check_lasts()?;
        let entries = self.reservation.written.len();
        if checksums.len() != entries {
            return Err(Error::InvalidArgument(format!(
                "checksums: expected a list for each of {entries} entries, found {}",
                checksums.len()
            )));
        }
        let ranks = self.shared.with(|state| state.ranks())?;
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

    /// As [`commit`](Self::commit), with the values of each entry behind those of the entry before.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit).
    pub fn commit_flat(&mut self, checksums: &[u64]) -> Result<usize> {
        self.check_lasts()?;
        let Self {
            shared,
            reservation,
            ended,
        } = self;
        shared.with(|state| {
            let (ranks, entries) = (state.ranks(), reservation.written.len());
            if checksums.len() != ranks * entries {
                return Err(Error::InvalidArgument(format!(
                    "checksums: expected {} for {entries} entries of {ranks} ranks, found {}",
                    ranks * entries,
                    checksums.len()
                )));
            }
            *ended = true;
            let checksums = checksums.chunks_exact(ranks).map(Some);
            Ok(reservation.publish(state, checksums))
        })?
    }

    /// As [`commit`](Self::commit), for bytes whose checksums nobody has computed: a load can't verify them.
    ///
    /// # Errors
    /// [`Error::Lease`] if it has ended, [`Error::InvalidArgument`] if the cache has tiers below: what leaves
    /// the process has checksums. The lease goes on then.
    pub fn commit_without_checksums(&mut self) -> Result<usize> {
        self.check_lasts()?;
        let Self {
            shared,
            reservation,
            ended,
        } = self;
        shared.with(|state| {
            if !state.below.is_empty() {
                return Err(Error::InvalidArgument(
                    "commit: expected checksums, since this cache has tiers below the host, found none".into(),
                ));
            }
            *ended = true;
            Ok(reservation.publish(state, std::iter::repeat(None)))
        })?
    }

    fn check_lasts(&self) -> Result<()> {
        if self.ended {
            return Err(Error::Lease(
                "commit: expected a lease that lasts, found one that ended".into(),
            ));
        }
        Ok(())
    }

    /// Gives the room back; after the lease's end it does nothing.
    pub fn abort(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.shared.end(|state| self.reservation.abandon(state));
        }
    }
}

impl Drop for WriteLease {
    fn drop(&mut self) {
        self.abort();
    }
}
