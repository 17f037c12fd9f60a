//! The state that a remote store shares with its tasks and handles, and how copies end.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hashbrown::HashMap;
use hybrid_pages::error::{Cause, Error, Result};
use hybrid_pages::ids::SlotId;
use hybrid_pages::tier::CopyId;
use hybrid_pages::transfer::{Process, TILE_BYTES, tile_digest};
use hybrid_pages_tiers::{
    CircuitBreaker, CopyEnds, EntrySize, Identity, Ledger, Name, PanicFlag, Planes, PriorityMutex,
    Recent, SEALED_FORMAT_VERSION, SealedPlace, Seals, Speed, lock, lock_first, panicked,
    sealed_bytes,
};
use object_store::path::Path;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc::UnboundedSender;

use crate::catalog::{Catalog, PORTION};
use crate::freshness::Freshness;
use crate::messages::{CopyOwner, Fetch, Upload};
use crate::options::RemoteOptions;
use crate::pack::{PackId, PackName, PackRecord, REMOTE_FORMAT_VERSION};
use crate::stats::{RemoteFailure, RemoteStats};

/// The kind of tier in the places of seals.
const IN_A_PACK: u64 = 2;
/// Most entries that are remembered because their read has failed.
const MOST_SUSPECTS: usize = 1 << 20;

/// The state that a remote store shares with its handles and tasks. No lock is held during a wait for the store.
#[derive(Debug)]
pub(crate) struct RemoteShared {
    pub(crate) options: RemoteOptions,
    /// Sizes of entries. Their bytes are those in a pack, with the seals of their tiles.
    pub(crate) classes: Vec<EntrySize>,
    /// How entries are named and encrypted.
    pub(crate) seals: Seals,
    pub(crate) ranks: usize,
    pub(crate) slot_bytes: usize,
    pub(crate) connection: OnceLock<RemoteConnection>,
    pub(crate) state: PriorityMutex<RemoteState>,
    pub(crate) ended: CopyEnds,
    /// Listed packs whose tables were not read yet, with the bytes of their objects. Only the running listing uses
    /// it.
    pub(crate) unread: PriorityMutex<BTreeMap<PackId, (PackName, u64)>>,
    /// Whether all copies have given up their slots. A thread holds this lock while it touches slots.
    left: RwLock<bool>,
    runtime: PriorityMutex<Option<Runtime>>,
    pub(crate) ledger: Ledger<RemoteStats>,
    panic: PanicFlag,
    process: Process,
    /// Whether a note has said that the catalog is full.
    full: AtomicBool,
}

/// The things that tasks need, once the store is connected.
#[derive(Debug)]
pub(crate) struct RemoteConnection {
    pub(crate) planes: Planes,
    pub(crate) identity: Identity,
    /// A random number that no other connection has. It comes from the system now, since a process may be a copy of
    /// another.
    pub(crate) writer: u64,
    /// The folder of the packs.
    pub(crate) folder: Path,
    pub(crate) tasks: Handle,
    pub(crate) uploads: UnboundedSender<Upload>,
    pub(crate) fetches: UnboundedSender<Fetch>,
}

#[derive(Debug)]
pub(crate) struct RemoteState {
    pub(crate) catalog: Catalog,
    pub(crate) freshness: Freshness,
    running: HashMap<CopyId, RemoteCopy>,
    /// How many of these are writes.
    writes_running: u64,
    /// The newest write of each name. Writes that were undone are not here.
    pub(crate) writing: HashMap<Name, CopyId>,
    /// Entries whose read has failed, with the time from which they may be found again.
    pub(crate) suspects: Recent<Instant>,
    /// Packs that this process has written, in case they must be taken back.
    pub(crate) own: Vec<PackName>,
    /// Whether this process has begun to write, so that others may have its packs.
    pub(crate) writes_begun: bool,
    /// Circuit breaker of listings.
    pub(crate) answers: CircuitBreaker,
    /// Circuit breaker of reads, including those of tables.
    pub(crate) reads: CircuitBreaker,
    pub(crate) writes: CircuitBreaker,
    pub(crate) speed: Speed,
    /// Whether there was a reset. After it the identity does not describe this engine's results.
    pub(crate) cleared: bool,
    /// Whether packs of this process that a reset has made wrong are still in the store.
    pub(crate) removing: bool,
    pub(crate) closed: bool,
    /// When the store last answered.
    last_answer: Option<Instant>,
    /// The pack whose read last brought wrong bytes only.
    liar: Option<PackId>,
}

impl RemoteState {
    /// Notes that a copy begins; `writes` is the name of the entry that is written.
    pub(crate) fn runs(&mut self, copy: CopyId, begun: Instant, writes: Option<Name>) {
        self.writes_running += u64::from(writes.is_some());
        self.running.insert(copy, RemoteCopy { begun, writes });
    }

    /// Whether the store is left alone now.
    pub(crate) const fn is_out(&self) -> bool {
        self.answers.is_open() || self.reads.is_open()
    }

    /// Whether no read was answered during the last `limit`.
    pub(crate) fn is_quiet(&self, limit: Duration) -> bool {
        self.last_answer.is_none_or(|at| at.elapsed() >= limit)
    }
}

/// A copy that has not ended.
#[derive(Debug, Clone, Copy)]
struct RemoteCopy {
    begun: Instant,
    /// Name of the entry that a write is of; `None` for a read.
    writes: Option<Name>,
}

impl RemoteShared {
    pub(crate) fn new(
        options: RemoteOptions,
        mut classes: Vec<EntrySize>,
        ranks: usize,
        slot_bytes: usize,
    ) -> Self {
        let retry = options.retry;
        let suspicion = options.suspicion();
        let seals = Seals::new(options.keys.clone());
        for class in &mut classes {
            class.bytes = (sealed_bytes(class.shard_bytes, seals.tile_bytes()) * ranks) as u64;
        }
        Self {
            classes,
            seals,
            ranks,
            slot_bytes,
            connection: OnceLock::new(),
            state: PriorityMutex::new(RemoteState {
                catalog: Catalog::new(options.most_entries),
                freshness: Freshness::default(),
                running: HashMap::new(),
                writes_running: 0,
                writing: HashMap::new(),
                suspects: Recent::new(MOST_SUSPECTS, Some(suspicion)),
                own: Vec::new(),
                writes_begun: false,
                answers: CircuitBreaker::new(retry),
                reads: CircuitBreaker::new(retry),
                writes: CircuitBreaker::new(retry),
                speed: Speed::default(),
                cleared: false,
                removing: false,
                closed: false,
                last_answer: None,
                liar: None,
            }),
            ended: CopyEnds::default(),
            unread: PriorityMutex::default(),
            left: RwLock::new(false),
            runtime: PriorityMutex::new(None),
            ledger: Ledger::new(format!("remote store {}: ", options.place.shown())),
            panic: PanicFlag::default(),
            process: Process::current(),
            full: AtomicBool::new(false),
            options,
        }
    }

    /// Whether this process was forked from the one that opened the store, and so has none of its threads.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process.is_inherited()
    }

    /// Whether a panic under a lock has left the knowledge about the store in doubt. Then the store is left alone for
    /// good: all copies end, and nothing is found or taken.
    pub(crate) fn is_broken(&self) -> bool {
        let broken = self.state.is_poisoned() || self.unread.is_poisoned();
        if broken && self.panic.report_once() {
            self.ledger.failed(RemoteFailure::Panic, &panicked("store"));
            self.leave_slots();
        }
        broken
    }

    /// The format of packs.
    pub(crate) fn format(&self) -> u32 {
        self.seals
            .format(REMOTE_FORMAT_VERSION, SEALED_FORMAT_VERSION)
    }

    /// Bytes that one rank's shard takes in a pack.
    pub(crate) fn stored_shard(&self, class: usize) -> usize {
        let shard_bytes = self.classes[class].shard_bytes;
        sealed_bytes(shard_bytes, self.seals.tile_bytes())
    }

    /// Bytes that a tile takes in a pack, at most, with its seal.
    pub(crate) fn stored_tile(&self) -> usize {
        TILE_BYTES + self.seals.tile_bytes()
    }

    /// The place of an entry in a pack, to which its bytes are sealed.
    pub(crate) fn sealed_at<'a>(
        &'a self,
        connection: &'a RemoteConnection,
        id: PackId,
        class: usize,
        sums: &'a [u64],
    ) -> SealedPlace<'a> {
        SealedPlace {
            identity: &connection.identity,
            place: [IN_A_PACK, id.made, id.writer, u64::from(id.number)],
            shard_bytes: self.classes[class].shard_bytes,
            sums,
        }
    }

    /// The folder of an identity, below the prefix.
    pub(crate) fn folder(&self, identity: &Identity) -> Path {
        let hex: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
        let version = format!("hybrid-pages-v{}", self.format());
        self.options.place.prefix.clone().join(version).join(hex)
    }

    pub(crate) fn keep_runtime(&self, runtime: Runtime) {
        *lock(&self.runtime) = Some(runtime);
    }

    /// Notes, but only once, that the catalog had to forget packs.
    pub(crate) fn is_full(&self) {
        if !self.full.swap(true, Ordering::SeqCst) {
            self.ledger
                .note("it has more entries than fit into the catalog: the oldest are not found");
        }
    }

    pub(crate) fn stats(&self) -> RemoteStats {
        let state = lock_first(&self.state);
        let mut stats = self.ledger.counts();
        stats.writing = state.writes_running;
        stats.reading = state.running.len() as u64 - state.writes_running;
        stats.out = state.is_out();
        stats.shared = self.connection.get().is_some() && !state.cleared && !state.closed;
        stats.entries = state.catalog.entries() as u64;
        stats.packs = state.catalog.packs() as u64;
        stats.stored_bytes = state.catalog.bytes();
        (stats.latency_us, stats.bandwidth) = state.speed.measured();
        stats
    }

    /// Adds a pack to the catalog, a portion at a time, so that the cache never waits long for the lock. Of its
    /// records, in order, `is_wanted` says which to add. Ends after a reset.
    pub(crate) fn add_pack(
        &self,
        name: PackName,
        records: Vec<PackRecord>,
        own: bool,
        mut is_wanted: impl FnMut(&RemoteState) -> bool,
    ) {
        let mut records = records.into_iter().peekable();
        {
            let mut state = lock(&self.state);
            if state.cleared || !state.catalog.begin(name, records.len()) {
                return;
            }
        }
        while records.peek().is_some() {
            let mut state = lock(&self.state);
            if state.cleared {
                return;
            }
            for record in records.by_ref().take(PORTION) {
                if is_wanted(&state) {
                    state.catalog.add(name.id, record, &self.classes, own);
                }
            }
        }
        let mut full = false;
        while lock(&self.state).catalog.shrink(&self.classes) {
            full = true;
        }
        if full {
            self.is_full();
        }
    }

    /// Removes a pack from the catalog, a portion at a time, and runs `last` under the lock of the last portion.
    pub(crate) fn remove_pack(&self, id: PackId, last: impl FnOnce(&mut Catalog)) {
        loop {
            let mut state = lock(&self.state);
            if !state.catalog.remove_some(id, &self.classes) {
                return last(&mut state.catalog);
            }
        }
    }

    /// Notes whether a listing was answered.
    pub(crate) fn answered(&self, works: bool) {
        self.heard(works, |state| &mut state.answers);
    }

    /// Notes whether a read was answered.
    pub(crate) fn read_answered(&self, works: bool) {
        if works {
            lock(&self.state).last_answer = Some(Instant::now());
        }
        self.heard(works, |state| &mut state.reads);
    }

    /// Notes that a read brought wrong bytes only. If reads of one pack do so in a row, only the first counts,
    /// since the pack may be damaged and the store fine.
    pub(crate) fn read_lied(&self, pack: PackId) {
        let known = {
            let mut state = lock(&self.state);
            state.last_answer = Some(Instant::now());
            state.liar.replace(pack) == Some(pack)
        };
        if !known {
            self.heard(false, |state| &mut state.reads);
        }
    }

    fn heard(&self, works: bool, of: impl FnOnce(&mut RemoteState) -> &mut CircuitBreaker) {
        let mut state = lock(&self.state);
        let was_out = state.is_out();
        let breaker = of(&mut state);
        if works {
            breaker.worked();
        } else if breaker.failed() && !was_out {
            drop(state);
            self.ledger.count_outage();
            self.ledger.note("it is left alone for a while since it does not answer, or not with what was written; requests are computed \
                 meanwhile");
        }
    }

    /// Ends a copy. Does nothing if the copy has ended already.
    pub(crate) fn end(&self, copy: CopyId, result: Result<Vec<u64>>) {
        let mut state = lock(&self.state);
        let was = state.running.remove(&copy);
        let Some(RemoteCopy { begun, writes }) = was else {
            return;
        };
        state.writes_running -= u64::from(writes.is_some());
        if let Some(name) = writes
            && state.writing.get(&name) == Some(&copy)
        {
            state.writing.remove(&name);
        }
        if result.is_ok() {
            let took = begun.elapsed().as_micros() as u64;
            self.ledger.count(|counts| {
                if writes.is_none() {
                    counts.read_us += took;
                } else {
                    counts.write_us += took;
                }
            });
        }
        // This comes before the state is unlocked: a thread that finds no running copy finds the end.
        self.ended.add(copy, result);
    }

    /// Ends a copy that failed, and counts the failure.
    pub(crate) fn fail(&self, copy: CopyId, reason: RemoteFailure, what: impl Into<Cause>) {
        if lock(&self.state).running.contains_key(&copy) {
            let what = what.into();
            self.ledger.failed(reason, &what);
            self.end(copy, Err(Error::remote(what)));
        }
    }

    /// Notes that the store refused a write.
    pub(crate) fn write_failed(&self) {
        if lock(&self.state).writes.failed() {
            self.ledger.note("writes pause since it takes none");
        }
    }

    /// Runs `work` with the planes, if the copy still has its slots. Nobody else writes them meanwhile.
    fn in_slots<T>(&self, copy: CopyId, work: impl FnOnce(&Planes) -> T) -> Option<T> {
        // The cache keeps the slots for this copy until its end is reported, which this lock prevents.
        let left = self.left.read().unwrap_or_else(PoisonError::into_inner);
        let connection = self.connection.get()?;
        let own = !*left && lock(&self.state).running.contains_key(&copy);
        own.then(|| work(&connection.planes))
    }

    /// Whether the copy still has its slots, and had them since it began.
    pub(crate) fn has_slots(&self, copy: CopyId) -> bool {
        self.in_slots(copy, |_| ()).is_some()
    }

    /// Copies a piece of a shard out of a copy's slots, and appends the digests of the piece's tiles. `from` is the
    /// start of a tile. In `bytes`, each tile has room for its seal behind it. False if the copy has given up its slots.
    pub(crate) fn gather(
        &self,
        copy: CopyId,
        rank: usize,
        slots: &[SlotId],
        from: usize,
        bytes: &mut [u8],
        digests: &mut Vec<u64>,
    ) -> bool {
        let gather = |planes: &Planes| {
            let seal = self.seals.tile_bytes();
            for (at, tile) in bytes.chunks_mut(self.stored_tile()).enumerate() {
                let (tile, _) = tile.split_at_mut(tile.len() - seal);
                // SAFETY: nobody writes the slots meanwhile.
                digests.push(unsafe { planes.gather(rank, slots, from + at * TILE_BYTES, tile) });
            }
        };
        self.in_slots(copy, gather).is_some()
    }

    /// Appends the digests of a piece's tiles as [`gather`](Self::gather) does, without copying the piece.
    pub(crate) fn digest(
        &self,
        copy: CopyId,
        rank: usize,
        slots: &[SlotId],
        piece: Range<usize>,
        digests: &mut Vec<u64>,
    ) -> bool {
        let digest = |planes: &Planes| {
            for from in piece.clone().step_by(TILE_BYTES) {
                let length = TILE_BYTES.min(piece.end - from);
                // SAFETY: as in `gather`.
                digests.push(unsafe { planes.digest(rank, slots, from, length) });
            }
        };
        self.in_slots(copy, digest).is_some()
    }

    /// Copies a piece of a shard into a copy's slots and appends the digests of the piece's tiles, unless the copy
    /// has given up its slots. In `bytes`, each tile has its seal behind it.
    pub(crate) fn scatter(
        &self,
        copy: CopyId,
        rank: usize,
        slots: &[SlotId],
        from: usize,
        bytes: &[u8],
        digests: &mut Vec<u64>,
    ) {
        let seal = self.seals.tile_bytes();
        let tiles = || {
            let stored = bytes.chunks(self.stored_tile());
            stored.map(move |tile| &tile[..tile.len() - seal])
        };
        let scatter = |planes: &Planes| {
            for (at, tile) in tiles().enumerate() {
                // SAFETY: nobody else uses the slots before this copy's end.
                digests.push(unsafe { planes.scatter(rank, slots, from + at * TILE_BYTES, tile) });
            }
        };
        if self.in_slots(copy, scatter).is_none() {
            digests.extend(tiles().map(tile_digest));
        }
    }

    /// Ends all copies. From now on no thread touches slots.
    pub(crate) fn leave_slots(&self) {
        *self.left.write().unwrap_or_else(PoisonError::into_inner) = true;
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        let copies: Vec<CopyId> = state.running.keys().copied().collect();
        let is_write = |running: &&RemoteCopy| running.writes.is_some();
        let lost = state.running.values().filter(is_write).count();
        let stays = state.removing;
        drop(state);
        if lost > 0 {
            self.ledger
                .count_failures(RemoteFailure::Closed, lost as u64);
            self.ledger
                .note(&format!("it was closed before {lost} entries were written"));
        }
        if let Some(connection) = self.connection.get().filter(|_| stays) {
            let RemoteConnection { folder, writer, .. } = connection;
            self.ledger.note(&format!(
                "it was closed before what a reset made wrong was taken back: remove {folder}/*-{writer:016x}-*.pack"
            ));
        }
        for copy in copies {
            let what = "expected a store that is open, found it closed";
            self.end(copy, Err(Error::remote(what)));
        }
    }

    /// Ends the tasks without waiting for the store.
    pub(crate) fn stop(&self) {
        if let Some(runtime) = lock(&self.runtime).take() {
            if self.is_inherited() {
                std::mem::forget(runtime); // Its threads are the parent's.
            } else {
                runtime.shutdown_background();
            }
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.running.is_empty() && !state.removing
    }
}

impl CopyOwner for RemoteShared {
    fn let_go(&self, copy: CopyId) {
        let running = lock(&self.state).running.get(&copy).copied();
        if let Some(RemoteCopy { writes, .. }) = running {
            self.fail(copy, RemoteFailure::Panic, PANICKED);
            match writes {
                Some(_) => self.write_failed(),
                None => self.read_answered(false),
            }
        }
    }
}

/// The error of a copy whose task panicked.
pub(crate) const PANICKED: &str = "expected a task that ends, found that it panicked: standard error says where; please report it";

/// The error of a read of a pack that is gone from the store.
pub(crate) const GONE: &str = "expected a pack, found that it had left";

/// The current time in milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// The instant at which a limit ends that began at `begun`.
pub(crate) fn left_of(begun: Instant, limit: Duration) -> tokio::time::Instant {
    tokio::time::Instant::from_std(begun + limit)
}
