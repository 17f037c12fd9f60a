//! After a panic under its lock a cache finds nothing and hands nothing out: what it knows may be wrong, and a slot
//! that it takes for free may be somebody's.

mod cache_support;
mod tiers_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use hybrid_pages::cache::{
    Arrival, Cache, CacheConfig, Medium, ReadLease, RestoreProgress, WriteLease,
};
use hybrid_pages::error::Error;
use hybrid_pages::ids::{EntryId, EntryKey, NamespaceId, SlotId, TenantId};
use hybrid_pages::policy::{self, Hints, NewEntry, NewRequest, Policy};
use hybrid_pages::tier::{Below, CopyEnd, CopyId, Found, Room, Tier};
use tiers_support::cache_support::{keys, whole};
use tiers_support::{RANKS, SLOT_BYTES, hybrid};

const SLOTS: usize = 12;
const PAGES: [(usize, usize); 3] = [(0, 0), (0, 1), (0, 2)];

/// Counts calls, and panics at one of them.
#[derive(Clone)]
struct Fuse(Arc<AtomicIsize>);

impl Fuse {
    /// It panics at the call of that number, from 1.
    fn at(call: isize) -> Self {
        Self(Arc::new(AtomicIsize::new(call)))
    }

    fn burn(&self) {
        assert!(self.0.fetch_sub(1, Ordering::SeqCst) != 1, "planted");
    }

    fn has_blown(&self) -> bool {
        self.0.load(Ordering::SeqCst) <= 0
    }
}

/// A policy each of whose calls may be the one.
struct Fragile(Box<dyn Policy>, Fuse);

impl Policy for Fragile {
    fn admit(&mut self, request: &NewRequest<'_>, admitted: &mut Vec<usize>) {
        self.1.burn();
        self.0.admit(request, admitted);
    }
    fn finish(&mut self, boundaries: &[u64], end: usize, output_tokens: u64) {
        self.1.burn();
        self.0.finish(boundaries, end, output_tokens);
    }
    fn enter(&mut self, entry: &NewEntry) {
        self.1.burn();
        self.0.enter(entry);
        self.1.burn();
    }
    fn keep(&mut self, id: EntryId, tenant: TenantId, hints: &Hints) {
        self.1.burn();
        self.0.keep(id, tenant, hints);
    }
    fn release(&mut self, id: EntryId) {
        self.1.burn();
        self.0.release(id);
        self.1.burn();
    }
    fn hold(&mut self, id: EntryId) {
        self.1.burn();
        self.0.hold(id);
    }
    fn leave(&mut self, id: EntryId) {
        self.1.burn();
        self.0.leave(id);
        self.1.burn();
    }
    fn victim(&mut self) -> Option<EntryId> {
        self.1.burn();
        self.0.victim()
    }
    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        self.1.burn();
        self.0.victim_of(tenant)
    }
    fn bytes(&self) -> usize {
        self.1.burn();
        self.0.bytes()
    }
}

/// A tier each of whose calls may be the one. It has what it was given, and copies nothing.
struct Weak {
    room: Room,
    fuse: Fuse,
    entries: Vec<(EntryKey, Vec<u64>)>,
    ended: Vec<CopyEnd>,
}

impl Tier for Weak {
    fn name(&self) -> &str {
        "weak"
    }
    fn room(&self) -> &Room {
        &self.room
    }
    fn room_mut(&mut self) -> &mut Room {
        &mut self.room
    }
}

impl Below for Weak {
    fn queue_slots(&self) -> u64 {
        100
    }
    fn accepts(&mut self, _entry: &NewEntry) -> bool {
        self.fuse.burn();
        true
    }
    fn expects(&self, _entries: u64, _bytes: u64) -> Option<Duration> {
        self.fuse.burn();
        None
    }
    fn write(&mut self, copy: CopyId, key: &EntryKey, _slots: &[SlotId], checksums: &[u64]) {
        self.fuse.burn();
        self.entries.push((key.clone(), checksums.to_vec()));
        let result = Ok(vec![]);
        self.ended.push(CopyEnd { copy, result });
        self.fuse.burn();
    }
    fn read(&mut self, copy: CopyId, key: &EntryKey, _slots: &[SlotId]) {
        self.fuse.burn();
        let found = self.entries.iter().find(|(known, _)| known == key);
        let result = found
            .map(|(_, sums)| sums.clone())
            .ok_or_else(|| Error::disk("expected an entry, found none"));
        self.ended.push(CopyEnd { copy, result });
        self.fuse.burn();
    }
    fn poll(&mut self, ended: &mut Vec<CopyEnd>) {
        self.fuse.burn();
        ended.append(&mut self.ended);
        self.fuse.burn();
    }
    fn find(&mut self, key: &EntryKey) -> Found {
        self.fuse.burn();
        let found = self.entries.iter().find(|(known, _)| known == key);
        found.map_or(Found::Absent, |(_, sums)| Found::Here(sums.clone()))
    }
    fn remove(&mut self, key: &EntryKey) {
        self.fuse.burn();
        self.entries.retain(|(known, _)| known != key);
        self.fuse.burn();
    }
    fn clear(&mut self) {
        self.fuse.burn();
        self.entries.clear();
    }
}

/// A cache, and what is held of it when the fuse blows.
struct Scene {
    cache: Cache,
    namespace: NamespaceId,
    /// Slots that the engine's workers may be filling.
    filling: Vec<WriteLease>,
    loading: Vec<ReadLease>,
}

impl Scene {
    fn new(fuse: &Fuse) -> Option<Self> {
        let config = CacheConfig {
            classes: hybrid(),
            ranks: RANKS,
            slots: SLOTS,
            slot_bytes: SLOT_BYTES,
            policy: "reuse".into(),
            tenant_slots: None,
        };
        let policy = policy::by_name("reuse", config.shape()).unwrap();
        let tier = Weak {
            room: Room::new(100, Box::new(Fragile(policy, fuse.clone()))),
            fuse: fuse.clone(),
            entries: Vec::new(),
            ended: Vec::new(),
        };
        let cache = Cache::with_tiers(&config, vec![Box::new(tier)]).ok()?;
        Some(Self {
            namespace: cache.namespace(b"engine").ok()?,
            cache,
            filling: Vec::new(),
            loading: Vec::new(),
        })
    }

    fn store(&self, prompt: &str) -> Result<(), Error> {
        let mut lease = self
            .cache
            .reserve(self.namespace, &keys(prompt), &whole(prompt))?;
        let sums: Vec<[u64; RANKS]> = lease.entries().iter().map(|_| [7; RANKS]).collect();
        lease.commit(&sums).map(drop)
    }

    /// All that an engine does, as far as it comes.
    fn run(&mut self) -> Result<(), Error> {
        let hints = Hints {
            retain: 1000,
            ..Hints::NONE
        };
        for (now, prompt) in (0..).zip(["abc", "xyz", "abc", "uvw"]) {
            let keys = keys(prompt);
            let arrival = Arrival {
                now,
                tokens: 64,
                limit: 3,
                hints,
            };
            self.cache.admit(self.namespace, &keys, arrival)?;
            self.cache.lookup(self.namespace, &keys)?;
            if let Some(mut restore) = self.cache.restore(self.namespace, &keys, 0)? {
                while let RestoreProgress::Ready | RestoreProgress::Waiting = restore.progress() {
                    self.loading.extend(restore.take());
                }
            }
            self.cache.promote(self.namespace, &keys, 0)?;
            self.store(prompt)?;
            self.cache.poll();
            self.loading
                .extend(self.cache.acquire(self.namespace, &keys, 0)?);
            if now == 1 {
                self.loading.clear();
                self.cache.invalidate(
                    &self
                        .cache
                        .acquire(self.namespace, &keys, 0)?
                        .ok_or_else(|| Error::Lease("expected a hit, found none".into()))?,
                )?;
            }
            self.cache.finish(self.namespace, &keys, 3, 5)?;
            self.filling.push(self.cache.reserve_hinted(
                self.namespace,
                &tiers_support::cache_support::keys(["pqr", "pqs", "tuv", "ab"][now as usize]),
                &PAGES[..2],
                &hints,
            )?);
            self.loading.pop();
            if now > 0 {
                self.filling.remove(0).abort();
            }
            let _ = self.cache.stats();
        }
        self.cache.clear();
        Ok(())
    }
}

/// What a cache says and does once its fuse has blown.
fn check_closed(scene: Scene, call: isize) {
    let Scene {
        cache,
        namespace,
        mut filling,
        mut loading,
    } = scene;
    let failure = cache.failure();
    let said = failure.as_ref().map(Error::to_string).unwrap_or_default();
    assert!(
        said.contains("planted") && said.contains("Restart"),
        "call {call}: {said}"
    );
    let failed = |what: &str, error: Option<Error>| {
        assert_eq!(error, failure, "call {call}: {what}");
    };
    for prompt in ["abc", "xyz", "uvw", "new"] {
        let keys = keys(prompt);
        let arrival = Arrival {
            now: 9,
            tokens: 64,
            limit: 3,
            hints: Hints::NONE,
        };
        failed("lookup", cache.lookup(namespace, &keys).err());
        failed("acquire", cache.acquire(namespace, &keys, 0).err());
        failed("restore", cache.restore(namespace, &keys, 0).err());
        failed("promote", cache.promote(namespace, &keys, 0).err());
        failed("admit", cache.admit(namespace, &keys, arrival).err());
        failed("finish", cache.finish(namespace, &keys, 1, 1).err());
        failed("unwritten", cache.unwritten(namespace, &keys, 0).err());
        let lengths = cache.tail_lengths(namespace, &keys, 0, true);
        failed("tail_lengths", lengths.err());
        failed("has_tails", cache.has_tails(namespace, 3, &[]).err());
        failed("give_up", cache.give_up(namespace, &keys, 0, &[]).err());
        let expected = cache.expect(namespace, &keys, 9, &Hints::NONE);
        failed("expect", expected.err());
        failed("reserve", cache.reserve(namespace, &keys, &PAGES).err());
        let mut shown = 0;
        let each = |_: usize, _: usize, _: &[SlotId]| shown += 1;
        let reserved = cache.reserve_each(namespace, &keys, &PAGES, &Hints::NONE, each);
        failed("reserve_each", reserved.err());
        assert_eq!(shown, 0, "call {call}: no slot is shown");
    }
    failed("namespace", cache.namespace(b"other").err());
    failed("release", cache.release_namespace(namespace).err());
    failed("follow", cache.follow().err());
    failed("retire", cache.retire(namespace).err());
    failed("ready slots", cache.set_ready_slots(3).err());
    failed("rate", cache.set_compute_rate(Some(1.0)).err());
    if let Some(lease) = loading.first() {
        failed("invalidate", cache.invalidate(lease).err());
    }
    for lease in &mut filling {
        let sums: Vec<[u64; RANKS]> = lease.entries().iter().map(|_| [7; RANKS]).collect();
        failed("commit", lease.commit(&sums).err());
        assert!(!lease.ended(), "call {call}");
        lease.abort();
    }
    loading.iter_mut().for_each(ReadLease::release);
    cache.poll();
    assert_eq!(cache.clear(), 0);
    assert_eq!(cache.changes(Medium::Host, true).stored, []);
    let stats = cache.stats();
    let expected = (SLOTS as u64, SLOTS as u64, 0, 0, 0);
    let found = (
        stats.slots,
        stats.leased_slots,
        stats.free_slots,
        stats.pages,
        stats.checkpoints,
    );
    assert_eq!(
        found, expected,
        "call {call}: every slot may still be somebody's"
    );
    let tiers: Vec<_> = cache.tiers().into_iter().map(|tier| tier.name).collect();
    assert_eq!(tiers, ["weak"]);
    assert_eq!(cache.audit(), Some(said));
}

/// Says nothing of the panics that are planted.
fn quietly() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("planted") {
            usual(panic);
        }
    }));
}

#[test]
fn wherever_it_happens_nothing_is_found_published_or_handed_out_any_more() {
    quietly();
    let mut calls = 0;
    for call in 1.. {
        let fuse = Fuse::at(call);
        let Some(mut scene) = Scene::new(&fuse) else {
            assert!(fuse.has_blown());
            continue;
        };
        let outcome = scene.run();
        if !fuse.has_blown() {
            outcome.unwrap();
            assert_eq!(scene.cache.failure(), None);
            assert_eq!(scene.cache.audit(), None);
            break;
        }
        calls = call;
        check_closed(scene, call);
    }
    drop(std::panic::take_hook());
    assert!(
        calls > 100,
        "expected many places to panic at, found {calls}"
    );
}
