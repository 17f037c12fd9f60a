//! The thread that keeps the index up with the book, and removes directories. No engine step is needed
//! for either.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use crate::book::Victim;
use crate::index::{DiskIndex, IndexOwner};
use crate::lock;
use crate::path::lane::DiskLane;
use crate::shared::DiskShared;
use crate::stats::DiskFailure;
use crate::store::{DiskStore, StoreNames};
use hybrid_pages_tiers::Name;

/// Changes within this time go into one commit.
const BATCH: Duration = Duration::from_millis(40);
const IDLE: Duration = Duration::from_secs(1);
/// Seconds between two looks whether the policy has learned anything.
const LEARNT: u64 = 60;
/// The longest pause before a broken index is opened again, or made anew.
const LONGEST: Duration = Duration::from_secs(64);

/// The keeper's own state.
pub(crate) struct Keeper {
    shared: Arc<DiskShared>,
    /// The open index, with the epoch of its store.
    index: Option<(u64, DiskIndex)>,
    /// Digest of the policy's knowledge that the index has.
    learnt: Option<u64>,
    looked: u64,
    pause: Duration,
    again: Instant,
    stopping: bool,
}

impl Keeper {
    /// A keeper of an index that was opened for a store, or of one that it makes.
    pub(crate) fn new(shared: Arc<DiskShared>, index: Option<(u64, DiskIndex)>) -> Self {
        Self {
            shared,
            index,
            learnt: None,
            looked: 0,
            pause: IDLE,
            again: Instant::now(),
            stopping: false,
        }
    }

    /// Works until it is told to stop. Entries that were published by then are committed, unless a panic has left
    /// them in doubt.
    pub(crate) fn run(self) {
        let shared = Arc::clone(&self.shared);
        shared.unless_it_panics(|| self.keep());
    }

    fn keep(mut self) {
        loop {
            let ringing = self.shared.bell.wait(IDLE);
            if self.shared.is_broken() {
                return;
            }
            if ringing.rung && !ringing.stop {
                self.shared.bell.pause(BATCH);
            }
            self.stopping = ringing.stop;
            self.tidy();
            self.commit();
            if ringing.stop {
                break;
            }
        }
        let store = lock(&self.shared.book).store.clone();
        if let Some(Err(error)) = store.map(|store| store.sync()) {
            self.shared
                .ledger
                .failed(DiskFailure::Upkeep, &format!("cannot sync: {error}"));
        }
        self.close();
    }

    /// Removes what was cleared, and opens a new store after that.
    fn tidy(&mut self) {
        let shared = &self.shared;
        let mut synced = false;
        loop {
            let mut book = lock(&shared.book);
            let Some(trash) = book.take_trash() else {
                break;
            };
            drop(book);
            if !std::mem::replace(&mut synced, true)
                && let Err(error) = shared.lane().and_then(DiskLane::sync)
            {
                shared.ledger.failed(
                    DiskFailure::Upkeep,
                    &format!("cannot sync a rename: {error}"),
                );
            }
            shared.discard(trash);
        }
        let (missing, epoch) = {
            let book = lock(&shared.book);
            (book.store.is_none(), book.epoch)
        };
        if missing && let Err(error) = self.open_ephemeral(epoch) {
            self.shared.ledger.failed(
                DiskFailure::Directory,
                &format!("cannot make a store: {error}"),
            );
        }
    }

    /// A store that ends with the process: what the engine's bytes depend on may have changed since its
    /// identity was named.
    fn open_ephemeral(&self, epoch: u64) -> std::io::Result<()> {
        let shared = &self.shared;
        let (directory, folder) = shared.lane()?.ephemeral()?;
        let names = StoreNames {
            identity: crate::path::folder::random()?,
            epoch,
            directory: directory.clone(),
            persistent: false,
        };
        let store = DiskStore::open(&*shared.options.door, folder, names, shared.shapes.len());
        let mut book = lock(&shared.book);
        match store {
            Ok(store) if book.epoch == epoch => {
                book.store = Some(Arc::new(store));
                Ok(())
            }
            outcome => {
                book.throw_away(directory);
                outcome.map(drop)
            }
        }
    }

    fn commit(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut book = lock(&shared.book);
        let Some(store) = book.store.clone().filter(|store| store.persistent) else {
            drop(book);
            return self.close();
        };
        let mut changes = std::mem::take(&mut book.changes);
        let mut published = book.published;
        drop(book);
        if self.index.is_none() {
            if Instant::now() < self.again && !self.stopping {
                return; // A new index gets everything.
            }
            let owner = owner(&shared, &store);
            // The old one is kept as long as it can be read: nothing else has what is durable.
            let found = match DiskIndex::open(&*shared.options.door, &store.folder, &owner) {
                Ok((index, found)) => {
                    self.index = Some((store.epoch, index));
                    found
                }
                Err(error) => return self.broken(&error.to_string()),
            };
            let mut book = lock(&shared.book);
            if book.epoch != store.epoch {
                return;
            }
            let snapshot = book.snapshot();
            let kept: HashSet<Name> = snapshot.iter().map(|(name, _)| *name).collect();
            let old = found.places.into_iter().map(|(name, _)| name);
            let gone = old.chain(found.damaged).filter(|name| !kept.contains(name));
            changes = gone.map(|name| (name, None)).chain(snapshot).collect();
            book.changes.clear();
            published = book.published;
        }
        self.learn();
        let Some((_, index)) = &mut self.index else {
            return;
        };
        if let Err(why) = index.commit(&changes) {
            return self.broken(&why);
        }
        self.pause = IDLE;
        let mut book = lock(&shared.book);
        if book.epoch == store.epoch {
            book.durable = published;
        }
    }

    /// Has the index keep the knowledge of the policy, if that is new.
    fn learn(&mut self) {
        let now = self.shared.options.door.seconds();
        if now.abs_diff(self.looked) < LEARNT && !self.stopping {
            return;
        }
        self.looked = now;
        let learnt = self.shared.learner.learnt();
        let digest = Some(xxh3_64(&learnt));
        if let Some((_, index)) = &mut self.index
            && !learnt.is_empty()
            && digest != self.learnt
        {
            index.learn(&learnt);
            self.learnt = digest;
        }
    }

    /// The index is made anew later, from what is in memory.
    fn broken(&mut self, why: &str) {
        self.shared.ledger.failed(
            DiskFailure::Index,
            &format!("cannot write the index: {why}"),
        );
        self.learnt = None;
        if let Some((_, index)) = self.index.take() {
            // It was broken before: how it closes says nothing new.
            drop(index.close());
        }
        self.again = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST);
    }

    fn close(&mut self) {
        if let Some((_, index)) = self.index.take()
            && let Err(why) = index.close()
        {
            self.shared.ledger.failed(
                DiskFailure::Index,
                &format!("cannot close the index: {why}"),
            );
        }
    }
}

/// The owner that the index of a store must name.
pub(crate) fn owner<'a>(shared: &DiskShared, store: &'a DiskStore) -> IndexOwner<'a> {
    IndexOwner {
        identity: &store.identity,
        ranks: shared.ranks,
        cells: shared.shapes.iter().map(|shape| shape.cell_bytes).collect(),
    }
}

/// Makes room until the quota holds: it may be lower than it was.
pub(crate) fn shrink(shared: &DiskShared, store: &DiskStore) {
    loop {
        let victim = {
            let mut book = lock(&shared.book);
            if book.footprint() <= book.quota {
                return;
            }
            book.next_victim()
        };
        match victim {
            Victim::Nobody => return,
            victim => shared.give(victim, store),
        }
    }
}
