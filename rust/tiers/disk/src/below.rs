//! The disk as a tier. Calls of the cache become jobs for threads; only [`clear`](Below::clear), which moves one
//! directory, waits for the device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::book::BookFinding;
use crate::connect::{clear, close};
use crate::handle::DiskHandle;
use crate::job::{DiskDirection, DiskJob, Subject};
use crate::options::DiskOptions;
use crate::path::trouble::Trouble;
use crate::shape::{capacity, shapes};
use crate::shared::DiskShared;
use crate::stats::DiskFailure;
use crate::trial::try_again;
use crate::uses::{Learner, Noting};
use hybrid_pages::error::{Error, Result};
use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::{EntryKey, SlotId};
use hybrid_pages::policy::{NewEntry, Policy};
use hybrid_pages::tier::{Below, CopyEnd, CopyId, Found, Room};
use hybrid_pages_tiers::{Seal, Seals, lock_first};

/// Most slots of a disk: half of the numbers that slots of all tiers share.
const MOST_SLOTS: u64 = 1 << 29;

/// A tier on a local disk. The crate's documentation describes it.
pub struct Disk {
    room: Room,
    shared: Arc<DiskShared>,
    queue_slots: u64,
    checked: Instant,
    /// The quota that the room's size was computed from.
    quota: u64,
}

impl Disk {
    /// Takes a lane of a disk path for the entries of a geometry in slots of `slot_bytes`. `policy` is an empty
    /// policy for this tier alone. [`DiskHandle::connect`] opens the store, and tries again what the system refuses
    /// here.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a setting out of range, [`Error::Budget`] for a quota that can't hold an entry
    /// of each class, [`Error::Disk`] if the path is no directory of this user or another process has the lane,
    /// [`Error::Foreign`] if the path belongs to another program or format.
    pub fn open(
        options: DiskOptions,
        geometry: &Geometry,
        slot_bytes: usize,
        policy: Box<dyn Policy>,
    ) -> Result<Self> {
        options.check()?;
        let seals = Seals::new(options.keys.clone());
        let shapes = shapes(geometry, slot_bytes, seals.tile_bytes())?;
        let needed: u64 = shapes.iter().map(|shape| shape.cell_bytes).sum();
        let slots: u64 = shapes.iter().map(|shape| shape.slots as u64).sum();
        let room = capacity(&shapes, options.quota_bytes).min(MOST_SLOTS);
        if options.quota_bytes < needed || room < slots {
            return Err(Error::Budget(format!(
                "disk: expected a quota that holds one entry of each class, {needed} bytes or somewhat \
                 more, found {}: raise it",
                options.quota_bytes
            )));
        }
        let largest = shapes.iter().map(|shape| shape.slots as u64).max();
        let quota = options.quota_bytes;
        let queue_slots = options.queue_bytes / slot_bytes.max(1) as u64;
        let sizes = (geometry.ranks(), slot_bytes);
        let policy = Learner::new(policy);
        let shared = Arc::new(DiskShared::new(
            options,
            shapes,
            seals,
            sizes,
            policy.clone(),
        ));
        match shared.take_lane() {
            Ok(_) => {}
            Err(Trouble::Refused(error)) => return Err(error),
            Err(Trouble::Passing(reason, what)) => {
                shared
                    .ledger
                    .failed(reason, &format!("{what}: it is tried again"));
            }
        }
        let policy = Noting::new(policy, Arc::clone(&shared.uses));
        Ok(Self {
            room: Room::new(room, Box::new(policy)),
            shared,
            queue_slots: queue_slots.max(largest.unwrap_or(1)),
            checked: Instant::now(),
            quota,
        })
    }

    /// A handle that connects the disk and reads its counts.
    #[must_use]
    pub fn handle(&self) -> DiskHandle {
        DiskHandle(Arc::clone(&self.shared))
    }

    /// Takes the disk out if it hangs. If it is out, checks whether it works again.
    fn check_health(&mut self) {
        let shared = &self.shared;
        let deadline = shared.options.deadline;
        if self.checked.elapsed() < (deadline / 20).min(Duration::from_millis(10)) {
            return;
        }
        self.checked = Instant::now();
        if shared.is_broken() {
            shared.abandon_all();
            return;
        }
        if lock_first(&shared.health).is_out() {
            shared.abandon_all();
            if lock_first(&shared.health).try_again() {
                try_again(shared);
            }
            return;
        }
        // A copy may take any time while there is progress. The disk hangs if a call does not return, or if nothing
        // moves while a copy waits for its turn.
        let late = |since: Instant| since.elapsed() > deadline;
        let (oldest, progress) = {
            let health = lock_first(&shared.health);
            (health.oldest_call(), health.progress())
        };
        let hangs = oldest.is_some_and(late)
            || late(progress) && {
                // A write may wait for its cell while a directory is removed: that is no hang.
                let since = |job: &Arc<DiskJob>| match job.direction {
                    DiskDirection::Read => Some(job.begun),
                    DiskDirection::Write => job.started(),
                };
                let book = lock_first(&shared.book);
                book.running.all().filter_map(since).any(late)
            };
        if hangs {
            lock_first(&shared.health).take_out();
            shared.ledger.count_outage();
            shared.queue.new_crew();
            shared.abandon_all();
        }
    }

    fn start(&self, job: Arc<DiskJob>) {
        let shared = &self.shared;
        let mut book = lock_first(&shared.book);
        if book.running.is_empty() {
            lock_first(&shared.health).moved();
        }
        if job.direction == DiskDirection::Write {
            book.undo_write(&job.name);
            book.writing.insert(job.name, Arc::clone(&job));
        }
        book.running.add(&job);
        drop(book);
        shared.queue.add(job);
    }

    fn end(&self, copy: CopyId, result: Result<Vec<u64>>) {
        self.shared.ended.add(copy, result);
    }

    fn is_out(&self) -> bool {
        self.shared.is_broken() || lock_first(&self.shared.health).is_out()
    }

    /// Adjusts the room to the quota. A directory that can't be removed lowers the quota, and the room shrinks as
    /// entries leave.
    fn follow_quota(&mut self) {
        let quota = lock_first(&self.shared.book).quota;
        if quota == self.quota {
            return;
        }
        let usage = self.room.usage();
        let wanted = capacity(&self.shared.shapes, quota).min(usage.capacity);
        let least = usage.capacity - usage.free;
        self.room.resize(wanted.max(least));
        if wanted >= least {
            self.quota = quota;
        }
    }
}

hybrid_pages_tiers::impl_tier!(Disk, "disk");

impl Below for Disk {
    fn queue_slots(&self) -> u64 {
        self.queue_slots
    }

    fn accepts(&mut self, entry: &NewEntry) -> bool {
        let able = {
            let has_store = lock_first(&self.shared.book).store.is_some();
            has_store && !self.is_out() && lock_first(&self.shared.health).takes_writes()
        };
        if !able {
            self.shared.ledger.count(|counts| counts.dropped += 1);
        }
        // Entries of earlier processes take no room of the tier, and give way to new ones.
        let full = able && lock_first(&self.shared.book).left_fills_it();
        able && self.room.wants(entry, full)
    }

    fn write(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId], checksums: &[u64]) {
        let shared = &self.shared;
        let (name, seal) = shared.seals.entry(key);
        let class = key.class_index;
        let told = mask(seal.as_ref(), checksums);
        lock_first(&shared.uses).writes(name);
        let out = self.is_out();
        if shared.is_broken() {
            return self.end(copy, Err(refused("a disk that takes writes", "a panic")));
        }
        let mut book = lock_first(&shared.book);
        let same = |record: &crate::book::DiskEntry| record.place.sums == told;
        if book.entries.get(&name).is_some_and(same) {
            book.know(&name);
            drop(book);
            shared.ledger.count(|counts| counts.spared_writes += 1);
            return self.end(copy, Ok(Vec::new()));
        }
        let store = book.store.clone().filter(|_| !out);
        drop(book);
        let (Some(store), Some(planes)) = (store, shared.planes.get()) else {
            return self.end(copy, Err(refused("a disk that takes writes", "none")));
        };
        let shape = shared.shapes.get(class).filter(|shape| {
            planes.hold(slots, shape.shard_bytes) && checksums.len() == shared.ranks
        });
        let Some(shape) = shape else {
            return self.end(copy, Err(refused("slots of the arena", "others")));
        };
        let subject = Subject {
            name,
            class,
            block: u32::try_from(key.block_index).unwrap_or(u32::MAX),
            slots: slots.to_vec(),
            sums: checksums.into(),
            told,
            seal,
            cell: None,
        };
        self.start(DiskJob::new(
            copy,
            DiskDirection::Write,
            subject,
            store,
            shape,
        ));
    }

    fn read(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId]) {
        let shared = &self.shared;
        let (name, seal) = shared.seals.entry(key);
        if self.is_out() {
            shared.ledger.failed(
                DiskFailure::Deadline,
                "expected an answer, found the disk out",
            );
            return self.end(copy, Err(refused("a disk that answers", "an outage")));
        }
        let mut book = lock_first(&shared.book);
        book.know(&name);
        let place = book.entries.get(&name).map(|record| record.place.clone());
        let (Some(place), Some(store)) = (place, book.store.clone()) else {
            drop(book);
            shared.ledger.failed(
                DiskFailure::Gone,
                "expected an entry, found that it had left",
            );
            return self.end(copy, Err(refused("an entry on disk", "none")));
        };
        let shape = &shared.shapes[place.class];
        let planes = shared.planes.get();
        if planes.is_none_or(|planes| !planes.hold(slots, shape.shard_bytes)) {
            book.remove(&name);
            drop(book);
            return self.end(copy, Err(refused("slots of the arena", "others")));
        }
        book.begin_read(place.class, place.cell);
        drop(book);
        let subject = Subject {
            name,
            class: place.class,
            block: place.block,
            slots: slots.to_vec(),
            sums: mask(seal.as_ref(), &place.sums),
            told: place.sums,
            seal,
            cell: Some(place.cell),
        };
        self.start(DiskJob::new(
            copy,
            DiskDirection::Read,
            subject,
            store,
            shape,
        ));
    }

    fn poll(&mut self, ended: &mut Vec<CopyEnd>) {
        self.check_health();
        self.follow_quota();
        self.shared.note_uses();
        self.shared.ended.take(ended);
    }

    fn find(&mut self, key: &EntryKey) -> Found {
        let (name, seal) = self.shared.seals.entry(key);
        let found = if self.is_out() {
            None
        } else {
            lock_first(&self.shared.book).find(&name)
        };
        self.shared.ledger.count(|counts| match found {
            Some(_) => counts.hits += 1,
            None => counts.misses += 1,
        });
        let Some(BookFinding { sums, unused }) = found else {
            return Found::Absent;
        };
        lock_first(&self.shared.uses).found(name, unused);
        Found::Here(mask(seal.as_ref(), &sums).into_vec())
    }

    fn may_have(&mut self, key: &EntryKey) -> Option<bool> {
        let name = self.shared.seals.name_of(key);
        Some(!self.is_out() && lock_first(&self.shared.book).has(&name))
    }

    fn tail_lengths(&mut self, namespace: &[u8], stem: u64, lengths: &mut Vec<u32>) -> bool {
        if !self.is_out() {
            let group = self.shared.seals.tail_group(namespace, stem);
            lock_first(&self.shared.book).tail_lengths(group, lengths);
        }
        false
    }

    fn remove(&mut self, key: &EntryKey) {
        let name = self.shared.seals.name_of(key);
        let mut book = lock_first(&self.shared.book);
        book.undo_write(&name);
        book.remove(&name);
        drop(book);
        self.shared.bell.ring();
    }

    fn forget(&mut self, key: &EntryKey) {
        let name = self.shared.seals.name_of(key);
        let mut book = lock_first(&self.shared.book);
        book.undo_write(&name);
        book.forget(&name);
    }

    fn clear(&mut self) {
        let shared = &self.shared;
        if shared.is_inherited() || lock_first(&shared.health).is_closed() {
            return; // Another process may have the files by now, and this one finds nothing.
        }
        let mut book = lock_first(&shared.book);
        clear(shared, &mut book);
        drop(book);
        shared.bell.ring();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        close(&self.shared);
    }
}

/// Hides the checksums of an entry that is encrypted, or shows them.
fn mask(seal: Option<&Seal>, sums: &[u64]) -> Box<[u64]> {
    seal.map_or_else(|| sums.into(), |seal| seal.mask(sums))
}

fn refused(expected: &str, found: &str) -> Error {
    Error::disk(format!("expected {expected}, found {found}"))
}
