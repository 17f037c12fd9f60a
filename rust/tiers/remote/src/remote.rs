//! The remote store as a tier. Calls of the cache become messages to tasks, and no call waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hybrid_pages::error::Result;
use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::{EntryKey, SlotId};
use hybrid_pages::policy::{NewEntry, Policy};
use hybrid_pages::tier::{Below, CopyEnd, CopyId, Found, Room};
use hybrid_pages_tiers::{
    Seal, entry_sizes, largest_entry, lock_first, queue_slots, refused, shared_room,
};

use crate::catalog::Catalog;
use crate::freshness::FreshnessAnswer;
use crate::handle::{RemoteHandle, close};
use crate::listing::list;
use crate::messages::{Begun, EntryWrite, Fetch, Upload};
use crate::options::{Admit, RemoteOptions};
use crate::shared::RemoteShared;
use crate::upload::take_back;

/// A working engine lists the store after this time, even if its lookups find everything.
const LOOKING: Duration = Duration::from_secs(30);

/// A tier in a remote store. The crate's documentation describes it.
pub struct Remote {
    room: Room,
    shared: Arc<RemoteShared>,
    queue_slots: u64,
}

impl Remote {
    /// Makes a tier for the entries of a geometry in slots of `slot_bytes`. `policy` is an empty policy for this tier
    /// alone. It decides which entries the cache keeps track of, since the store's own limit is unknown. The store is
    /// used from [`RemoteHandle::connect`] on.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](hybrid_pages::error::Error::InvalidArgument) for a setting out of range.
    pub fn open(
        options: RemoteOptions,
        geometry: &Geometry,
        slot_bytes: usize,
        policy: Box<dyn Policy>,
    ) -> Result<Self> {
        options.check()?;
        let sizes = entry_sizes(geometry, slot_bytes)?;
        let largest = largest_entry(&sizes);
        Ok(Self {
            room: shared_room(options.most_entries as u64, largest, policy),
            queue_slots: queue_slots(options.queue_bytes, slot_bytes, largest),
            shared: Arc::new(RemoteShared::new(
                options,
                sizes,
                geometry.ranks(),
                slot_bytes,
            )),
        })
    }

    /// A handle that connects the tier and reads its counts.
    #[must_use]
    pub fn handle(&self) -> RemoteHandle {
        RemoteHandle(Arc::clone(&self.shared))
    }

    fn end(&self, copy: CopyId, result: Result<Vec<u64>>) {
        self.shared.ended.add(copy, result);
    }

    fn begin_listing(&self) {
        if let Some(connection) = self.shared.connection.get() {
            drop(connection.tasks.spawn(list(Arc::clone(&self.shared))));
        }
    }

    /// Lists the store if that is due.
    fn try_again(&self) {
        if self.shared.is_broken() {
            return;
        }
        let begins = {
            let mut state = lock_first(&self.shared.state);
            let used = !state.closed && !state.cleared;
            let tries = state.answers.may_try() | state.reads.may_try();
            // Other engines may have taken back packs that are still in the catalog.
            let old = !state.is_out() && state.freshness.is_older_than(LOOKING);
            let due = used && (tries || old);
            due && state.freshness.begin(false) == FreshnessAnswer::Begin
        };
        if begins {
            self.begin_listing();
        }
    }

    /// Whether entries may be written and found.
    fn is_used(&self) -> bool {
        let broken = self.shared.is_broken();
        let state = lock_first(&self.shared.state);
        self.shared.connection.get().is_some() && !broken && !state.closed && !state.cleared
    }
}

hybrid_pages_tiers::impl_tier!(Remote, "remote");

impl Below for Remote {
    fn queue_slots(&self) -> u64 {
        self.queue_slots
    }

    fn waits_for_proof(&self) -> bool {
        self.shared.options.admit == Admit::Auto
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn asks_for_each(&self) -> bool {
        false
    }

    fn accepts(&mut self, entry: &NewEntry) -> bool {
        if self.waits_for_proof() && !entry.proven {
            self.shared.ledger.count(|counts| counts.unproven += 1);
            return false;
        }
        let able = self.is_used() && {
            let state = lock_first(&self.shared.state);
            !state.is_out() && (!state.writes.is_open() || state.writes.is_due())
        };
        if !able {
            self.shared.ledger.count(|counts| counts.dropped += 1);
        }
        able
    }

    fn write(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId], checksums: &[u64]) {
        let shared = &self.shared;
        let (name, seal) = shared.seals.entry(key);
        let class = key.class_index;
        let told = mask(seal.as_ref(), checksums);
        let Some(connection) = shared.connection.get().filter(|_| self.is_used()) else {
            return self.end(copy, Err(refused("a store that takes writes", "none")));
        };
        let fits = shared.classes.get(class).is_some_and(|class| {
            connection.planes.hold(slots, class.shard_bytes) && checksums.len() == shared.ranks
        });
        if !fits {
            return self.end(copy, Err(refused("slots of the arena", "others")));
        }
        let mut state = lock_first(&shared.state);
        if state.closed || state.cleared {
            drop(state);
            return self.end(copy, Err(refused("a store that takes writes", "none")));
        }
        let known = state.catalog.find(&name);
        if known.is_some_and(|spot| spot.sums == told) {
            drop(state);
            shared.ledger.count(|counts| counts.spared_writes += 1);
            return self.end(copy, Ok(Vec::new()));
        }
        state.runs(copy, Instant::now(), Some(name));
        state.writing.insert(name, copy);
        drop(state);
        let entry = EntryWrite {
            copy: Begun::new(copy, Arc::downgrade(shared) as _),
            name,
            class,
            slots: slots.into(),
            sums: checksums.into(),
            told,
            seal,
        };
        if let Err(unsent) = connection.uploads.send(Upload::Entry(entry)) {
            shared.end(copy, Err(refused("a store that is open", "a closed one")));
            drop(unsent);
        }
    }

    fn read(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId]) {
        let shared = &self.shared;
        let (name, seal) = shared.seals.entry(key);
        let used = self.is_used();
        let mut state = lock_first(&shared.state);
        let out = state.is_out() || !used;
        let spot = state.catalog.find(&name).filter(|_| !state.closed).cloned();
        let Some((spot, connection)) = spot.zip(shared.connection.get()) else {
            drop(state);
            return self.end(copy, Err(refused("an entry in the store", "none")));
        };
        let class = shared.classes[spot.class];
        if out || spot.class != key.class_index || !connection.planes.hold(slots, class.shard_bytes)
        {
            drop(state);
            let found = if out { "an outage" } else { "another" };
            return self.end(copy, Err(refused("a store that answers", found)));
        }
        let begun = Instant::now();
        state.runs(copy, begun, None);
        drop(state);
        let fetch = Fetch {
            copy: Begun::new(copy, Arc::downgrade(shared) as _),
            name,
            bytes: class.bytes,
            sums: mask(seal.as_ref(), &spot.sums).into(),
            seal,
            spot,
            slots: slots.into(),
            begun,
        };
        if let Err(unsent) = connection.fetches.send(fetch) {
            shared.end(copy, Err(refused("a store that is open", "a closed one")));
            drop(unsent);
        }
    }

    fn poll(&mut self, ended: &mut Vec<CopyEnd>) {
        self.try_again();
        self.shared.ended.take(ended);
    }

    fn find(&mut self, key: &EntryKey) -> Found {
        if !self.is_used() {
            self.shared.ledger.count(|counts| counts.misses += 1);
            return Found::Absent;
        }
        let (name, seal) = self.shared.seals.entry(key);
        let mut state = lock_first(&self.shared.state);
        let suspect = state.suspects.get(&name).copied();
        let suspect = suspect.is_some_and(|until| {
            let waits = Instant::now() < until;
            if !waits {
                state.suspects.remove(&name);
            }
            waits
        });
        if suspect || state.is_out() {
            drop(state);
            self.shared.ledger.count(|counts| counts.misses += 1);
            return Found::Absent;
        }
        let spot = state.catalog.find(&name);
        if let Some(spot) = spot.filter(|spot| spot.class == key.class_index) {
            let sums = mask(seal.as_ref(), &spot.sums).into_vec();
            drop(state);
            self.shared.ledger.count(|counts| counts.hits += 1);
            return Found::Here(sums);
        }
        let answer = {
            let options = &self.shared.options;
            state.freshness.ask(options.refresh, options.deadline)
        };
        drop(state);
        match answer {
            FreshnessAnswer::Fresh => {
                self.shared.ledger.count(|counts| counts.misses += 1);
                return Found::Absent;
            }
            FreshnessAnswer::Begin => self.begin_listing(),
            FreshnessAnswer::Wait => {}
        }
        Found::Asking
    }

    fn may_have(&mut self, key: &EntryKey) -> Option<bool> {
        let name = self.shared.seals.name_of(key);
        Some(lock_first(&self.shared.state).catalog.find(&name).is_some())
    }

    fn tail_lengths(&mut self, namespace: &[u8], stem: u64, lengths: &mut Vec<u32>) -> bool {
        if !self.is_used() {
            return false;
        }
        let group = self.shared.seals.tail_group(namespace, stem);
        let answer = {
            let mut state = lock_first(&self.shared.state);
            if state.is_out() || state.catalog.tail_lengths(group, lengths) {
                return false;
            }
            let options = &self.shared.options;
            state.freshness.ask(options.refresh, options.deadline)
        };
        if answer == FreshnessAnswer::Begin {
            self.begin_listing();
        }
        answer != FreshnessAnswer::Fresh
    }

    fn expects(&self, _entries: u64, bytes: u64) -> Option<Duration> {
        match self.shared.options.admit {
            Admit::All => None,
            Admit::Auto => Some(lock_first(&self.shared.state).speed.expects(bytes)),
        }
    }

    fn in_time(&self) -> Option<u64> {
        let state = lock_first(&self.shared.state);
        state.speed.in_time(self.shared.options.deadline)
    }

    /// Undoes a write under way. An entry in the store stays, since others may use it.
    fn evict(&mut self, key: &EntryKey) {
        let name = self.shared.seals.name_of(key);
        lock_first(&self.shared.state).writing.remove(&name);
    }

    fn remove(&mut self, key: &EntryKey) {
        let name = self.shared.seals.name_of(key);
        let mut state = lock_first(&self.shared.state);
        state.writing.remove(&name);
        state.catalog.remove(&name, None, &self.shared.classes);
    }

    fn forget(&mut self, key: &EntryKey) {
        let name = self.shared.seals.name_of(key);
        lock_first(&self.shared.state).writing.remove(&name);
    }

    /// Stops sharing, since the identity does not describe this engine's results any more, and takes back all packs
    /// that this process has written.
    fn clear(&mut self) {
        let shared = &self.shared;
        if shared.is_inherited() {
            return;
        }
        let mut state = lock_first(&shared.state);
        if state.closed || std::mem::replace(&mut state.cleared, true) {
            return;
        }
        let empty = Catalog::new(shared.options.most_entries);
        let known = std::mem::replace(&mut state.catalog, empty);
        state.writing.clear();
        let Some(connection) = shared.connection.get() else {
            return;
        };
        state.removing = state.writes_begun;
        let own = state.removing.then(|| take_back(Arc::clone(shared)));
        drop(state);
        drop(connection.tasks.spawn(async move {
            drop(known); // Dropped here, since it may be large.
            if let Some(own) = own {
                own.await;
            }
        }));
        shared
            .ledger
            .note("after a reset nothing is shared until the engine starts anew");
    }
}

/// Hides the checksums of an entry that is encrypted, or shows them.
fn mask(seal: Option<&Seal>, sums: &[u64]) -> Box<[u64]> {
    seal.map_or_else(|| sums.into(), |seal| seal.mask(sums))
}

impl Drop for Remote {
    fn drop(&mut self) {
        close(&self.shared);
    }
}
