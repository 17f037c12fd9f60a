//! What a long prompt needs is kept, read and given up in portions, and others come in between.

use crate::cache_support;
use crate::plain_tier;

use std::sync::mpsc::channel;

use cache_support::{class, config};
use hybrid_pages::cache::{Arrival, Cache, CacheConfig, RestoreProgress};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::policy::Hints;
use plain_tier::{Handle, Plain, SHAPE};

const PORTION: usize = 256;
const BLOCKS: usize = 1600;

fn prompt(seed: u64, blocks: usize) -> Vec<PrefixKey> {
    let word = |block: u64| (seed << 32 | (block + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..blocks as u64)
        .map(|block| PrefixKey::new(&word(block).to_le_bytes().repeat(4)).unwrap())
        .collect()
}

fn store(cache: &Cache, namespace: NamespaceId, keys: &[PrefixKey]) {
    let arrival = Arrival {
        now: 1,
        tokens: 1,
        limit: keys.len(),
        hints: Hints::NONE,
    };
    cache.admit(namespace, keys, arrival).unwrap();
    let all: Vec<_> = (0..keys.len()).map(|block| (0, block)).collect();
    let mut lease = cache.reserve(namespace, keys, &all).unwrap();
    let sums = vec![[7]; lease.entries().len()];
    lease.commit(&sums).unwrap();
    drop(lease);
    cache.poll();
}

/// A cache whose tier has a prompt of which the host has nothing, or at most a part.
struct Scene {
    cache: Cache,
    namespace: NamespaceId,
    keys: Vec<PrefixKey>,
    tier: Handle,
}

impl Scene {
    /// `whole`: the host holds all of it, so it needs no waves.
    fn new(whole: bool, policy: &str) -> Self {
        let slots = if whole { 2 * BLOCKS } else { BLOCKS * 5 / 4 };
        let config = CacheConfig {
            policy: policy.into(),
            ..config(&[class(ClassKind::Attention, 0, 1)], slots)
        };
        let tier = Handle::default();
        let below = Plain::boxed(&tier, 1 << 20, policy, SHAPE, true);
        let cache = Cache::with_tiers(&config, vec![below]).unwrap();
        let namespace = cache.namespace(b"engine").unwrap();
        let keys = prompt(1, BLOCKS);
        store(&cache, namespace, &keys);
        for seed in 2..4 {
            store(&cache, namespace, &prompt(seed, BLOCKS));
        }
        let hit = cache.lookup(namespace, &keys).unwrap();
        assert!(hit.blocks == BLOCKS && hit.host < PORTION, "{hit:?}");
        Self {
            cache,
            namespace,
            keys,
            tier,
        }
    }

    /// Restores the prompt from a block on. Returns how many entries were loaded, and whether that was all.
    fn restore(&self, first: usize) -> (usize, bool) {
        let restore = self.cache.restore(self.namespace, &self.keys, first);
        let Some(mut restore) = restore.unwrap() else {
            return (0, false);
        };
        let mut loaded = 0;
        for _ in 0..100 {
            match restore.progress() {
                RestoreProgress::Ready => {
                    // Others may have come in between.
                    let Some(lease) = restore.take() else {
                        continue;
                    };
                    let mut blocks = lease.entries().iter().map(|entry| entry.block_index);
                    assert!(blocks.all(|block| (lease.first()..lease.blocks()).contains(&block)));
                    let sums = lease.entries().iter().map(|entry| &entry.checksums);
                    assert!(sums.eq(std::iter::repeat_n(&vec![7], lease.entries().len())));
                    loaded += lease.entries().len();
                }
                RestoreProgress::Done => return (loaded, true),
                RestoreProgress::Failed => return (loaded, false),
                RestoreProgress::Queued | RestoreProgress::Waiting => self.check(),
            }
        }
        panic!("a restore does not come to its end");
    }

    fn check(&self) {
        assert_eq!(self.cache.audit(), None);
    }

    fn check_nothing_is_held(&self) {
        self.check();
        self.cache.poll();
        self.check();
        let stats = self.cache.stats();
        assert_eq!(stats.leased_slots, 0);
        let tiers = self.cache.tiers();
        let below = &tiers[0].usage;
        assert_eq!(below.free + below.evictable, below.capacity);
    }
}

#[test]
fn reads_of_a_restore_begin_in_portions() {
    for policy in ["lru", "reuse"] {
        for whole in [true, false] {
            for first in [0, 1, 700, BLOCKS - 1] {
                let scene = Scene::new(whole, policy);
                assert_eq!(scene.restore(first), (BLOCKS - first, true));
                let most = scene.tier.lock().most_reads;
                assert!((1..=PORTION).contains(&most), "{most} reads at once");
                scene.check_nothing_is_held();
                let hit = scene.cache.lookup(scene.namespace, &scene.keys).unwrap();
                assert_eq!(hit.blocks, BLOCKS);
            }
        }
    }
}

#[test]
fn a_promotion_in_portions_brings_all_and_leaves_nothing_held() {
    for policy in ["lru", "reuse"] {
        let scene = Scene::new(true, policy);
        let promote = || {
            scene
                .cache
                .promote(scene.namespace, &scene.keys, 0)
                .unwrap()
        };
        assert!(promote());
        scene.check();
        scene.cache.poll();
        assert!(!promote());
        let lease = scene.cache.acquire(scene.namespace, &scene.keys, 0);
        let mut lease = lease.unwrap().unwrap();
        let blocks = lease.entries().iter().map(|entry| entry.block_index);
        assert!(blocks.eq(0..BLOCKS));
        lease.release();
        scene.check_nothing_is_held();
    }
}

/// What others do between two portions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    Clear,
    Invalidate,
    Store,
    LetGo,
}

fn disturb(scene: &Scene, between: Between) {
    match between {
        Between::Clear => drop(scene.cache.clear()),
        Between::Invalidate => {
            let lease = scene.cache.acquire(scene.namespace, &scene.keys[..1], 0);
            if let Some(lease) = lease.unwrap() {
                scene.cache.invalidate(&lease).unwrap();
            }
        }
        Between::Store => store(&scene.cache, scene.namespace, &prompt(9, BLOCKS)),
        Between::LetGo => scene.cache.release_namespace(scene.namespace).unwrap(),
    }
}

#[test]
fn whatever_others_do_between_portions_nothing_is_lost_or_held() {
    for between in [
        Between::Clear,
        Between::Invalidate,
        Between::Store,
        Between::LetGo,
    ] {
        // While it is planned, and while it is read.
        for at in [PORTION, 700, BLOCKS + 1, BLOCKS + 700] {
            for (whole, promotes) in [(true, false), (false, false), (true, true)] {
                let scene = Scene::new(whole, "lru");
                let (sender, receiver) = channel();
                scene.tier.lock().signal = Some((at, sender));
                let told = std::thread::scope(|scope| {
                    let scene = &scene;
                    let other = scope.spawn(move || {
                        let told = receiver.recv().is_ok();
                        if told {
                            disturb(scene, between);
                        }
                        told
                    });
                    if promotes {
                        scene
                            .cache
                            .promote(scene.namespace, &scene.keys, 0)
                            .unwrap();
                    } else {
                        let (loaded, all) = scene.restore(0);
                        assert_eq!(loaded == BLOCKS, all);
                        if matches!(between, Between::Store | Between::LetGo) {
                            assert!(all, "{between:?} at {at}");
                        }
                    }
                    scene.tier.lock().signal = None;
                    other.join().unwrap()
                });
                assert!(told || promotes, "{between:?} at {at}");
                scene.check_nothing_is_held();
                if between != Between::LetGo {
                    // It can be stored and found as ever.
                    store(&scene.cache, scene.namespace, &scene.keys);
                    let hit = scene.cache.lookup(scene.namespace, &scene.keys).unwrap();
                    assert_eq!(hit.blocks, BLOCKS, "{between:?} at {at}");
                    scene.check_nothing_is_held();
                }
            }
        }
    }
}
