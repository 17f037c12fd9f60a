//! The handle of a disk: what the owner of a cache keeps when the tier itself has gone into the cache.

use std::sync::Arc;
use std::time::Duration;

use crate::connect::{close, connect, index_bytes, prepare};
use crate::shared::DiskShared;
use crate::stats::DiskStats;
use crate::trial::try_again;
use hybrid_pages::error::{Error, Result};
use hybrid_pages_arena::Arena;
use hybrid_pages_tiers::{Identity, lock, wait_until};

const NAP: Duration = Duration::from_millis(2);
/// An index with more bytes takes a moment to read: some 50,000 entries have as many.
const LARGE: u64 = 8 << 20;

/// Connects a disk, and reads its counts and notes. A handle may outlive the disk.
#[derive(Debug, Clone)]
pub struct DiskHandle(pub(crate) Arc<DiskShared>);

impl DiskHandle {
    /// Opens the store of an identity, with the arena of the cache's slots. Before that the disk finds nothing and
    /// takes nothing. `identity` is a digest of everything that the bytes depend on.
    ///
    /// Damage costs entries, but never fails the start. If the system refuses a call, the disk is out, its files stay
    /// as they are, and it is tried again as after an outage.
    ///
    /// # Errors
    /// [`Error::Disk`](hybrid_pages::error::Error::Disk) for symbolic links in the place of files, and at the second call;
    /// [`Error::Disk`](hybrid_pages::error::Error::Disk) and [`Error::Foreign`](hybrid_pages::error::Error::Foreign) as
    /// [`Disk::open`](crate::Disk::open), if that could not open the directory;
    /// [`Error::Arena`](hybrid_pages::error::Error::Arena) if the arena lacks a plane;
    /// [`Error::InvalidArgument`](hybrid_pages::error::Error::InvalidArgument) for slots of another size.
    pub fn connect(&self, arena: &Arena, identity: &Identity) -> Result<()> {
        self.guarded(|| {
            prepare(&self.0, arena, identity)?;
            connect(&self.0)
        })
    }

    /// As [`connect`](Self::connect), for a process that serves requests already: a store of many entries is opened
    /// by a thread, since reading its index takes long. Until then the disk is out. If another key or program has the
    /// store, that is a failure of the disk then, and no error.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect), for a store of few entries.
    pub fn connect_meanwhile(&self, arena: &Arena, identity: &Identity) -> Result<()> {
        self.guarded(|| {
            prepare(&self.0, arena, identity)?;
            if index_bytes(&self.0) < LARGE {
                return connect(&self.0);
            }
            lock(&self.0.health).begin_trial();
            try_again(&self.0);
            Ok(())
        })
    }

    fn guarded(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut outcome = Err(Error::disk("expected a disk, found a panic"));
        self.0.unless_it_panics(|| outcome = work());
        outcome
    }

    /// Writes a description of what the identity was made from, for people and tools; lookups don't read it. Does
    /// nothing before the disk is connected. If the store is not open yet, the text is written when it is. Failures
    /// are counted, and so are texts above a mebibyte.
    pub fn describe(&self, about: &str) {
        if self.0.identity.get().is_some() {
            *lock(&self.0.about) = Some(about.to_owned());
            self.0.unless_it_panics(|| self.0.describe());
        }
    }

    /// The disk's counts at this moment.
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        self.0.stats()
    }

    /// Takes the notes for an operator since the last call, such as a line for the first failure of each kind.
    #[must_use]
    pub fn take_notes(&self) -> Vec<String> {
        self.0.ledger.take_notes()
    }

    /// Waits until every copy has ended and a new process would find all entries that were written. False if that
    /// takes longer than the limit.
    #[must_use]
    pub fn settle(&self, limit: Duration) -> bool {
        wait_until(limit, NAP, || {
            let idle = self.0.is_idle() && {
                let book = lock(&self.0.book);
                let kept = book.durable == book.published && book.changes.is_empty();
                kept || book.store.as_ref().is_none_or(|store| !store.persistent)
            };
            if !idle {
                self.0.bell.ring();
            }
            idle
        })
    }

    /// Ends the copies and the threads, and releases the lane, so another disk may take it. The cache may live on: it
    /// finds nothing here, and writes nothing. A second call does nothing.
    pub fn close(&self) {
        close(&self.0);
    }

    /// The knowledge of the tier's policy, encoded for the next process; empty for a policy that learns nothing.
    #[must_use]
    pub fn learnt(&self) -> Vec<u8> {
        self.0.learner.learnt()
    }

    /// The first contradiction in the state of the disk, if there is one, for tests and tools.
    #[must_use]
    pub fn audit(&self) -> Option<String> {
        if self.0.is_broken() {
            return Some("expected no panic, found one".into());
        }
        lock(&self.0.book).audit()
    }
}
