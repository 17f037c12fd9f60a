//! What calls cost as prompts and stores grow, counted and not timed: bytes that they allocate, and times that they take
//! the cache's lock. `HYBRID_PAGES_SIZES=full` goes on to prompts of 2^14 blocks and stores of 2^18 entries.

mod cache_support;
mod plain_tier;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use cache_support::{class, config};
use hybrid_pages::cache::{Arrival, Cache, CacheConfig};
use hybrid_pages::guarded::WATCHER;
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::policy::Hints;
use plain_tier::{Handle, Plain, SHAPE};

thread_local! {
    static BYTES: Cell<u64> = const { Cell::new(0) };
    static HOLDS: Cell<u64> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator as it comes; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get() + layout.size() as u64);
        LARGEST.set(LARGEST.get().max(layout.size()));
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What a call allocates, and how often it takes the lock.
fn cost<T>(call: impl FnOnce() -> T) -> (T, u64, u64) {
    WATCHER.get_or_init(|| |_, taken| HOLDS.set(HOLDS.get() + u64::from(taken)));
    let (bytes, holds) = (BYTES.get(), HOLDS.get());
    let answer = call();
    (answer, BYTES.get() - bytes, HOLDS.get() - holds)
}

fn prompt(seed: u64, blocks: usize) -> Vec<PrefixKey> {
    let word = |block: u64| (seed << 32 | (block + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..blocks as u64)
        .map(|block| PrefixKey::new(&word(block).to_le_bytes().repeat(4)).unwrap())
        .collect()
}

const fn arrival(limit: usize) -> Arrival {
    Arrival {
        now: 1,
        tokens: 1,
        limit,
        hints: Hints::NONE,
    }
}

struct Scene {
    cache: Cache,
    namespace: NamespaceId,
}

impl Scene {
    fn new(policy: &str, below: bool, slots: usize) -> Self {
        let classes = [
            class(ClassKind::Attention, 0, 1),
            class(ClassKind::Window, 8, 1),
        ];
        let config = CacheConfig {
            policy: policy.into(),
            ..config(&classes, slots)
        };
        let tier = || Plain::boxed(&Handle::default(), 1 << 24, policy, SHAPE, true);
        let below = below.then(tier).into_iter().collect();
        let cache = Cache::with_tiers(&config, below).unwrap();
        let namespace = cache.namespace(b"engine").unwrap();
        Self { cache, namespace }
    }

    /// Stores blocks of a prompt. Returns what that allocates.
    fn store(&self, keys: &[PrefixKey], from: usize) -> u64 {
        let both = |block| [(0, block), (1, block)];
        let wanted: Vec<_> = (from..keys.len()).flat_map(both).collect();
        let sums = vec![[7]; wanted.len()];
        let (_, bytes, _) = cost(|| {
            let lease = self.cache.reserve(self.namespace, keys, &wanted);
            lease.unwrap().commit(&sums).unwrap();
            self.cache.poll();
        });
        bytes
    }
}

/// Bytes that calls allocate: those for one more block and for no block first, then for each block of a prompt.
fn allocated(policy: &str, below: bool, blocks: usize, entries: usize) -> ([u64; 3], [u64; 3]) {
    let scene = Scene::new(policy, below, entries + 4 * blocks + 4096);
    let Scene { cache, namespace } = &scene;
    LARGEST.set(0);
    for other in 0..entries / 512 {
        scene.store(&prompt(100 + other as u64, 256), 0);
    }
    // A table that grew in one piece would move at once, under the lock. A tier of the tests has such tables.
    let largest = LARGEST.get();
    assert!(
        below || largest < 1 << 19,
        "{largest} bytes beside {entries} entries"
    );
    let keys = prompt(1, blocks + 16);
    cache.admit(*namespace, &keys, arrival(blocks)).unwrap();
    for to in (256..=blocks).step_by(256) {
        scene.store(&keys[..to], to - 256);
    }
    // Tables that grow do so now and then: the least counts.
    let more = (blocks..blocks + 16).map(|block| scene.store(&keys[..=block], block));
    let more = more.min().unwrap();
    let (_, unwritten, _) = cost(|| cache.unwritten(*namespace, &keys, blocks).unwrap());
    let (_, stats, _) = cost(|| cache.stats());
    let (_, look_up, _) = cost(|| cache.lookup(*namespace, &keys).unwrap());
    let (lease, acquire, _) = cost(|| cache.acquire(*namespace, &keys, 0).unwrap().unwrap());
    drop(lease);
    let again = (0..4).map(|_| cost(|| cache.admit(*namespace, &keys, arrival(blocks)).unwrap()).1);
    let each = [look_up, acquire, again.min().unwrap()];
    (
        [more, unwritten, stats],
        each.map(|bytes| bytes / blocks as u64),
    )
}

#[test]
fn what_calls_allocate_grows_neither_with_the_prompt_nor_with_the_store() {
    let full = std::env::var("HYBRID_PAGES_SIZES").is_ok_and(|it| it == "full");
    let sizes: &[(usize, usize)] = if full {
        &[
            (1 << 8, 1 << 10),
            (1 << 14, 1 << 10),
            (1 << 8, 1 << 20),
            (1 << 14, 1 << 20),
        ]
    } else {
        &[(1 << 8, 1 << 10), (1 << 11, 1 << 10), (1 << 8, 1 << 14)]
    };
    for policy in ["lru", "reuse"] {
        for below in [false, true] {
            let all: Vec<_> = sizes
                .iter()
                .map(|&(b, e)| allocated(policy, below, b, e))
                .collect();
            let (least, each) = all[0];
            for (size, (found, found_each)) in sizes.iter().zip(&all) {
                let what = format!("{policy}, below {below}, {size:?}: {all:?}");
                assert!(
                    found
                        .iter()
                        .zip(least)
                        .all(|(&it, least)| it <= 2 * least + 64),
                    "{what}"
                );
                let grown = |(&it, each): (&u64, u64)| it > 2 * each + 16;
                assert!(!found_each.iter().zip(each).any(grown), "{what}");
            }
        }
    }
}

#[test]
fn the_lock_is_free_again_and_again_while_many_copies_end_and_while_a_long_lease_is_aborted() {
    const BLOCKS: usize = 2048;
    let scene = Scene::new("reuse", true, 3 * BLOCKS);
    let Scene { cache, namespace } = &scene;
    let keys = prompt(1, BLOCKS);
    let wanted: Vec<_> = (0..BLOCKS).flat_map(|it| [(0, it), (1, it)]).collect();
    let mut lease = cache.reserve(*namespace, &keys, &wanted).unwrap();
    let ((), _, holds) = cost(|| lease.abort());
    assert!(holds >= wanted.len() as u64 / 256, "{holds}");
    assert_eq!((cache.stats().leased_slots, cache.audit()), (0, None));
    let mut lease = cache.reserve(*namespace, &keys, &wanted).unwrap();
    lease.commit(&vec![[7]; lease.entries().len()]).unwrap();
    drop(lease);
    let ((), _, holds) = cost(|| cache.poll());
    assert!(holds >= wanted.len() as u64 / 256, "{holds}");
    let written = cache.tiers()[0].written;
    assert_eq!((written, cache.audit()), (wanted.len() as u64, None));
}
