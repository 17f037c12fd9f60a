//! What each operation of a tier below the host costs for a block, as prompts and stores grow.
//!
//! `cargo bench -p hybrid-pages-remote --bench tier_sizes -- disk`, or `directory`; `benches/tier_sizes.py` starts the
//! servers of `s3` and `mooncake`. A row is an operation, a column a prompt of so many blocks beside so many entries.
//! An entry has 64 bytes. Most rows are calls of vLLM's scheduler: microseconds of processor time a block, and the
//! longest call. Rows *by the clock* are work of the tier's threads: microseconds a block, and how long they hold at
//! most a lock that such calls take: the locks themselves measure (`guarded::WATCHER`), by the clock, less what the
//! thread waited for a core of its own (`/proc/thread-self/schedstat`). The last figure of such a row is the longest
//! call that the scheduler makes meanwhile, measured likewise: its work, and its waits for locks. Of five rounds the
//! least counts, of three with a Mooncake Store. `--quick` leaves out stores above 2^14 entries.

#[path = "tier_places.rs"]
mod tier_places;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hybrid_pages::guarded::{WATCHER, lock};
use hybrid_pages::ids::{EntryId, EntryKey, PrefixKey, SlotId, TenantId};
use hybrid_pages::policy::{EntryKind, NewEntry};
use hybrid_pages::tier::{CopyEnd, CopyId, Found};
use rustix::time::{ClockId, clock_gettime};
use tier_places::{Handle, LIMIT, Opened, Place};

const BLOCKS: [usize; 3] = [1 << 8, 1 << 11, 1 << 14];
const ENTRIES: [usize; 4] = [1 << 10, 1 << 14, 1 << 18, 1 << 20];
/// Entries that are written together while a store is filled.
const BATCH: usize = 1 << 12;
const NAP: Duration = Duration::from_micros(100);

fn clock(id: ClockId) -> Duration {
    let now = clock_gettime(id);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Processor time of this thread.
fn busy() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// A kind of lock: whether calls of the scheduler take it, and how long it was held at most, by whom ever.
#[derive(Default)]
struct Held {
    by_calls: bool,
    longest: Duration,
}

/// The locks that were taken, by the type of what they guard.
static LOCKS: Mutex<BTreeMap<&str, Held>> = Mutex::new(BTreeMap::new());

/// Whether a row by the clock is measured now.
static BY_THE_CLOCK: AtomicBool = AtomicBool::new(false);
/// Nanoseconds of the longest call meanwhile.
static LONGEST_CALL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread is in a call of the scheduler.
    static CALLS: Cell<bool> = const { Cell::new(false) };
    /// When it took the locks that it has, where that is measured.
    static TAKEN: RefCell<Vec<Option<Duration>>> = const { RefCell::new(Vec::new()) };
    static SCHEDULED: File = File::open("/proc/thread-self/schedstat").expect("Linux");
}

/// Time of this thread that counts: it ran, or waited for anything but a core.
fn awake() -> Duration {
    let since_boot = clock(ClockId::Monotonic);
    let mut text = [0; 64];
    let length = SCHEDULED.with(|file| file.read_at(&mut text, 0).expect("a line"));
    let text = std::str::from_utf8(&text[..length]).expect("a line");
    // Nanoseconds that it ran, nanoseconds that it waited for a core, and how often.
    let waited = text.split(' ').nth(1).expect("three numbers");
    since_boot - Duration::from_nanos(waited.parse().expect("a number"))
}

fn watch(what: &'static str, taken: bool) {
    let now = BY_THE_CLOCK.load(Ordering::Relaxed).then(awake);
    if taken {
        return TAKEN.with_borrow_mut(|all| all.push(now));
    }
    let begun = TAKEN.with_borrow_mut(Vec::pop).flatten();
    let mut locks = lock(&LOCKS);
    let held = locks.entry(what).or_default();
    held.by_calls |= CALLS.get();
    if let Some((now, begun)) = now.zip(begun) {
        held.longest = held.longest.max(now.saturating_sub(begun));
    }
}

/// A call of the scheduler.
fn calls<T>(call: impl FnOnce() -> T) -> T {
    CALLS.set(true);
    let begun = BY_THE_CLOCK.load(Ordering::Relaxed).then(awake);
    let answer = call();
    if let Some(begun) = begun {
        let took = awake().saturating_sub(begun).as_nanos() as u64;
        LONGEST_CALL.fetch_max(took, Ordering::Relaxed);
    }
    CALLS.set(false);
    answer
}

/// Microseconds of operations at one size: for a block, and the longest call; or by the clock, for a block, the longest
/// hold, and the longest call meanwhile.
#[derive(Default)]
struct Table(BTreeMap<&'static str, Vec<f64>>, Vec<&'static str>);

impl Table {
    fn add(&mut self, name: &'static str, blocks: usize, took: Duration, longest: &[Duration]) {
        let us = |it: &Duration| it.as_secs_f64() * 1e6;
        let mut found = vec![us(&took) / blocks as f64];
        found.extend(longest.iter().map(us));
        self.least(name, &found);
    }

    fn least(&mut self, name: &'static str, found: &[f64]) {
        if !self.1.contains(&name) {
            self.1.push(name);
        }
        let least = self.0.entry(name).or_insert_with(|| found.to_vec());
        for (least, found) in least.iter_mut().zip(found) {
            *least = least.min(*found);
        }
    }

    /// A call for each key, by processor time.
    fn each<K>(&mut self, name: &'static str, keys: &[K], mut call: impl FnMut(usize, &K)) {
        let (mut all, mut longest) = (Duration::ZERO, Duration::ZERO);
        for (at, key) in keys.iter().enumerate() {
            let begun = busy();
            calls(|| call(at, key));
            let took = busy() - begun;
            all += took;
            longest = longest.max(took);
        }
        self.add(name, keys.len(), all, &[longest]);
    }

    /// A call for all blocks, by processor time.
    fn once(&mut self, name: &'static str, blocks: usize, call: impl FnOnce()) {
        let begun = busy();
        calls(call);
        let took = busy() - begun;
        self.add(name, blocks, took, &[took]);
    }

    /// Work by the clock, and the longest hold meanwhile of a lock that calls of the scheduler take.
    fn clock(&mut self, name: &'static str, blocks: usize, work: impl FnOnce()) {
        for held in lock(&LOCKS).values_mut() {
            held.longest = Duration::ZERO;
        }
        BY_THE_CLOCK.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        work();
        let took = begun.elapsed();
        BY_THE_CLOCK.store(false, Ordering::Relaxed);
        let locks = lock(&LOCKS);
        let held = locks.values().filter(|held| held.by_calls);
        let longest = held.map(|held| held.longest).max().unwrap_or_default();
        let call = Duration::from_nanos(LONGEST_CALL.swap(0, Ordering::Relaxed));
        self.add(name, blocks, took, &[longest, call]);
    }
}

fn prompt(seed: usize, blocks: usize) -> Vec<EntryKey> {
    let namespace: Arc<[u8]> = Arc::from(&b"bench"[..]);
    let key = |block: usize| EntryKey {
        namespace: Arc::clone(&namespace),
        prefix: PrefixKey::new(blake3::hash(&(seed << 24 | block).to_le_bytes()).as_bytes())
            .expect("a key"),
        block_index: block,
        class_index: 0,
    };
    (0..blocks).map(key).collect()
}

fn wait(handle: &Handle, what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "never {what}: {}", handle.told());
        std::thread::sleep(NAP);
    }
}

struct Scene {
    opened: Opened,
    copies: u64,
    running: u64,
}

impl Scene {
    fn new(opened: Opened) -> Self {
        let (copies, running) = (0, 0);
        Self {
            opened,
            copies,
            running,
        }
    }

    fn copy(&mut self) -> CopyId {
        self.copies += 1;
        self.running += 1;
        CopyId(self.copies)
    }

    fn write(&mut self, at: usize, key: &EntryKey) {
        let (copy, slots, sums) = (self.copy(), [SlotId(at as u32)], self.opened.sums());
        self.opened.tier.write(copy, key, &slots, &sums);
    }

    fn read(&mut self, at: usize, key: &EntryKey) {
        let (copy, slots) = (self.copy(), [SlotId(at as u32)]);
        self.opened.tier.read(copy, key, &slots);
    }

    fn poll(&mut self) -> bool {
        let mut ended: Vec<CopyEnd> = Vec::new();
        calls(|| self.opened.tier.poll(&mut ended));
        for end in ended {
            end.result.expect("a copy");
            self.running -= 1;
        }
        self.running == 0
    }

    fn until_copied(&mut self) {
        let handle = self.opened.handle.clone();
        wait(&handle, "copied", || self.poll());
    }

    /// Asks about each entry until the store has answered. Returns how many are there.
    fn until_answered(&mut self, keys: &[EntryKey]) -> usize {
        let (handle, mut there) = (self.opened.handle.clone(), 0);
        let mut left: Vec<&EntryKey> = keys.iter().collect();
        wait(&handle, "answered", || {
            left.retain(|key| match calls(|| self.opened.tier.find(key)) {
                Found::Asking => true,
                found => {
                    there += usize::from(found != Found::Absent);
                    false
                }
            });
            left.is_empty()
        });
        there
    }

    fn fill(&mut self, entries: usize) {
        for batch in 0..entries.div_ceil(BATCH) {
            let keys = prompt(1000 + batch, BATCH.min(entries));
            keys.iter()
                .enumerate()
                .for_each(|(at, key)| self.write(at, key));
            self.until_copied();
        }
        self.opened.handle.settle();
    }
}

const fn entry(number: usize) -> NewEntry {
    NewEntry {
        id: EntryId(number as u32),
        kind: EntryKind::Page,
        parent: None,
        depth: 1,
        size: 1,
        boundary: 1,
        tenant: TenantId::NONE,
        unused: None,
        proven: true,
    }
}

/// All operations of a prompt of so many blocks.
fn round(t: &mut Table, scene: &mut Scene, seed: usize, blocks: usize, place: &Place) {
    let keys = prompt(seed, blocks);
    place.ages();
    let handle = scene.opened.handle.clone();
    t.each("look up, first", &keys, |_, key| {
        drop(scene.opened.tier.find(key));
    });
    if place.is_shared() {
        t.clock("by the clock: until that is answered", blocks, || {
            assert_eq!(scene.until_answered(&keys), 0);
        });
        t.each("look up what is absent", &keys, |_, key| {
            drop(scene.opened.tier.find(key));
        });
    }
    t.each("accept", &keys, |at, _| {
        assert!(scene.opened.tier.accepts(&entry(at)));
    });
    t.each("write", &keys, |at, key| scene.write(at, key));
    t.once("counts, while all are written", 1, || handle.stats());
    t.clock("by the clock: until all are written", blocks, || {
        scene.until_copied();
    });
    t.once("poll", 1, || assert!(scene.poll()));
    handle.settle();
    if place.is_shared() {
        t.clock("by the clock: until all are found", blocks, || {
            assert_eq!(scene.until_answered(&keys), blocks);
        });
    }
    t.each("look up", &keys, |_, key| drop(scene.opened.tier.find(key)));
    t.each("may have", &keys, |_, key| {
        let _ = scene.opened.tier.may_have(key);
    });
    t.each("tails", &keys[..1], |_, key| {
        scene
            .opened
            .tier
            .tail_lengths(&key.namespace, 7, &mut Vec::new());
    });
    t.each("read", &keys, |at, key| scene.read(at, key));
    t.clock("by the clock: until all are read", blocks, || {
        scene.until_copied();
    });
    t.each("write what is there", &keys, |at, key| scene.write(at, key));
    scene.until_copied();
    t.each("forget", &keys, |_, key| scene.opened.tier.forget(key));
    t.each("evict", &keys[..blocks / 2], |_, key| {
        scene.opened.tier.evict(key);
    });
    t.each("remove", &keys[blocks / 2..], |_, key| {
        scene.opened.tier.remove(key);
    });
    t.clock("by the clock: until all are removed", blocks / 2, || {
        handle.settle();
    });
}

/// One store of so many entries: a table for each number of blocks.
fn store(place: &Place, entries: usize, number: u8) -> Vec<Table> {
    let most = BLOCKS[BLOCKS.len() - 1];
    place.fills(true);
    let mut scene = Scene::new(place.tier(most));
    scene.opened.connect(number);
    wait(&scene.opened.handle, "open", || {
        scene.opened.handle.knows(0)
    });
    scene.fill(entries);
    place.fills(false);
    drop(scene);
    let mut opening = Table::default();
    let mut scene = None;
    for _ in 0..place.rounds() {
        drop(scene.take());
        let opened = place.tier(most);
        let handle = opened.handle.clone();
        opening.clock("by the clock: connect, while serving", 1, || {
            opened.connect(number);
        });
        opening.clock("by the clock: until it is open", entries, || {
            wait(&handle, "open", || handle.knows(entries));
        });
        scene = Some(Scene::new(opened));
    }
    let mut scene = scene.expect("a round");
    let tables = BLOCKS.iter().enumerate().map(|(at, &blocks)| {
        let mut table = Table::default();
        for turn in 0..place.rounds() {
            round(
                &mut table,
                &mut scene,
                1 + place.rounds() * at + turn,
                blocks,
                place,
            );
        }
        table
    });
    let mut tables: Vec<Table> = tables.collect();
    let handle = scene.opened.handle.clone();
    opening.once("clear", entries, || scene.opened.tier.clear());
    opening.clock("by the clock: until all is gone", entries, || {
        handle.settle();
    });
    opening.clock("by the clock: close", 1, || handle.close());
    for table in &mut tables {
        for name in &opening.1 {
            table.least(name, &opening.0[name]);
        }
    }
    tables
}

fn measure(place: &Place, all: &[usize]) {
    let stores: Vec<Vec<Table>> = all
        .iter()
        .zip(1..)
        .map(|(&entries, number)| store(place, entries, number))
        .collect();
    let power = |number: usize| format!("2^{}", number.ilog2());
    let sizes: Vec<(usize, usize)> = (0..BLOCKS.len())
        .flat_map(|blocks| (0..all.len()).map(move |entries| (blocks, entries)))
        .collect();
    let head: Vec<String> = sizes
        .iter()
        .map(|&(blocks, entries)| format!("{} of {}", power(BLOCKS[blocks]), power(all[entries])))
        .collect();
    println!("| operation | {} |", head.join(" | "));
    println!("|---|{}", "---|".repeat(head.len()));
    for name in &stores[0][0].1 {
        let cell = |&(blocks, entries): &(usize, usize)| {
            let found = &stores[entries][blocks].0[name];
            let longest = found[1..].iter().map(|it| format!(", {it:.0}"));
            format!("{:.2}{}", found[0], longest.collect::<String>())
        };
        let cells: Vec<String> = sizes.iter().map(cell).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
}

fn main() {
    WATCHER.set(watch).expect("nobody else has set it");
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| it != "--bench")
        .collect();
    let quick = arguments.iter().any(|it| it == "--quick");
    let words: Vec<String> = arguments.into_iter().filter(|it| it != "--quick").collect();
    let folder =
        std::env::var_os("HYBRID_PAGES_BENCH_DISK").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(folder).expect("a directory");
    let all: Vec<usize> = ENTRIES
        .into_iter()
        .filter(|&entries| !quick || entries <= 1 << 14)
        .collect();
    let places = if words.is_empty() {
        vec![vec!["disk".to_owned()], vec!["directory".to_owned()]]
    } else {
        vec![words]
    };
    for words in places {
        println!("\n{}\n", words[0]);
        measure(&Place::of(&words, folder.path()), &all);
    }
}
