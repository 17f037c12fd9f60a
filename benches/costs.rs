//! What a step costs as prompts and stores grow: microseconds for each new block, and the longest call.
//!
//! `cargo bench --bench costs`. A prompt of so many blocks, of which the store has everything, grows by 256 blocks one at
//! a time, beside so many entries of others. Each of these calls takes the lock once, so the longest is a bound on how
//! long the lock is held. Last come calls over whole prompts, once a request.
//!
//! The first table is of long prompts: how long the lock is held at most. The end of a lease and `admit` take it once
//! here, so it is the CPU time of the call. Other calls take it many times: then it is how long another thread waits at
//! most, which asks for it all the time. Calls during which that thread had no processor don't count. Each figure is the
//! median of up to 25 calls; other work on the cores adds to it.

#[path = "null_tier.rs"]
mod null_tier;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hybrid_pages::cache::{Arrival, Cache, CacheConfig, ClassConfig, RestoreProgress};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::policy::{self, Hints};
use hybrid_pages::tier::Room;
use null_tier::{Kind, Null};

const MORE: usize = 256;

fn prompt(seed: usize, blocks: usize) -> Vec<PrefixKey> {
    let word =
        |block: usize| ((seed << 24 | (block + 1)) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..blocks)
        .map(|block| {
            PrefixKey::new(&word(block).to_le_bytes().repeat(4)).expect("32 bytes are a key")
        })
        .collect()
}

/// Time that this thread has had a processor: others on the machine don't count.
fn busy() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Time of all calls of one kind, and of the longest.
#[derive(Default, Clone, Copy)]
struct Calls(Duration, Duration);

impl Calls {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let begun = busy();
        let answer = call();
        let took = busy() - begun;
        self.0 += took;
        self.1 = self.1.max(took);
        answer
    }

    fn each(self, calls: usize) -> f64 {
        self.0.as_secs_f64() * 1e6 / calls as f64
    }
}

fn store(cache: &Cache, namespace: NamespaceId, keys: &[PrefixKey], from: usize) {
    store_classes(cache, namespace, keys, from, 2);
}

fn store_classes(
    cache: &Cache,
    namespace: NamespaceId,
    keys: &[PrefixKey],
    from: usize,
    classes: usize,
) {
    let arrival = Arrival {
        now: 1,
        tokens: 1,
        limit: keys.len(),
        hints: Hints::NONE,
    };
    cache
        .admit(namespace, keys, arrival)
        .expect("the namespace is known");
    for from in (from..keys.len()).step_by(512) {
        let to = keys.len().min(from + 512);
        let all: Vec<_> = (from..to)
            .flat_map(|block| (0..classes).map(move |class| (class, block)))
            .collect();
        let mut lease = cache
            .reserve(namespace, &keys[..to], &all)
            .expect("the entries are valid");
        let sums = vec![[7_u64]; lease.entries().len()];
        lease.commit(&sums).expect("one checksum per rank");
        cache.poll();
    }
}

fn run(name: &str, kind: Kind, blocks: usize, entries: usize) {
    let class = |kind, window_blocks| ClassConfig {
        kind,
        window_blocks,
        slots_per_entry: 1,
    };
    let config = CacheConfig {
        classes: vec![class(ClassKind::Attention, 0), class(ClassKind::Window, 8)],
        ranks: 1,
        slots: entries + 3 * (blocks + MORE),
        slot_bytes: 1 << 16,
        policy: "reuse".into(),
        tenant_slots: None,
    };
    let room = || {
        Room::new(
            1 << 24,
            policy::by_name("reuse", config.shape()).expect("the name is known"),
        )
    };
    let below = (kind != Kind::Host).then(|| Null::boxed(room(), kind));
    let cache = Cache::with_tiers(&config, below.into_iter().collect())
        .expect("the configuration is valid");
    let namespace = cache.namespace(b"bench").expect("there is a number left");
    for other in 0..entries / 512 {
        store(&cache, namespace, &prompt(other + 2, 256), 0);
    }
    let keys = prompt(1, blocks + MORE);
    store(&cache, namespace, &keys[..blocks], 0);
    let [mut reserve, mut commit, mut poll, mut look] = [Calls::default(); 4];
    for block in blocks..blocks + MORE {
        let keys = &keys[..=block];
        let wanted = [(0, block), (1, block)];
        let mut lease = reserve
            .time(|| cache.reserve(namespace, keys, &wanted))
            .expect("the entries are valid");
        let sums = vec![[7_u64]; lease.entries().len()];
        commit
            .time(|| lease.commit(&sums))
            .expect("one checksum per rank");
        poll.time(|| cache.poll());
    }
    for _ in 0..16 {
        look.time(|| cache.lookup(namespace, &keys))
            .expect("the namespace is known");
    }
    let mut admit = Calls::default();
    let arrival = Arrival {
        now: 2,
        tokens: 1,
        limit: keys.len(),
        hints: Hints::NONE,
    };
    admit
        .time(|| cache.admit(namespace, &keys, arrival))
        .expect("the namespace is known");
    let longest = reserve.1.max(commit.1).max(poll.1);
    println!(
        "| {name} | {blocks} | {entries} | {:.1} | {:.1} | {:.1} | {} | {:.0} | {:.0} |",
        reserve.each(MORE),
        commit.each(MORE),
        poll.each(MORE),
        longest.as_micros(),
        look.each(16),
        admit.each(1),
    );
}

/// How long another thread waits for the lock at most while a call is made, if it runs meanwhile.
fn wait<T>(cache: &Cache, call: impl FnOnce() -> T) -> (T, Option<Duration>) {
    let (asked, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !ended.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::hint::black_box(cache.stats());
                longest = longest.max(begun.elapsed());
                asked.fetch_add(1, Ordering::Relaxed);
            }
            longest
        });
        while asked.load(Ordering::Relaxed) < 8 {
            std::thread::yield_now();
        }
        let before = asked.load(Ordering::Relaxed);
        let answer = call();
        let meanwhile = asked.load(Ordering::Relaxed) - before;
        ended.store(true, Ordering::Relaxed);
        let longest = other.join().expect("it doesn't panic");
        (answer, (meanwhile >= 8).then_some(longest))
    })
}

/// CPU time of a call that takes the lock once.
fn hold<T>(call: impl FnOnce() -> T) -> (T, Option<Duration>) {
    let mut calls = Calls::default();
    let answer = calls.time(call);
    (answer, Some(calls.1))
}

/// Calls over a prompt of so many blocks beside so many entries of others, in the host; and its restore in waves by a
/// host that has little more than the prompt, when a tier below has the others.
fn waits(blocks: usize, entries: usize) {
    let made = |slots: usize| {
        let config = CacheConfig {
            classes: vec![ClassConfig {
                kind: ClassKind::Attention,
                window_blocks: 0,
                slots_per_entry: 1,
            }],
            ranks: 1,
            slots,
            slot_bytes: 1 << 16,
            policy: "reuse".into(),
            tenant_slots: None,
        };
        let policy = policy::by_name("reuse", config.shape()).expect("the name is known");
        let below = Null::boxed(Room::new(1 << 24, policy), Kind::Disk);
        let cache = Cache::with_tiers(&config, vec![below]);
        let cache = cache.expect("the configuration is valid");
        let namespace = cache.namespace(b"bench").expect("there is a number left");
        (cache, namespace)
    };
    let keys = prompt(1, blocks);
    let fill = |cache: &Cache, namespace, first: usize| {
        for other in 0..entries / 256 {
            store_pages(cache, namespace, &prompt(first + other, 256));
        }
    };
    let mut longest = [const { Vec::new() }; 6];
    let (cache, namespace) = made(entries + 2 * blocks);
    fill(&cache, namespace, 2);
    store_pages(&cache, namespace, &keys);
    for now in 2..27 {
        let (lease, took) = wait(&cache, || cache.acquire(namespace, &keys, 0));
        longest[0].push(took);
        let mut lease = lease.expect("the namespace is known").expect("a hit");
        longest[1].push(hold(|| lease.release()).1);
        let arrival = Arrival {
            now,
            tokens: 1,
            limit: keys.len(),
            hints: Hints::NONE,
        };
        longest[2].push(hold(|| cache.admit(namespace, &keys, arrival)).1);
    }
    let (cache, namespace) = made(blocks * 5 / 4);
    fill(&cache, namespace, 2);
    store_pages(&cache, namespace, &keys);
    for other in 0..blocks / 256 {
        store_pages(&cache, namespace, &prompt((1 << 20) + other, 256));
    }
    for _ in 0..25 {
        let (restore, took) = wait(&cache, || cache.restore(namespace, &keys, 0));
        longest[3].push(took);
        let mut restore = restore.expect("the namespace is known").expect("a restore");
        let (progress, took) = wait(&cache, || restore.progress());
        assert!(matches!(
            progress,
            RestoreProgress::Waiting | RestoreProgress::Ready
        ));
        longest[4].push(took);
        longest[5].push(wait(&cache, || restore.end()).1);
    }
    let median = |all: Vec<Option<Duration>>| {
        let mut all: Vec<Duration> = all.into_iter().flatten().collect();
        all.sort_unstable();
        let middle = all.get(all.len() / 2);
        middle.map_or("?".into(), |it| it.as_micros().to_string())
    };
    let figures = longest.map(median);
    let figures = figures.join(" | ");
    println!("| {blocks} | {entries} | {figures} |");
}

fn store_pages(cache: &Cache, namespace: NamespaceId, keys: &[PrefixKey]) {
    store_classes(cache, namespace, keys, 0, 1);
}

fn main() {
    println!(
        "| blocks | entries | acquire | lease's end | admit | plan | first progress | restore's end |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for entries in [1 << 10, 1 << 14, 1 << 17, 1 << 20] {
        waits(1 << 14, entries);
    }
    println!();
    println!("| tiers | blocks | entries | reserve | commit | poll | longest | lookup | admit |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let kinds = [
        ("host alone", Kind::Host),
        ("disk", Kind::Disk),
        ("remote that waits for proof", Kind::Waits),
        ("remote that asks", Kind::Asks),
    ];
    for (name, kind) in kinds {
        for blocks in [1 << 8, 1 << 11, 1 << 14] {
            for entries in [1 << 10, 1 << 14, 1 << 17, 1 << 20] {
                run(name, kind, blocks, entries);
            }
        }
    }
}
