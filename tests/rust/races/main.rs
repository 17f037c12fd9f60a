//! The cache's threads in many orders, under shuttle: lookups, commits, evictions, promotions, restores in waves,
//! tails, hints, ends of leases, resets and the end of the cache, under two identities. Below it are one or two tiers,
//! whose copies other threads make. Calls take the lock in portions of two blocks, so that others come in between.
//! Tiers have entries of an earlier process, may get some from others, keep what they were to drop, answer later where
//! they are asked, fail now and then and read other bytes. Classes, policies and sizes are those of any engine.
//!
//! Every slot has a word that says whose bytes it holds. Whoever holds a slot finds the same word until it lets go,
//! and a word of before a reset is never found after it. A lease or a restore has all that a resumption needs, and at
//! the end nothing is left behind. `HYBRID_PAGES_RACES` is the number of orders.

extern crate hybrid_pages_races_std as std;

#[path = "../core/cache_support.rs"]
mod cache_support;
#[path = "../shared/report.rs"]
mod report;
mod tier;
mod world;

use std::sync::Arc;

use cache_support::{config, engines, keys};
use hybrid_pages::cache::{Cache, CacheConfig, ClassConfig};
use hybrid_pages::ids::ClassKind;
use shuttle::rand::Rng as _;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner, thread};
use tier::{Name, Slots, Threaded};
use world::{IDENTITY, World, whole};

/// Entries that were read and compared, over all orders. No thread takes a turn here.
static COMPARED: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
const THREADS: usize = 3;
/// What an earlier process has left below the host.
const LEFT: [&str; 1] = ["baabb"];
/// What others may add there.
const OTHERS: [&str; 3] = ["abababa", "ababC", "abb"];

fn below(most: usize) -> usize {
    shuttle::rand::thread_rng().gen_range(0..most)
}

/// A small cache, for an engine of any kind, and the slots of one or two small tiers.
fn settings() -> (CacheConfig, Vec<u64>) {
    let all = engines();
    let policy = ["lru", "reuse"][below(2)];
    let classes = &all[below(all.len())];
    let most: usize = classes.iter().map(|class| class.slots_per_entry).sum();
    let slots = most * (3 + below(8));
    let config = CacheConfig {
        policy: policy.into(),
        tenant_slots: (below(4) == 0).then_some(slots / 2),
        ..config(classes, slots)
    };
    let rooms = (0..1 + below(2)).map(|_| (most * (2 + below(8))) as u64);
    (config, rooms.collect())
}

/// The names of all that some prompts have.
fn names(classes: &[ClassConfig], prompts: &[&str]) -> Vec<Name> {
    let identity: Arc<[u8]> = IDENTITY.into();
    let each = prompts.iter().flat_map(|prompt| {
        let keys = keys(prompt);
        let entries = whole(classes, prompt).into_iter();
        entries.map(move |(class, block)| (keys[block], class))
    });
    each.map(|(key, class)| (Arc::clone(&identity), key, class))
        .collect()
}

/// Threads at work on a small cache, and then its end.
fn work() {
    let (config, rooms) = settings();
    let slots = Arc::new(Slots::new(config.slots));
    let left = names(&config.classes, &LEFT);
    let others = names(&config.classes, &OTHERS);
    let made = rooms
        .iter()
        .map(|&room| Threaded::boxed(&slots, room, &config, &left, &others));
    let (tiers, copies): (Vec<_>, Vec<_>) = made.unzip();
    let copiers: Vec<_> = copies
        .iter()
        .cloned()
        .map(|copies| thread::spawn(move || copies.run()))
        .collect();
    let cache = Cache::with_tiers(&config, tiers).unwrap();
    let pages = |class: &ClassConfig| class.kind == ClassKind::Attention;
    if config.classes.iter().any(pages) && below(2) == 0 {
        cache.follow().unwrap();
    }
    let world = Arc::new(World::new(cache, config.classes, slots));
    let workers: Vec<_> = (0..THREADS)
        .map(|number| {
            let world = Arc::clone(&world);
            // One thread alone resets, and once: it is known which bytes are right.
            thread::spawn(move || {
                for _ in 0..world.calls {
                    world.call(number == 0 && !world.has_begun());
                }
            })
        })
        .collect();
    // Where it is dropped early, the last of the threads ends the cache.
    let world = (below(3) > 0).then_some(world);
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
    if let Some(world) = world {
        world.end(&copies);
    }
    copiers
        .into_iter()
        .for_each(|copier| copier.join().unwrap());
}

fn orders() -> usize {
    report::setting("HYBRID_PAGES_RACES", 130) as usize
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
