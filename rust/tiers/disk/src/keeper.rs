//! The keeper: a thread that writes the book's changes to the index, and removes directories. It works even when the
//! engine does no steps.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use crate::book::Victim;
use crate::format::{Change, DISK_FORMAT_VERSION, SEALED_DISK_FORMAT_VERSION};
use crate::index::{DiskIndex, IndexOwner};
use crate::path::lane::DiskLane;
use crate::shared::DiskShared;
use crate::stats::DiskFailure;
use crate::store::{DiskStore, StoreNames};
use hybrid_pages::rows::Rows;
use hybrid_pages_tiers::{Name, PARTS, lock};

/// Changes that come within this time share a commit.
const BATCH: Duration = Duration::from_millis(40);
const IDLE: Duration = Duration::from_secs(1);
/// Seconds between two checks whether the policy has learned anything.
const LEARNT: u64 = 60;
/// The longest pause before a broken index is opened again or made anew.
const LONGEST: Duration = Duration::from_secs(64);

/// The keeper's state.
pub(crate) struct Keeper {
    shared: Arc<DiskShared>,
    /// The epoch of a store, and its open index.
    index: Option<(u64, DiskIndex)>,
    /// Digest of the policy's knowledge in the index.
    learnt: Option<u64>,
    looked: u64,
    pause: Duration,
    again: Instant,
    stopping: bool,
}

impl Keeper {
    /// Makes a keeper. `index` is the open index and the epoch of its store; without one, the keeper opens or makes
    /// it.
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

    /// Works until it is told to stop. Then all published entries are committed, unless a panic has left them in
    /// doubt.
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
            // An idle keeper leaves the path alone, since a device that hangs would hold it.
            if ringing.rung && !self.shared.is_in_place() {
                self.miss();
            }
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

    /// Takes the disk out until the path leads to it again.
    fn miss(&self) {
        let shared = &self.shared;
        let mut health = lock(&shared.health);
        if health.is_out() {
            return;
        }
        health.take_out();
        drop(health);
        shared.ledger.count_outage();
        shared.ledger.note(&format!(
            "expected {} where it was, found that it was removed or moved while in use: the disk is left alone, and \
             later processes find nothing of it, until it is moved back or this process starts anew",
            shared.place
        ));
    }

    /// Removes directories that were cleared, then opens a new store if there is none.
    fn tidy(&mut self) {
        let shared = &self.shared;
        let discarded = std::mem::take(&mut *lock(&shared.discarded));
        drop(discarded);
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

    /// Opens a store that ends with the process. After a reset the identity may not name all that the bytes depend
    /// on.
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
        let changes = std::mem::take(&mut book.changes);
        let mut published = book.published;
        drop(book);
        let mut changes: Vec<Change> = changes.into_iter().collect();
        if self.index.is_none() {
            if Instant::now() < self.again && !self.stopping {
                return; // These changes are lost, but a new index gets all entries.
            }
            let owner = owner(&shared, &store);
            // An index that can be read is kept, since it alone has the durable entries.
            let found = match DiskIndex::open(&*shared.options.door, &store.folder, &owner) {
                Ok((index, found)) => {
                    self.index = Some((store.epoch, index));
                    found
                }
                Err(error) => return self.broken(&error.to_string()),
            };
            let Some((snapshot, before)) = snapshot(&shared, store.epoch) else {
                return;
            };
            let kept: HashSet<Name> = snapshot.iter().map(|(name, _)| *name).collect();
            let old = found.places.into_iter().map(|(name, _)| name);
            let gone = old.chain(found.damaged).filter(|name| !kept.contains(name));
            changes = gone.map(|name| (name, None)).chain(snapshot).collect();
            published = before;
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

    /// Gives the knowledge of the policy to the index, if it has changed.
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

    /// Gives up the index, which will be made anew from the book.
    fn broken(&mut self, why: &str) {
        self.shared.ledger.failed(
            DiskFailure::Index,
            &format!("cannot write the index: {why}"),
        );
        self.learnt = None;
        if let Some((_, index)) = self.index.take() {
            // The index is broken, so an error of its close says nothing new.
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

/// All entries of a store, and how many had been published before the first was copied. The book is locked for a part
/// of them at a time: what changes meanwhile is among its changes, which the index takes next. `None` after a reset.
fn snapshot(shared: &DiskShared, epoch: u64) -> Option<(Vec<Change>, u64)> {
    let (mut all, mut published) = (Vec::new(), None);
    let mut before = Rows::default();
    for part in 0..PARTS {
        let mut book = lock(&shared.book);
        if book.epoch != epoch {
            return None;
        }
        if published.is_none() {
            before = std::mem::take(&mut book.changes);
            published = Some(book.published);
        }
        all.extend(book.snapshot(part));
    }
    drop(before); // Without the lock.
    published.map(|published| (all, published))
}

/// The owner that the index of a store must name.
pub(crate) fn owner<'a>(shared: &DiskShared, store: &'a DiskStore) -> IndexOwner<'a> {
    IndexOwner {
        format: shared
            .seals
            .format(DISK_FORMAT_VERSION, SEALED_DISK_FORMAT_VERSION),
        identity: &store.identity,
        ranks: shared.ranks,
        cells: shared.shapes.iter().map(|shape| shape.cell_bytes).collect(),
    }
}

/// Removes until the quota holds, which may have become lower.
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
