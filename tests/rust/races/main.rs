//! The cache's threads in many orders, under shuttle: lookups, commits, evictions, promotions, restores in waves, ends
//! of leases, resets and the end of the cache, above a tier whose copies another thread makes. Calls take the lock
//! in portions of two blocks, so that others come in between. The tier has entries of an earlier process, may answer
//! later where it is asked, and fails now and then. Classes, policies and sizes are those of any engine.
//!
//! Every slot has a word that says whose bytes it holds. Whoever holds a slot finds the same word until it lets go,
//! and a word of before a reset is never found after it. `HYBRID_PAGES_RACES` is the number of orders.

extern crate hybrid_pages_races_std as std;

#[path = "../core/cache_support.rs"]
mod cache_support;
#[path = "../shared/report.rs"]
mod report;
mod tier;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cache_support::{config, engines, keys};
use hybrid_pages::cache::{
    Arrival, Cache, CacheConfig, ClassConfig, LeaseEntry, Medium, ReadLease, RestoreProgress,
};
use hybrid_pages::ids::{ClassKind, NamespaceId};
use hybrid_pages::policy::Hints;
use shuttle::rand::Rng as _;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner, thread};
use tier::{Slots, Threaded, word};

/// Entries that were read and compared, over all orders. No thread takes a turn here.
static COMPARED: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
const THREADS: usize = 3;
const CALLS: usize = 5;
const PROMPTS: [&str; 10] = [
    "a", "b", "ab", "aa", "abb", "aba", "aC", "abA", "ababa", "baabb",
];
/// What an earlier process has left below the host.
const LEFT: &str = "baabb";

/// What the threads of a test share.
struct World {
    cache: Cache,
    namespace: NamespaceId,
    classes: Vec<ClassConfig>,
    slots: Arc<Slots>,
    /// Whether the reset has begun, and whether it has ended: 0 or 1.
    begun: AtomicU64,
    ended: AtomicU64,
}

fn below(most: usize) -> usize {
    shuttle::rand::thread_rng().gen_range(0..most)
}

/// All pages of a prompt, and the checkpoint at its end.
fn whole(classes: &[ClassConfig], prompt: &str) -> Vec<(usize, usize)> {
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

/// A small cache over a small tier, for an engine of any kind.
fn settings() -> (CacheConfig, u64) {
    let all = engines();
    let policy = ["lru", "reuse"][below(2)];
    let classes = &all[below(all.len())];
    let most: usize = classes.iter().map(|class| class.slots_per_entry).sum();
    let slots = most * (3 + below(4));
    let config = CacheConfig {
        policy: policy.into(),
        tenant_slots: (below(4) == 0).then_some(slots / 2),
        ..config(classes, slots)
    };
    (config, (most * (2 + below(5))) as u64)
}

impl World {
    fn store(&self, prompt: &str) {
        let reserved =
            self.cache
                .reserve(self.namespace, &keys(prompt), &whole(&self.classes, prompt));
        let mut lease = reserved.unwrap();
        // A reset after the reservation voids it, one before it is known here.
        let epoch = self.begun.load(Ordering::SeqCst);
        let mut sums = Vec::new();
        for entry in lease.entries() {
            let word = word(epoch, &keys(prompt)[entry.block_index], entry.class_index);
            entry
                .slots
                .iter()
                .for_each(|slot| self.slots.fill(*slot, word));
            sums.push([word]);
        }
        thread::yield_now();
        for (entry, sum) in lease.entries().iter().zip(&sums) {
            self.slots
                .expect(&entry.slots, sum[0], "a slot that was reserved");
        }
        match below(6) {
            0 => drop(lease),
            _ => drop(lease.commit(&sums).unwrap()),
        }
    }

    fn check(&self, prompt: &str, entry: &LeaseEntry, since: u64) {
        COMPARED.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        let key = &keys(prompt)[entry.block_index];
        let found = entry.checksums[0];
        let epochs = since..=self.begun.load(Ordering::SeqCst);
        let is_right = |epoch| word(epoch, key, entry.class_index) == found;
        assert!(
            epochs.clone().any(is_right),
            "{found:x} in {epochs:?} of {prompt}"
        );
        self.slots
            .expect(&entry.slots, found, "a slot that is read");
    }

    fn read(&self, prompt: &str, lease: ReadLease, since: u64) {
        for turn in 0..2 {
            for entry in lease.entries() {
                self.check(prompt, entry, since);
            }
            if turn == 0 {
                thread::yield_now();
            }
        }
        match below(16) {
            0 | 1 => drop(self.cache.invalidate(&lease).unwrap()),
            2 => drop(self.cache.leave_to(&lease, 1).unwrap()),
            _ => (),
        }
    }

    fn load(&self, prompt: &str) {
        let since = self.ended.load(Ordering::SeqCst);
        let lease = self.cache.acquire(self.namespace, &keys(prompt), 0);
        if let Some(lease) = lease.unwrap() {
            self.read(prompt, lease, since);
        }
    }

    fn restore(&self, prompt: &str) {
        let since = self.ended.load(Ordering::SeqCst);
        let restore = self.cache.restore(self.namespace, &keys(prompt), 0);
        let Some(mut restore) = restore.unwrap() else {
            return self.load(prompt);
        };
        for _ in 0..6 {
            match restore.progress() {
                RestoreProgress::Ready => {
                    if let Some(lease) = restore.take() {
                        self.read(prompt, lease, since);
                    }
                }
                RestoreProgress::Waiting | RestoreProgress::Queued => thread::yield_now(),
                _ => break,
            }
        }
    }

    fn reset(&self) {
        self.begun.store(1, Ordering::SeqCst);
        self.cache.clear();
        self.ended.store(1, Ordering::SeqCst);
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst) == 1
    }

    fn call(&self, may_reset: bool) {
        let prompt = PROMPTS[below(PROMPTS.len())];
        let hints = Hints {
            retain: 1000,
            ..Hints::NONE
        };
        match below(24) {
            22 | 23 => {
                let arrival = Arrival {
                    now: below(100) as u64,
                    tokens: 1,
                    limit: prompt.len(),
                    hints: Hints::NONE,
                };
                let keys = keys(prompt);
                self.cache.admit(self.namespace, &keys, arrival).unwrap();
            }
            20 => drop(self.cache.changes(Medium::Host, below(3) == 0)),
            21 => {
                let keys = keys(prompt);
                self.cache.expect(self.namespace, &keys, 1, &hints).unwrap();
            }
            0..7 => self.store(prompt),
            7..11 => self.load(prompt),
            11..14 => self.restore(prompt),
            14 | 15 => drop(
                self.cache
                    .promote(self.namespace, &keys(prompt), 0)
                    .unwrap(),
            ),
            16 => drop(self.cache.lookup(self.namespace, &keys(prompt)).unwrap()),
            17 => self.cache.poll(),
            18 if may_reset => self.reset(),
            _ => assert_eq!(self.cache.audit(), None),
        }
    }
}

/// Threads at work on a small cache, and then its end.
fn work() {
    let (config, room) = settings();
    let slots = Arc::new(Slots::new(config.slots));
    let left = whole(&config.classes, LEFT).into_iter();
    let left = left.map(|(class, block)| (keys(LEFT)[block], class));
    let (tier, copies) = Threaded::boxed(&slots, room, &config, left);
    let copier = thread::spawn({
        let copies = copies.clone();
        move || copies.run()
    });
    let cache = Cache::with_tiers(&config, vec![tier]).unwrap();
    let pages = |class: &ClassConfig| class.kind == ClassKind::Attention;
    if config.classes.iter().any(pages) {
        cache.follow().unwrap();
    }
    let world = Arc::new(World {
        namespace: cache.namespace(b"engine").unwrap(),
        cache,
        classes: config.classes,
        slots,
        begun: AtomicU64::new(0),
        ended: AtomicU64::new(0),
    });
    let workers: Vec<_> = (0..THREADS)
        .map(|number| {
            let world = Arc::clone(&world);
            // One thread alone resets, and once: it is known which bytes are right.
            thread::spawn(move || {
                for _ in 0..CALLS {
                    world.call(number == 0 && !world.has_begun());
                }
            })
        })
        .collect();
    let leaves_early = below(3) == 0;
    if !leaves_early {
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
        while copies.are_under_way() {
            world.cache.poll();
            thread::yield_now();
        }
        world.cache.poll();
        assert_eq!(world.cache.audit(), None);
        assert_eq!(
            world.cache.stats().leased_slots,
            0,
            "a lease that has not ended"
        );
        drop(world);
    } else {
        // The last of the threads ends the cache.
        drop(world);
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    }
    copier.join().unwrap();
}

fn orders() -> usize {
    report::setting("HYBRID_PAGES_RACES", 300) as usize
}

fn run(scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    let ran = Runner::new(scheduler, config).run(work) as u64;
    let compared = COMPARED.swap(0, core::sync::atomic::Ordering::Relaxed);
    assert!(compared > ran / 10, "{compared} entries were compared");
    report::report([
        ("orders of threads", ran),
        ("entries compared in them", compared),
    ]);
}

#[test]
fn every_slot_keeps_its_bytes_while_it_is_held_in_any_order_of_threads() {
    run(RandomScheduler::new(orders()));
    // With few changes between threads.
    run(PctScheduler::new(3, orders()));
}
