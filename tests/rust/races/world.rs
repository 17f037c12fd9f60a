//! What the threads of a test share, and the calls that they make.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hybrid_pages::cache::{
    Arrival, Cache, ClassConfig, LeaseEntry, Medium, ReadLease, RestoreProgress,
};
use hybrid_pages::error::{Error, Result};
use hybrid_pages::ids::{ClassKind, NamespaceId};
use hybrid_pages::policy::Hints;
use shuttle::thread;

use crate::cache_support::{is_tail, keys, places};
use crate::tier::{Copies, Slots, word};
use crate::{COMPARED, below};

const PROMPTS: [&str; 14] = [
    "a", "b", "ab", "aa", "abb", "aba", "aC", "abA", "ababa", "baabb", "baabbab", "abababa",
    "ababC", "ababbaB",
];
/// Whose entries tiers have from before, or from others.
pub const IDENTITY: &[u8] = b"engine";
const GUEST: &[u8] = b"guest";

/// Under what a call is made.
struct Tenant {
    namespace: NamespaceId,
    identity: &'static [u8],
    /// Whether the namespace may end before the call does.
    may_end: bool,
}

impl Tenant {
    /// What a call gives; `None` where its namespace has ended.
    fn answer<T>(&self, result: Result<T>) -> Option<T> {
        match result {
            Err(Error::InvalidArgument(_)) if self.may_end => None,
            result => Some(result.unwrap()),
        }
    }
}

/// All pages of a prompt, and the checkpoint at its end.
pub fn whole(classes: &[ClassConfig], prompt: &str) -> Vec<(usize, usize)> {
    let blocks = prompt.len();
    let each = classes.iter().enumerate().flat_map(|(class, it)| {
        let from = match it.kind {
            ClassKind::Recurrent => blocks - 1,
            _ => 0,
        };
        (from..blocks).map(move |block| (class, block))
    });
    each.collect()
}

fn hints() -> Hints {
    let (retain, priority) = [(1000, 0), (0, 3), (0, 0), (0, 0)][below(4)];
    Hints {
        retain,
        priority,
        ..Hints::NONE
    }
}

/// A cache, its slots and what is known of its reset.
pub struct World {
    cache: Cache,
    namespace: NamespaceId,
    classes: Vec<ClassConfig>,
    slots: Arc<Slots>,
    /// The calls of each thread, but for those that it makes while it holds a lease.
    pub calls: usize,
    /// Of so many leases, one finds damage, and another leaves its entries to a tier.
    ends: usize,
    /// Whether the reset has begun, and whether it has ended: 0 or 1.
    begun: AtomicU64,
    ended: AtomicU64,
}

impl World {
    pub fn new(cache: Cache, classes: Vec<ClassConfig>, slots: Arc<Slots>) -> Self {
        Self {
            namespace: cache.namespace(IDENTITY).unwrap(),
            cache,
            classes,
            slots,
            calls: [5, 5, 12][below(3)],
            ends: [4, 8, 50][below(3)],
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst) == 1
    }

    /// A call under the identity that lasts, or of a guest, whose namespace may end before the call.
    pub fn call(&self, may_reset: bool) {
        if below(4) > 0 {
            let tenant = self.lasting();
            self.call_as(&tenant, may_reset);
        } else {
            let guest = self.guest(below(2) == 0);
            let namespace = guest.namespace;
            if guest.may_end {
                self.cache.release_namespace(namespace).unwrap();
                self.call_as(&guest, may_reset);
            } else {
                self.call_as(&guest, may_reset);
                self.cache.release_namespace(namespace).unwrap();
            }
        }
        assert!(self.cache.failure().is_none(), "{:?}", self.cache.failure());
    }

    const fn lasting(&self) -> Tenant {
        Tenant {
            namespace: self.namespace,
            identity: IDENTITY,
            may_end: false,
        }
    }

    fn guest(&self, may_end: bool) -> Tenant {
        Tenant {
            namespace: self.cache.namespace_of(GUEST, b"guest").unwrap(),
            identity: GUEST,
            may_end,
        }
    }

    fn call_as(&self, tenant: &Tenant, may_reset: bool) {
        let (cache, namespace) = (&self.cache, tenant.namespace);
        let prompt = PROMPTS[below(PROMPTS.len())];
        let keys = keys(prompt);
        let full = &keys[..keys.len() - usize::from(is_tail(prompt))];
        let now = below(3000) as u64;
        match below(30) {
            0..7 => self.store(tenant, prompt),
            7..11 => self.load(tenant, prompt),
            11..14 => self.restore(tenant, prompt),
            14 | 15 => drop(tenant.answer(cache.promote(namespace, &keys, below(2)))),
            16 => drop(tenant.answer(cache.lookup(namespace, &keys))),
            17 => cache.poll(),
            18 if may_reset => self.reset(),
            19 => drop(cache.changes(Medium::Host, below(3) == 0)),
            20 => drop(tenant.answer(cache.expect(namespace, &keys, now, &hints()))),
            21..24 => {
                let arrival = Arrival {
                    now,
                    tokens: 1,
                    limit: full.len(),
                    hints: hints(),
                };
                tenant.answer(cache.admit(namespace, full, arrival));
            }
            24 => drop(tenant.answer(cache.finish(namespace, full, full.len(), 3))),
            25 => drop(tenant.answer(cache.give_up(namespace, full, 0, &[]))),
            26 if is_tail(prompt) => {
                tenant.answer(cache.continue_tail(namespace, &keys));
                tenant.answer(cache.supersede(namespace, &keys));
            }
            27 => drop(tenant.answer(cache.tail_lengths(namespace, full, 0, true))),
            // Refused where a slot behind them was handed out.
            28 => drop(cache.set_ready_slots(below(self.slots.len() + 1))),
            _ => assert_eq!(cache.audit(), None),
        }
    }

    /// What happens while a lease is held.
    fn meanwhile(&self) {
        thread::yield_now();
        if below(4) == 0 {
            self.call(false);
        }
    }

    /// All of a prompt, or what a store behind some of its blocks has, or one with more checkpoints that is cut short.
    fn wanted(&self, tenant: &Tenant, prompt: &str) -> Vec<(usize, usize)> {
        let blocks = prompt.len();
        let mut wanted = whole(&self.classes, prompt);
        match below(4) {
            0 => {
                let unwritten = self.cache.unwritten(tenant.namespace, &keys(prompt), 0);
                let from = tenant.answer(unwritten).unwrap_or_default();
                wanted.retain(|&(_, block)| block >= from.min(blocks - 1));
            }
            1 => {
                let from = below(blocks);
                let classes = 0..self.classes.len();
                let each = classes.flat_map(|class| (0..blocks).map(move |block| (class, block)));
                wanted = each
                    .filter(|&(_, block)| block >= from || below(4) > 0)
                    .collect();
            }
            _ => (),
        }
        wanted
    }

    fn store(&self, tenant: &Tenant, prompt: &str) {
        let (keys, wanted) = (keys(prompt), self.wanted(tenant, prompt));
        let reserved = self
            .cache
            .reserve_hinted(tenant.namespace, &keys, &wanted, &hints());
        let Some(mut lease) = tenant.answer(reserved) else {
            return;
        };
        let skipped = lease.skipped();
        let missed = skipped.resident + skipped.in_writing + skipped.no_room;
        let missed = missed + skipped.not_ready + skipped.tenant_share + skipped.orphan;
        assert_eq!(
            lease.entries().len() + missed,
            wanted.len(),
            "{skipped:?} of {wanted:?}"
        );
        // A reset after the reservation voids it, one before it is known here.
        let epoch = self.begun.load(Ordering::SeqCst);
        let mut sums = Vec::new();
        for entry in lease.entries() {
            let key = &keys[entry.block_index];
            let word = word(epoch, tenant.identity, key, entry.class_index);
            entry
                .slots
                .iter()
                .for_each(|slot| self.slots.fill(*slot, word));
            sums.push([word]);
        }
        self.meanwhile();
        for (entry, sum) in lease.entries().iter().zip(&sums) {
            self.slots
                .expect(&entry.slots, sum[0], "a slot that was reserved");
        }
        match below(6) {
            0 => drop(lease),
            _ => drop(lease.commit(&sums).unwrap()),
        }
    }

    fn load(&self, tenant: &Tenant, prompt: &str) {
        let since = self.ended.load(Ordering::SeqCst);
        let first = first_of(prompt);
        let lease = self.cache.acquire(tenant.namespace, &keys(prompt), first);
        if let Some(lease) = tenant.answer(lease).flatten() {
            let found = places(lease.entries());
            self.is_whole(prompt, first, lease.blocks(), found);
            self.read(tenant, prompt, lease, since);
        }
    }

    /// A restore, which may be given up.
    fn restore(&self, tenant: &Tenant, prompt: &str) {
        let since = self.ended.load(Ordering::SeqCst);
        let first = first_of(prompt);
        let restore = self.cache.restore(tenant.namespace, &keys(prompt), first);
        let Some(mut restore) = tenant.answer(restore).flatten() else {
            return self.load(tenant, prompt);
        };
        let mut found = Vec::new();
        for _ in 0..2 + below(12) {
            match restore.progress() {
                RestoreProgress::Ready => {
                    if let Some(lease) = restore.take() {
                        found.extend(places(lease.entries()));
                        self.read(tenant, prompt, lease, since);
                    }
                }
                RestoreProgress::Waiting | RestoreProgress::Queued => thread::yield_now(),
                RestoreProgress::Done => {
                    return self.is_whole(prompt, first, restore.blocks(), found);
                }
                RestoreProgress::Failed => return,
            }
        }
    }

    /// Checks that a resumption finds all that it needs, and nothing else.
    fn is_whole(&self, prompt: &str, first: usize, blocks: usize, mut found: Vec<(usize, usize)>) {
        let behind_tail = usize::from(blocks == prompt.len() && is_tail(prompt));
        let each = self.classes.iter().enumerate().flat_map(|(class, it)| {
            let from = match it.kind {
                ClassKind::Attention => 0,
                ClassKind::Recurrent => blocks - 1,
                ClassKind::Window => blocks.saturating_sub(it.window_blocks + behind_tail),
            };
            (from.max(first)..blocks).map(move |block| (class, block))
        });
        let needed: Vec<_> = each.collect();
        found.sort_unstable();
        assert_eq!(found, needed, "blocks {first} to {blocks} of {prompt}");
    }

    fn check(&self, tenant: &Tenant, prompt: &str, entry: &LeaseEntry, since: u64) {
        COMPARED.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        let key = &keys(prompt)[entry.block_index];
        let found = entry.checksums[0];
        let epochs = since..=self.begun.load(Ordering::SeqCst);
        let is_right = |epoch| word(epoch, tenant.identity, key, entry.class_index) == found;
        assert!(
            epochs.clone().any(is_right),
            "{found:x} in {epochs:?} of {prompt}"
        );
        self.slots
            .expect(&entry.slots, found, "a slot that is read");
    }

    fn read(&self, tenant: &Tenant, prompt: &str, lease: ReadLease, since: u64) {
        for turn in 0..2 {
            for entry in lease.entries() {
                self.check(tenant, prompt, entry, since);
            }
            if turn == 0 {
                self.meanwhile();
            }
        }
        match below(self.ends) {
            0 => drop(self.cache.invalidate(&lease).unwrap()),
            1 => {
                let tier = 1 + below(self.cache.tiers().len());
                self.cache.leave_to(&lease, tier).unwrap();
            }
            _ => (),
        }
    }

    fn reset(&self) {
        self.begun.store(1, Ordering::SeqCst);
        self.cache.clear();
        self.ended.store(1, Ordering::SeqCst);
    }

    /// Checks, when all threads have ended, that what lookups find can be loaded and that nothing is held or under way;
    /// after a last reset, no namespace is left.
    pub fn end(&self, tiers: &[Copies]) {
        loop {
            self.cache.poll();
            if !tiers.iter().any(Copies::are_under_way) {
                break;
            }
            thread::yield_now();
        }
        for prompt in PROMPTS {
            let hit = self.cache.lookup(self.namespace, &keys(prompt)).unwrap();
            let lease = self.cache.acquire(self.namespace, &keys(prompt), 0);
            let blocks = lease.unwrap().map_or(0, |lease| lease.blocks());
            assert_eq!(hit.host, blocks, "the hit of {prompt} in the host");
        }
        // With an audit, that nothing is pinned says that no copy, transient entry or prefix pin is left.
        assert_eq!(self.cache.audit(), None);
        let stats = self.cache.stats();
        assert_eq!(stats.leased_slots, 0, "slots that are pinned");
        assert_eq!(stats.writing_entries, 0, "entries in writing");
        assert_eq!(self.cache.restores().in_waves, 0, "restores in waves");
        assert_eq!(self.cache.batches(), 0, "batches of copies");
        for tier in self.cache.tiers() {
            let unpinned = tier.usage.free + tier.usage.evictable;
            assert_eq!(unpinned, tier.usage.capacity, "slots of a tier, but pinned");
        }
        let guest = self.guest(true);
        self.cache.clear();
        for namespace in [self.namespace, guest.namespace] {
            self.cache.release_namespace(namespace).unwrap();
            let freed = self.cache.lookup(namespace, &[]);
            assert!(freed.is_err(), "a namespace that nobody holds");
        }
        assert_eq!(self.cache.audit(), None);
    }
}

/// The first block that a load of a prompt is for.
fn first_of(prompt: &str) -> usize {
    match below(3) {
        0 => below(prompt.len()),
        _ => 0,
    }
}
