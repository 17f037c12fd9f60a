//! What each operation of the cache costs for a block, and how long it holds the cache's lock at most, as prompts and
//! stores grow.
//!
//! `cargo bench --bench sizes`. A row is an operation, a column a prompt of so many blocks beside so many entries of
//! others. The lock itself measures (`guarded::WATCHER`), by the processor time of the thread that holds it, so that
//! other work on the cores doesn't count; `--wall` measures by the clock. Of some rounds the least counts: what a call
//! needs it needs each time. What happens once or now and then, as a table that grows, shows in the row of a store that
//! grows: the longest of all its holds, of the best of three fills. The last lines name what holds the lock longer than
//! a millisecond.

#[path = "null_tier.rs"]
mod null_tier;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hybrid_pages::cache::{Arrival, Cache, CacheConfig, ClassConfig, Medium, RestoreProgress};
use hybrid_pages::guarded::WATCHER;
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::policy::{self, Hints};
use hybrid_pages::tier::{Below, Room};
use null_tier::{FAILS, Kind, Null};

const BLOCKS: [usize; 3] = [1 << 8, 1 << 11, 1 << 14];
const ENTRIES: [usize; 4] = [1 << 10, 1 << 14, 1 << 18, 1 << 20];
/// Blocks of each of the other prompts.
const OTHERS: usize = 256;
const LIMIT: Duration = Duration::from_millis(1);
/// How often a store is filled and cleared.
const FILLS: usize = 3;
/// Entries that a step of an engine stores at most.
const STEP: usize = 512;

static WALL: AtomicBool = AtomicBool::new(false);
static LONGEST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static TAKEN: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn now() -> Duration {
    if WALL.load(Ordering::Relaxed) {
        static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        return BEGUN.get_or_init(Instant::now).elapsed();
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn watch(_: &str, taken: bool) {
    if taken {
        TAKEN.set(now());
    } else {
        let held = now().saturating_sub(TAKEN.get()).as_nanos() as u64;
        LONGEST.fetch_max(held, Ordering::Relaxed);
    }
}

/// Gives the system what was freed so far. Otherwise glibc does that in whichever call frees next, which takes it up to
/// 10 ms (`brk`).
fn give_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}

/// Time for a block, and the longest hold, of one operation at one size.
#[derive(Clone, Copy)]
struct Cost {
    each: f64,
    held: Duration,
}

#[derive(Default)]
struct Table(BTreeMap<&'static str, Cost>, Vec<&'static str>);

impl Table {
    /// Measures a call for so many blocks.
    fn time<T>(&mut self, name: &'static str, blocks: usize, call: impl FnOnce() -> T) -> T {
        LONGEST.store(0, Ordering::Relaxed);
        let begun = now();
        let answer = call();
        let took = now() - begun;
        let held = Duration::from_nanos(LONGEST.load(Ordering::Relaxed));
        self.add(
            name,
            Cost {
                each: took.as_secs_f64() * 1e6 / blocks as f64,
                held,
            },
        );
        answer
    }

    fn add(&mut self, name: &'static str, cost: Cost) {
        if !self.1.contains(&name) {
            self.1.push(name);
        }
        let least = self.0.entry(name).or_insert(cost);
        least.each = least.each.min(cost.each);
        least.held = least.held.min(cost.held);
    }
}

fn prompt(seed: usize, blocks: usize) -> Vec<PrefixKey> {
    let word =
        |block: usize| ((seed << 24 | (block + 1)) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..blocks)
        .map(|block| PrefixKey::new(&word(block).to_le_bytes().repeat(4)).expect("a key"))
        .collect()
}

fn arrival(limit: usize) -> Arrival {
    Arrival {
        now: 1,
        tokens: 1,
        limit,
        hints: Hints::NONE,
    }
}

/// A page and a window for each block, and a checkpoint at the end.
fn entries(from: usize, to: usize, checkpoint: bool) -> Vec<(usize, usize)> {
    let pages = (from..to).flat_map(|block| [(0, block), (1, block)]);
    pages.chain(checkpoint.then_some((2, to - 1))).collect()
}

struct Scene {
    cache: Cache,
    namespace: NamespaceId,
}

impl Scene {
    fn new(kind: Kind, slots: usize, below: u64) -> Self {
        let class = |kind, window_blocks, slots_per_entry| ClassConfig {
            kind,
            window_blocks,
            slots_per_entry,
        };
        let config = CacheConfig {
            classes: vec![
                class(ClassKind::Attention, 0, 1),
                class(ClassKind::Window, 8, 1),
                class(ClassKind::Recurrent, 0, 3),
            ],
            ranks: 1,
            slots,
            slot_bytes: 1 << 16,
            policy: "reuse".into(),
            tenant_slots: None,
        };
        let tier = || -> Box<dyn Below> {
            let policy = policy::by_name("reuse", config.shape()).expect("the name is known");
            Null::boxed(Room::new(below, policy), kind)
        };
        let below = (kind != Kind::Host).then(tier).into_iter().collect();
        let cache = Cache::with_tiers(&config, below).expect("the configuration is valid");
        let namespace = cache.namespace(b"bench").expect("there is a number left");
        Self { cache, namespace }
    }

    fn store(&self, keys: &[PrefixKey]) {
        let arrival = arrival(keys.len());
        let admitted = self.cache.admit(self.namespace, keys, arrival);
        admitted.expect("the namespace is known");
        self.store_steps(keys);
    }

    /// Stores a prompt as an engine does, step by step.
    fn store_steps(&self, keys: &[PrefixKey]) {
        let Self { cache, namespace } = self;
        for from in (0..keys.len()).step_by(STEP / 2) {
            let to = keys.len().min(from + STEP / 2);
            let wanted = entries(from, to, to == keys.len());
            let mut lease = cache
                .reserve(*namespace, &keys[..to], &wanted)
                .expect("valid");
            let sums = vec![[7_u64]; lease.entries().len()];
            lease.commit(&sums).expect("one checksum per rank");
            drop(lease);
            cache.poll();
        }
    }

    fn fill(&self, entries: usize) {
        for other in 0..entries / (2 * OTHERS) {
            self.store(&prompt(other + 100, OTHERS));
        }
    }
}

/// One round of all operations beside a store that has room.
fn round(table: &mut Table, kind: Kind, blocks: usize, entries_there: usize) {
    let scene = Scene::new(kind, entries_there * 5 / 4 + 10 * blocks + 64, 1 << 24);
    scene.cache.follow().expect("there are pages");
    give_memory_back();
    table.time("fill a store that grows", entries_there, || {
        scene.fill(entries_there)
    });
    let Scene { cache, namespace } = &scene;
    let namespace = *namespace;
    let retained = Hints {
        retain: 1000,
        ..Hints::NONE
    };
    table.time("all announced", entries_there, || {
        cache.changes(Medium::Host, true)
    });
    table.time("all announced anew", entries_there, || {
        cache.changes(Medium::Host, true)
    });
    for turn in 0..3 {
        let keys = prompt(1 + turn, blocks);
        let t = &mut *table;
        t.time("look up what is absent", blocks, || {
            cache.lookup(namespace, &keys).expect("known")
        });
        t.time("admit", blocks, || {
            cache
                .admit(namespace, &keys, arrival(blocks))
                .expect("known")
        });
        t.time("store, step by step", blocks, || {
            scene.store_steps(&prompt(11 + turn, blocks));
        });
        let wanted = entries(0, blocks, true);
        let mut lease = t.time("reserve all at once", blocks, || {
            cache.reserve(namespace, &keys, &wanted).expect("valid")
        });
        t.time("abort all at once", blocks, || lease.abort());
        let mut lease = cache.reserve(namespace, &keys, &wanted).expect("valid");
        let sums = vec![[7_u64]; lease.entries().len()];
        t.time("commit all at once", blocks, || {
            lease.commit(&sums).expect("sums")
        });
        drop(lease);
        t.time("poll after all were written", blocks, || cache.poll());
        let longer = prompt(1 + turn, blocks + 16);
        t.time("one more block", 16, || {
            for block in blocks..blocks + 16 {
                let mut lease = cache
                    .reserve(namespace, &longer[..=block], &[(0, block), (1, block)])
                    .expect("valid");
                let sums = vec![[7_u64]; lease.entries().len()];
                lease.commit(&sums).expect("sums");
                drop(lease);
                cache.poll();
            }
        });
        t.time("look up", blocks, || {
            cache.lookup(namespace, &keys).expect("known")
        });
        t.time("prove", blocks, || {
            cache
                .admit(namespace, &keys, arrival(blocks))
                .expect("known")
        });
        cache.poll();
        let lease = t.time("acquire", blocks, || cache.acquire(namespace, &keys, 0));
        let mut lease = lease.expect("known").expect("a hit");
        t.time("release", blocks, || lease.release());
        t.time("finish", blocks, || {
            cache.finish(namespace, &keys, blocks, 100).expect("known")
        });
        t.time("expect", blocks, || {
            cache
                .expect(namespace, &keys, 10, &retained)
                .expect("known")
        });
        t.time("note", blocks, || {
            let notes = (0..blocks).map(|block| (block, Box::from(&b"note"[..])));
            cache.note(namespace, &keys, notes).expect("known")
        });
        t.time("announced changes", blocks, || {
            cache.changes(Medium::Host, false)
        });
        t.time("give up", blocks, || {
            cache.give_up(namespace, &keys, 0, &[]).expect("known")
        });
        let lease = t.time("acquire what is retained", blocks, || {
            cache.acquire(namespace, &keys, 0)
        });
        t.time("release what is retained", blocks, || drop(lease));
        let mut lease = cache
            .acquire(namespace, &keys, 0)
            .expect("known")
            .expect("a hit");
        t.time("invalidate", blocks, || {
            cache.invalidate(&lease).expect("a lease")
        });
        lease.release();
        scene.store(&keys);
    }
    table.time("stats", 1, || {
        (cache.stats(), cache.tiers(), cache.restores())
    });
    let other = cache.namespace(b"other").expect("a number");
    table.time("release a namespace", 1, || {
        cache.release_namespace(other).expect("known")
    });
    give_memory_back();
    table.time("clear", entries_there, || cache.clear());
}

/// Rooms that are full: in the host for new entries, and below it, where all that was in the host is.
fn full(table: &mut Table, kind: Kind, blocks: usize, entries_there: usize) {
    let slots = entries_there.max(8 * blocks);
    let scene = Scene::new(kind, slots, 1 << 24);
    scene.fill(2 * slots);
    let Scene { cache, namespace } = &scene;
    for turn in 0..3 {
        let keys = prompt(1 + turn, blocks);
        cache
            .admit(*namespace, &keys, arrival(blocks))
            .expect("known");
        table.time("store, step by step, evicting", blocks, || {
            scene.store_steps(&prompt(11 + turn, blocks));
        });
        let wanted = entries(0, blocks, true);
        let mut lease = table.time("reserve all at once, evicting", blocks, || {
            cache.reserve(*namespace, &keys, &wanted).expect("valid")
        });
        assert_eq!(lease.entries().len(), wanted.len());
        let sums = vec![[7_u64]; lease.entries().len()];
        lease.commit(&sums).expect("sums");
    }
}

/// What a tier below has comes back to the host, which has room for little more.
fn restore(table: &mut Table, blocks: usize, entries_there: usize) {
    let scene = Scene::new(Kind::Disk, blocks * 5 / 2 + 64, 1 << 24);
    scene.fill(entries_there);
    let Scene { cache, namespace } = &scene;
    for turn in 0..3 {
        let keys = prompt(1 + turn, blocks);
        scene.store(&keys);
        (0..3).for_each(|other| scene.store(&prompt(40 + 3 * turn + other, blocks)));
        let hit = cache.lookup(*namespace, &keys).expect("known");
        assert_eq!((hit.blocks, hit.host), (blocks, 0));
        let restore = table.time("plan a restore", blocks, || {
            cache.restore(*namespace, &keys, 0)
        });
        let mut restore = restore.expect("known").expect("a restore");
        loop {
            let progress = table.time("progress of a restore", blocks, || restore.progress());
            match progress {
                RestoreProgress::Ready => {
                    let lease = table.time("take a wave", blocks, || restore.take());
                    table.time("release a wave", blocks, || drop(lease));
                }
                RestoreProgress::Done => break,
                RestoreProgress::Failed => panic!("a restore failed"),
                RestoreProgress::Queued | RestoreProgress::Waiting => {
                    table.time("poll after a wave was read", blocks, || cache.poll());
                }
            }
        }
        table.time("end a restore", blocks, || restore.end());
        (0..3).for_each(|other| scene.store(&prompt(60 + 3 * turn + other, blocks)));
        table.time("promote", blocks, || {
            cache.promote(*namespace, &keys, 0).expect("known")
        });
        table.time("poll after a promotion", blocks, || cache.poll());
    }
}

/// A disk does not take the first page of a prompt, and gets it with the next store.
fn unwritten(table: &mut Table, blocks: usize, entries_there: usize) {
    let scene = Scene::new(
        Kind::Disk,
        entries_there * 5 / 4 + 10 * blocks + 64,
        1 << 24,
    );
    scene.fill(entries_there);
    let Scene { cache, namespace } = &scene;
    for turn in 0..3 {
        let keys = prompt(1 + turn, blocks + 1);
        let admitted = cache.admit(*namespace, &keys[..blocks], arrival(blocks));
        admitted.expect("known");
        let store = |blocks: usize, wanted: &[(usize, usize)]| {
            let lease = cache.reserve(*namespace, &keys[..blocks], wanted);
            let mut lease = lease.expect("valid");
            let sums = vec![[7_u64]; lease.entries().len()];
            lease.commit(&sums).expect("sums");
        };
        FAILS.store(true, Ordering::Relaxed);
        store(blocks, &entries(0, blocks, true));
        table.time("poll after a first page was not written", blocks, || {
            cache.poll()
        });
        let more = entries(blocks, blocks + 1, true);
        table.time("one more block, whose prefix a disk lacks", blocks, || {
            store(blocks + 1, &more)
        });
        table.time("poll after the prefix was written", blocks, || cache.poll());
    }
}

/// A host that is full of what is retained. The prompt that would leave first is held.
fn retained(table: &mut Table, kind: Kind, blocks: usize) {
    let slots = blocks + 8 + 3;
    let scene = Scene::new(kind, 2 * slots, 1 << 24);
    let Scene { cache, namespace } = &scene;
    let retain = Hints {
        retain: 1000,
        ..Hints::NONE
    };
    for turn in 0..3 {
        cache.clear();
        let prompts = [2 * turn, 2 * turn + 1].map(|seed| prompt(1 + seed, blocks));
        for keys in &prompts {
            let pages = (0..blocks).map(|block| (0, block));
            let windows = (blocks - 8..blocks).map(|block| (1, block));
            let wanted: Vec<_> = pages.chain(windows).chain([(2, blocks - 1)]).collect();
            cache
                .admit(*namespace, keys, arrival(blocks))
                .expect("known");
            let lease = cache.reserve(*namespace, keys, &wanted);
            let mut lease = lease.expect("valid");
            assert_eq!(lease.entries().len(), wanted.len());
            lease.commit(&vec![[7_u64]; wanted.len()]).expect("sums");
            drop(lease);
            cache.poll();
            let expected = cache.expect(*namespace, keys, 10, &retain);
            expected.expect("known");
        }
        let held = cache.acquire(*namespace, &prompts[0], 0);
        let held = held.expect("known").expect("a hit");
        let next = prompt(99, 1);
        let lease = table.time("evict what is retained, behind what is held", 1, || {
            cache.reserve(*namespace, &next, &[(0, 0)])
        });
        assert_eq!(lease.expect("valid").entries().len(), 1);
        drop(held);
    }
}

fn size(number: usize) -> String {
    format!("2^{}", number.ilog2())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    WALL.store(arguments.iter().any(|it| it == "--wall"), Ordering::Relaxed);
    let quick = arguments.iter().any(|it| it == "--quick");
    WATCHER.set(watch).expect("nobody else has set it");
    let kinds = [
        ("host alone", Kind::Host),
        ("a disk", Kind::Disk),
        ("a store that waits for proof", Kind::Waits),
        ("a store that asks", Kind::Asks),
    ];
    let sizes: Vec<(usize, usize)> = BLOCKS
        .iter()
        .flat_map(|&blocks| ENTRIES.map(|entries| (blocks, entries)))
        .filter(|&(_, entries)| !quick || entries < 1 << 20)
        .collect();
    let mut long = Vec::new();
    for (name, kind) in kinds {
        let tables: Vec<Table> = sizes
            .iter()
            .map(|&(blocks, entries)| {
                let mut table = Table::default();
                for _ in 0..FILLS {
                    round(&mut table, kind, blocks, entries);
                }
                full(&mut table, kind, blocks, entries);
                retained(&mut table, kind, blocks);
                if kind == Kind::Disk {
                    restore(&mut table, blocks, entries);
                    unwritten(&mut table, blocks, entries);
                }
                table
            })
            .collect();
        let shown = sizes
            .iter()
            .map(|&(blocks, entries)| format!("{} of {}", size(blocks), size(entries)));
        let head: Vec<String> = shown.collect();
        println!("\nunder the host: {name}; us a block, and the longest hold, us\n");
        println!("| operation | {} |", head.join(" | "));
        println!("|---|{}", "---|".repeat(head.len()));
        for &operation in &tables[0].1 {
            let costs: Vec<Cost> = tables.iter().map(|table| table.0[operation]).collect();
            let cells = costs
                .iter()
                .map(|it| format!("{:.2}, {}", it.each, it.held.as_micros()));
            let cells: Vec<String> = cells.collect();
            println!("| {operation} | {} |", cells.join(" | "));
            let most = costs
                .iter()
                .zip(&head)
                .max_by_key(|it| it.0.held)
                .expect("sizes");
            if most.0.held > LIMIT {
                long.push(format!(
                    "{name}: {operation}, {}: {:?}",
                    most.1, most.0.held
                ));
            }
        }
    }
    println!("\nheld longer than {LIMIT:?}: {}", long.len());
    long.iter().for_each(|line| println!("  {line}"));
}
