//! The state that a disk shares with its threads and handles, and how copies end.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::book::{Book, BookContents, Trash, Victim, minute};
use crate::format::{Change, IndexRecord};
use crate::health::DiskHealth;
use crate::job::{DiskDirection, DiskJob};
use crate::options::DiskOptions;
use crate::path::lane::{self, DiskLane};
use crate::path::trouble::Trouble;
use crate::queue::JobQueue;
use crate::shape::CellShape;
use crate::stats::{DiskFailure, DiskStats};
use crate::uses::{Learner, Uses};
use hybrid_pages::error::{Cause, Error, Result};
use hybrid_pages::guarded;
use hybrid_pages::rows::Rows;
use hybrid_pages::transfer::Process;
use hybrid_pages_tiers::{
    CopyEnds, Identity, Ledger, PanicFlag, Planes, PriorityMutex, Seals, lock, lock_first, panicked,
};

/// How long a thread that needs room waits for others that make some.
const GIVING: Duration = Duration::from_millis(2);
const MOST_WAITS: usize = 5_000;
/// Most uses that are noted under one hold of the book's lock.
const PORTION: usize = 256;

/// The state that a disk shares with its handles and threads. The lock `opening` is taken first, then that of the
/// book, then the others. Only `opening` may be held during a system call that may wait for the device.
#[derive(Debug)]
pub(crate) struct DiskShared {
    pub(crate) options: DiskOptions,
    pub(crate) shapes: Vec<CellShape>,
    pub(crate) ranks: usize,
    pub(crate) slot_bytes: usize,
    /// The lane, once it could be taken.
    lane: OnceLock<DiskLane>,
    /// The path of the lane, for messages.
    pub(crate) place: String,
    pub(crate) planes: OnceLock<Planes>,
    /// How entries are named and encrypted.
    pub(crate) seals: Seals,
    /// The identity, once the disk is to be connected.
    pub(crate) identity: OnceLock<Identity>,
    /// Held while the lane and the store are opened.
    pub(crate) opening: PriorityMutex<()>,
    /// What a reset has left of the book, until the keeper drops it: that takes long if there were many entries.
    pub(crate) discarded: PriorityMutex<Vec<(BookContents, Rows<Change>)>>,
    /// The description of the identity that is still to be written.
    pub(crate) about: PriorityMutex<Option<String>>,
    pub(crate) queue: JobQueue,
    pub(crate) book: PriorityMutex<Book>,
    pub(crate) health: PriorityMutex<DiskHealth>,
    pub(crate) ended: CopyEnds,
    panic: PanicFlag,
    /// Number of threads that read and write, including those that hang.
    pub(crate) threads: AtomicUsize,
    pub(crate) bell: Bell,
    pub(crate) uses: Arc<PriorityMutex<Uses>>,
    pub(crate) learner: Learner,
    pub(crate) keeper: PriorityMutex<Option<JoinHandle<()>>>,
    process: Process,
    pub(crate) ledger: Ledger<DiskStats>,
}

/// A bell that wakes the keeper.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: PriorityMutex<Ringing>,
    rings: Condvar,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ringing {
    pub(crate) rung: bool,
    pub(crate) stop: bool,
}

impl Bell {
    pub(crate) fn ring(&self) {
        lock(&self.state).rung = true;
        self.rings.notify_all();
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).stop = true;
        self.rings.notify_all();
    }

    /// Waits for a ring, the stop or the limit.
    pub(crate) fn wait(&self, limit: Duration) -> Ringing {
        let idle = |state: &mut Ringing| !state.rung && !state.stop;
        let mut state = lock(&self.state).wait_while(&self.rings, Some(limit), idle);
        let found = *state;
        state.rung = false;
        found
    }

    /// Waits for the stop or the limit.
    pub(crate) fn pause(&self, limit: Duration) {
        let idle = |state: &mut Ringing| !state.stop;
        drop(lock(&self.state).wait_while(&self.rings, Some(limit), idle));
    }
}

impl DiskShared {
    pub(crate) fn new(
        options: DiskOptions,
        shapes: Vec<CellShape>,
        seals: Seals,
        (ranks, slot_bytes): (usize, usize),
        learner: Learner,
    ) -> Self {
        let door = Arc::clone(&options.door);
        let place = lane::lane_path(&options.path, options.lane);
        Self {
            place: place.clone(),
            seals,
            slot_bytes,
            uses: Arc::new(PriorityMutex::new(Uses::new(Arc::clone(&door)))),
            keeper: PriorityMutex::default(),
            learner,
            process: Process::current(),
            book: PriorityMutex::new(Book::new(options.quota_bytes, &shapes, door)),
            health: PriorityMutex::new(DiskHealth::new(options.retry)),
            shapes,
            ranks,
            lane: OnceLock::new(),
            options,
            planes: OnceLock::new(),
            identity: OnceLock::new(),
            opening: PriorityMutex::default(),
            discarded: PriorityMutex::default(),
            about: PriorityMutex::default(),
            queue: JobQueue::default(),
            ended: CopyEnds::default(),
            panic: PanicFlag::default(),
            threads: AtomicUsize::new(0),
            bell: Bell::default(),
            ledger: Ledger::new(format!("disk tier {place}: ")),
        }
    }

    /// Writes the description of the identity, once there is a store.
    pub(crate) fn describe(&self) {
        let Some(store) = lock(&self.book).store.clone() else {
            return;
        };
        let about = lock(&self.about).take().filter(|_| store.persistent);
        if let Some(about) = about
            && let Err(error) = store.describe(&*self.options.door, &about)
        {
            let what = format!("cannot write what the identity was made from: {error}");
            self.ledger.failed(DiskFailure::Upkeep, &what);
        }
    }

    /// Whether a panic in a thread or under a lock has left the knowledge about the disk in doubt. Then the disk is
    /// out for good.
    pub(crate) fn is_broken(&self) -> bool {
        let locks = [
            self.book.is_poisoned(),
            self.health.is_poisoned(),
            self.queue.is_poisoned(),
        ];
        let broken = self.panic.is_set() || locks.contains(&true);
        if broken && self.panic.report_once() {
            self.ledger.count_outage();
            self.ledger.note(&panicked("disk"));
            self.queue.stop();
            self.bell.ring();
        }
        broken
    }

    /// Runs `work`. If it panics, the disk is out for good, and this returns false.
    pub(crate) fn unless_it_panics(&self, work: impl FnOnce()) -> bool {
        if guarded::unless_it_panics(work).is_some() {
            return true;
        }
        self.panic.set();
        !self.is_broken()
    }

    /// Whether this process was forked from the one that opened the disk.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process.is_inherited()
    }

    /// The lane. Takes it if that was not done yet.
    pub(crate) fn take_lane(&self) -> std::result::Result<&DiskLane, Trouble> {
        if let Some(lane) = self.lane.get() {
            return Ok(lane);
        }
        let (path, number) = (&self.options.path, self.options.lane);
        let lane = DiskLane::open(path, number, &mut |reason, what| {
            self.ledger.failed(reason, what)
        })?;
        Ok(self.lane.get_or_init(|| lane))
    }

    /// The lane, if it could be taken.
    pub(crate) fn lane(&self) -> io::Result<&DiskLane> {
        let lane = self.lane.get();
        lane.ok_or_else(|| io::Error::other("expected a lane, found none yet"))
    }

    /// Whether what is written now is found by the next process, as far as the path tells.
    pub(crate) fn is_in_place(&self) -> bool {
        let (path, number) = (&self.options.path, self.options.lane);
        self.lane.get().is_none_or(|lane| lane.is_at(path, number))
    }

    pub(crate) fn stats(&self) -> DiskStats {
        let broken = self.is_broken();
        let book = lock_first(&self.book);
        let mut stats = self.ledger.counts();
        (stats.reading, stats.writing) = book.running.counts();
        stats.out = broken || lock_first(&self.health).is_out();
        stats.entries = book.entries.len() as u64;
        stats.left_over = book.left_over() as u64;
        stats.live_bytes = book.live_bytes();
        stats.other_bytes = book.other_bytes();
        stats.quota_bytes = book.quota;
        stats.durable = book.durable;
        match &book.store {
            Some(store) => {
                stats.persistent = store.persistent;
                stats.direct = store.direct;
            }
            // A store that could not be opened yet may still be.
            None => stats.persistent = stats.out && !book.connected && !book.cleared_early,
        }
        stats
    }

    /// Makes room for a write, and takes a cell for it.
    pub(crate) fn place(&self, job: &DiskJob) -> std::result::Result<u64, (DiskFailure, Cause)> {
        for _ in 0..MOST_WAITS {
            let victim = {
                let mut book = lock(&self.book);
                if job.is_undone() || job.store.epoch != book.epoch {
                    return Err((
                        DiskFailure::Gone,
                        "expected a write, found it undone".into(),
                    ));
                }
                if let Some(cell) = book.take_cell(job.class) {
                    return Ok(cell);
                }
                book.next_victim()
            };
            match victim {
                Victim::Nobody => break,
                victim => self.give(victim, &job.store),
            }
        }
        let what = format!(
            "expected a free cell within the quota of {} bytes, found none",
            self.options.quota_bytes
        );
        Err((DiskFailure::Quota, what.into()))
    }

    /// Removes a victim to make room.
    pub(crate) fn give(&self, victim: Victim, store: &crate::store::DiskStore) {
        match victim {
            Victim::Entry => self.bell.ring(),
            Victim::Nobody => {}
            Victim::Wait => std::thread::sleep(GIVING),
            Victim::Cell(class, cell) => {
                if let Err(error) = store.punch(&self.shapes, class, cell) {
                    self.ledger.failed(
                        DiskFailure::Upkeep,
                        &format!("cannot punch a hole: {error}"),
                    );
                }
                lock(&self.book).punched(store.epoch, class, cell);
            }
            Victim::Directory(trash) => self.discard(trash),
        }
    }

    /// Removes a directory.
    pub(crate) fn discard(&self, trash: Trash) {
        let outcome = self.lane().and_then(|lane| lane.remove(&trash.name));
        if let Err(error) = &outcome {
            let name = &trash.name;
            self.ledger.failed(
                DiskFailure::Directory,
                &format!("cannot remove {name}: {error}"),
            );
        }
        lock(&self.book).removed(trash, outcome.is_ok());
    }

    /// Ends a copy whose pieces are all over: reports the end, unless that was done, and keeps the cell or gives it
    /// back. The copy ends even if this panics.
    pub(crate) fn finish(&self, job: &Arc<DiskJob>) {
        if !self.unless_it_panics(|| self.end(job)) {
            // The cache ignores the end of a copy that has ended already.
            self.report(job, Err(Error::disk(panicked("disk"))));
        }
    }

    fn end(&self, job: &Arc<DiskJob>) {
        let shape = &self.shapes[job.class];
        let failure = job.failure().or_else(|| {
            let wrong = job.found_sums(shape) != job.sums[..];
            wrong.then(|| match job.direction {
                DiskDirection::Read => {
                    let what = "expected the bytes that were written, found others";
                    (DiskFailure::Checksum, what.into())
                }
                DiskDirection::Write => {
                    let what = "expected slots with the bytes that were offered, found others";
                    (DiskFailure::Source, what.into())
                }
            })
        });
        let mut book = lock(&self.book);
        let wanted = book.running.remove(job.copy);
        let current = job.store.epoch == book.epoch;
        match job.direction {
            DiskDirection::Read => self.end_read(&mut book, job, failure.as_ref(), current),
            DiskDirection::Write => {
                self.end_write(&mut book, job, failure.as_ref(), wanted && current);
            }
        }
        if !wanted {
            return;
        }
        if let Some((reason, what)) = &failure
            && !job.is_undone()
        {
            self.ledger.failed(*reason, what);
        }
        let result = match (failure, job.direction) {
            // The cache compares the checksums itself, and counts failures.
            (None | Some((DiskFailure::Checksum, _)), DiskDirection::Read) => {
                Ok(job.found_sums(shape))
            }
            (None, DiskDirection::Write) => Ok(Vec::new()),
            (Some((_, what)), _) => Err(Error::disk(what)),
        };
        // This comes before the book is unlocked: a thread that finds no running copy finds the end and the counts.
        self.report(job, result);
        drop(book);
    }

    fn end_read(
        &self,
        book: &mut Book,
        job: &DiskJob,
        failure: Option<&(DiskFailure, Cause)>,
        current: bool,
    ) {
        let Some(cell) = job.cell().filter(|_| current) else {
            return;
        };
        match failure {
            None => {
                let payload = (self.shapes[job.class].shard_bytes * self.ranks) as u64;
                self.ledger.count(|counts| {
                    counts.reads += 1;
                    counts.read_bytes += payload;
                    counts.read_latencies.add(job.begun.elapsed());
                });
            }
            Some((DiskFailure::Deadline, _)) => {}
            Some(_) => {
                book.remove_from(&job.name, job.class, cell);
                self.bell.ring();
            }
        }
        book.end_read(job.class, cell);
    }

    fn end_write(
        &self,
        book: &mut Book,
        job: &Arc<DiskJob>,
        failure: Option<&(DiskFailure, Cause)>,
        wanted: bool,
    ) {
        let mine = |other: &Arc<DiskJob>| Arc::ptr_eq(other, job);
        if book.writing.get(&job.name).is_some_and(mine) {
            book.writing.remove(&job.name);
        }
        match failure {
            Some((DiskFailure::Full | DiskFailure::Write, _)) => lock(&self.health).refused(),
            Some(_) => {}
            None => lock(&self.health).wrote(),
        }
        let Some(cell) = job.cell() else { return };
        if job.store.epoch != book.epoch {
            return;
        }
        if failure.is_some() || !wanted || job.is_undone() {
            book.give_cell(job.class, cell);
            return;
        }
        let place = IndexRecord {
            class: job.class,
            block: job.block,
            cell,
            used: minute(&*self.options.door),
            sums: job.told.clone(),
        };
        book.publish(job.name, place);
        let bytes = self.shapes[job.class].cell_bytes;
        self.ledger.count(|counts| {
            counts.writes += 1;
            counts.written_bytes += bytes;
            counts.write_latencies.add(job.begun.elapsed());
        });
        self.bell.ring();
    }

    fn report(&self, job: &DiskJob, result: Result<Vec<u64>>) {
        let copy = job.copy;
        self.ended.add(copy, result);
    }

    /// Reports the end of all copies, even if threads still work on them. From now on these touch no slots. Returns
    /// whether all copies could be ended.
    pub(crate) fn abandon_all(&self) -> bool {
        let dropped = self.queue.clear();
        let mut book = lock(&self.book);
        let jobs: Vec<Arc<DiskJob>> = book.running.all().cloned().collect();
        let mut given_up = Vec::new();
        for job in jobs {
            if job.leave_slots() {
                book.running.remove(job.copy);
                given_up.push(job);
            }
        }
        let all = book.running.is_empty();
        for job in given_up {
            let what = format!(
                "expected an answer within {:?}, found none: the disk is out",
                self.options.deadline
            );
            job.fail(DiskFailure::Deadline, what.clone());
            self.ledger.failed(DiskFailure::Deadline, &what);
            self.report(&job, Err(Error::disk(what)));
        }
        drop(book);
        for (job, pieces) in dropped {
            job.fail(DiskFailure::Deadline, "expected its turn, found an outage");
            if job.end_pieces(pieces) {
                self.finish(&job);
            }
        }
        all
    }

    /// Notes the latest uses of entries in the book.
    pub(crate) fn note_uses(&self) {
        let mut used = lock_first(&self.uses).take().into_iter().peekable();
        if used.peek().is_none() {
            return;
        }
        while used.peek().is_some() {
            let mut book = lock_first(&self.book);
            for name in used.by_ref().take(PORTION) {
                book.note_use(&name);
            }
        }
        self.bell.ring();
    }

    pub(crate) fn is_idle(&self) -> bool {
        let book = lock(&self.book);
        book.running.is_empty() && self.queue.is_empty()
    }

    pub(crate) fn has_threads(&self) -> bool {
        self.threads.load(Ordering::SeqCst) > 0
    }
}
