//! What a long prompt needs is kept, read and given up in portions, and others come in between.

use crate::cache_support;
use crate::plain_tier;

use std::cell::RefCell;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use cache_support::{class, config};
use hybrid_pages::cache::{Arrival, Cache, CacheConfig, Changes, Medium, RestoreProgress, Skipped};
use hybrid_pages::guarded::WATCHER;
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
    LeaveHost,
    Store,
    LetGo,
}

fn disturb(scene: &Scene, between: Between) {
    match between {
        Between::Clear => drop(scene.cache.clear()),
        Between::Invalidate | Between::LeaveHost => {
            scene.cache.poll();
            let lease = scene.cache.acquire(scene.namespace, &scene.keys[..1], 0);
            let Some(lease) = lease.unwrap() else { return };
            match between {
                Between::Invalidate => scene.cache.invalidate(&lease).unwrap(),
                _ => scene.cache.leave_to(&lease, 1).unwrap(),
            };
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
        Between::LeaveHost,
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

thread_local! {
    /// After how many more holds of the lock by this thread another one is told.
    static SIGNAL: RefCell<Option<(usize, Sender<()>)>> = const { RefCell::new(None) };
}

fn watch(_: &str, taken: bool) {
    SIGNAL.with_borrow_mut(|signal| {
        let Some((left, sender)) = signal.as_mut().filter(|_| !taken) else {
            return;
        };
        *left -= 1;
        if *left == 0 {
            sender.send(()).unwrap();
            // Whoever waits for the lock when it is given back comes next.
            std::thread::sleep(Duration::from_millis(3));
            *signal = None;
        }
    });
}

/// Makes a call, and another one when this one has had the lock so many times. Returns the answers, of the other one
/// if it came before the end.
fn between<T, U: Send>(
    holds: usize,
    call: impl FnOnce() -> T,
    other: impl FnOnce() -> U + Send,
) -> (T, Option<U>) {
    WATCHER.get_or_init(|| watch);
    let (sender, receiver) = channel();
    SIGNAL.set(Some((holds, sender)));
    std::thread::scope(|scope| {
        let other = scope.spawn(move || receiver.recv().is_ok().then(other));
        let answer = call();
        SIGNAL.set(None);
        (answer, other.join().unwrap())
    })
}

/// A host with room for three prompts, in which are pages and, at the end of a prompt, a checkpoint.
fn host(policy: &str, slots: usize) -> (Cache, NamespaceId) {
    let classes = [
        class(ClassKind::Attention, 0, 1),
        class(ClassKind::Recurrent, 0, 1),
    ];
    let config = CacheConfig {
        policy: policy.into(),
        ..config(&classes, slots)
    };
    let below = Plain::boxed(&Handle::default(), 1 << 20, policy, SHAPE, true);
    let cache = Cache::with_tiers(&config, vec![below]).unwrap();
    cache.follow().unwrap();
    let namespace = cache.namespace(b"engine").unwrap();
    (cache, namespace)
}

fn all(blocks: usize) -> Vec<(usize, usize)> {
    let pages = (0..blocks).map(|block| (0, block));
    pages.chain([(1, blocks - 1)]).collect()
}

/// Stores a prompt at once. Returns how many entries were published, and what was skipped.
fn put(cache: &Cache, namespace: NamespaceId, keys: &[PrefixKey]) -> (usize, Skipped) {
    let mut lease = cache.reserve(namespace, keys, &all(keys.len())).unwrap();
    let sums = vec![[7]; lease.entries().len()];
    (lease.commit(&sums).unwrap(), lease.skipped())
}

/// How deep a prompt is found in the host.
fn depth(cache: &Cache, namespace: NamespaceId, keys: &[PrefixKey]) -> usize {
    cache.lookup(namespace, keys).unwrap().host
}

fn check_rest(cache: &Cache, slots: usize) {
    (0..20).for_each(|_| cache.poll());
    assert_eq!((cache.audit(), cache.stats().leased_slots), (None, 0));
    cache.clear();
    assert_eq!(cache.audit(), None);
    assert_eq!(cache.stats().free_slots as usize, slots);
}

const SLOTS: usize = 3 * BLOCKS + 8;

#[test]
fn a_store_in_portions_notices_what_others_do_in_between() {
    for policy in ["lru", "reuse"] {
        for between_what in [Between::Clear, Between::Invalidate, Between::Store] {
            for holds in [1, 4, 9, 12, 17, 22] {
                let (cache, namespace) = host(policy, SLOTS);
                let keys = prompt(1, BLOCKS);
                put(&cache, namespace, &keys[..300]);
                let ((published, skipped), came) = between(
                    holds,
                    || put(&cache, namespace, &keys),
                    || match between_what {
                        Between::Clear => cache.clear(),
                        Between::Invalidate => {
                            let lease = cache.acquire(namespace, &keys[..300], 0).unwrap();
                            lease.map_or(0, |lease| cache.invalidate(&lease).unwrap())
                        }
                        _ => put(&cache, namespace, &keys).0,
                    },
                );
                let what = format!(
                    "{policy} {between_what:?} at {holds}: {published} {skipped:?} {came:?}"
                );
                let found = depth(&cache, namespace, &keys);
                match between_what {
                    // What was reserved before is void, and nothing comes behind what has left.
                    Between::Clear | Between::Invalidate => {
                        let is_right = found == BLOCKS || found == 0;
                        assert!(
                            is_right && (found == 0) == (published < BLOCKS),
                            "{what}, {found}"
                        );
                    }
                    _ => assert_eq!(found, BLOCKS, "{what}"),
                }
                check_rest(&cache, SLOTS);
            }
        }
    }
}

#[test]
fn a_checkpoint_without_room_gives_back_the_pages_that_were_reserved_for_it() {
    for holds in [9, 11, 13] {
        let slots = BLOCKS + 300;
        let (cache, namespace) = host("lru", slots);
        let (keys, other) = (prompt(1, BLOCKS), prompt(2, 600));
        let (lease, taken) = between(
            holds,
            || cache.reserve(namespace, &keys, &all(BLOCKS)).unwrap(),
            || cache.reserve(namespace, &other, &all(600)).unwrap(),
        );
        let taken = taken.expect("the other came in between");
        let found = (lease.entries().len(), taken.entries().len());
        let left_out = (lease.skipped().no_room, taken.skipped().no_room);
        // One of them has all its room, the other none.
        let first = ((BLOCKS + 1, 0), (0, 601));
        let second = ((0, 601), (BLOCKS + 1, 0));
        assert!(
            [first, second].contains(&(found, left_out)),
            "{found:?} {left_out:?}"
        );
        let stats = cache.stats();
        let held = stats.slots - stats.free_slots;
        assert_eq!(held as usize, found.0 + found.1);
        drop((lease, taken));
        check_rest(&cache, slots);
    }
}

#[test]
fn nothing_of_before_is_found_from_the_beginning_of_a_reset_on() {
    for policy in ["lru", "reuse"] {
        for holds in [1, 3, 6] {
            let (cache, namespace) = host(policy, SLOTS);
            let (keys, other) = (prompt(1, BLOCKS), prompt(2, BLOCKS));
            put(&cache, namespace, &keys);
            drop(cache.changes(Medium::Host, false));
            let mut lease = cache.acquire(namespace, &keys, 0).unwrap().unwrap();
            let (dropped, came) = between(
                holds,
                || cache.clear(),
                || {
                    assert_eq!(depth(&cache, namespace, &keys), 0);
                    assert_eq!(cache.audit(), None);
                    drop(cache.changes(Medium::Host, false));
                    lease.release();
                    assert_eq!(cache.audit(), None);
                    put(&cache, namespace, &other).0
                },
            );
            assert_eq!((dropped, came), (BLOCKS + 1, Some(BLOCKS + 1)));
            let found = [&keys, &other].map(|keys| depth(&cache, namespace, keys));
            assert_eq!(found, [0, BLOCKS]);
            let hit = cache.lookup(namespace, &keys).unwrap();
            assert_eq!(hit.blocks, 0);
            check_rest(&cache, SLOTS);
        }
    }
}

#[test]
fn what_is_published_or_dropped_in_portions_is_right_in_between() {
    for policy in ["lru", "reuse"] {
        for holds in [2, 4] {
            let (cache, namespace) = host(policy, SLOTS);
            let keys = prompt(1, BLOCKS);
            let mut lease = cache.reserve(namespace, &keys, &all(BLOCKS)).unwrap();
            let sums = vec![[7]; lease.entries().len()];
            between(holds, || lease.commit(&sums).unwrap(), || cache.clear());
            assert_eq!(depth(&cache, namespace, &keys), 0);
            drop(lease);
            put(&cache, namespace, &keys);
            let lease = cache.acquire(namespace, &keys, 0).unwrap().unwrap();
            let longer = prompt(1, BLOCKS + 600);
            let (dropped, behind) = between(
                holds,
                || cache.invalidate(&lease).unwrap(),
                || put(&cache, namespace, &longer).0,
            );
            assert!(dropped > BLOCKS && behind.is_some());
            // What came in between hangs from what is dropped; what came later is whole.
            let found = depth(&cache, namespace, &longer);
            assert!(found == 0 || found == longer.len(), "{behind:?} {found}");
            drop(lease);
            check_rest(&cache, SLOTS);
        }
    }
}

#[test]
fn a_reset_voids_all_of_a_store_in_portions_where_blocks_stand_alone() {
    for kind in [ClassKind::Window, ClassKind::Recurrent] {
        for holds in [1, 3, 7, 9, 12, 14, 17, 20, 24] {
            let config = config(&[class(kind, 2, 1)], BLOCKS);
            let cache = Cache::new(&config).unwrap();
            let namespace = cache.namespace(b"engine").unwrap();
            let keys = prompt(1, BLOCKS);
            let all: Vec<_> = (0..BLOCKS).map(|block| (0, block)).collect();
            let (_, came) = between(
                holds,
                || {
                    let mut lease = cache.reserve(namespace, &keys, &all).unwrap();
                    let sums = vec![[7]; lease.entries().len()];
                    lease.commit(&sums).unwrap()
                },
                || cache.clear(),
            );
            let left = cache.reserve(namespace, &keys, &all).unwrap();
            let there = if came.is_some() { 0 } else { BLOCKS };
            assert_eq!(left.skipped().resident, there, "{kind:?} at {holds}");
            drop(left);
            check_rest(&cache, BLOCKS);
        }
    }
}

#[test]
fn a_restore_of_before_is_not_taken_from_the_beginning_of_a_reset_on() {
    for whole in [true, false] {
        let scene = Scene::new(whole, "lru");
        let restore = scene.cache.restore(scene.namespace, &scene.keys, 0);
        let mut restore = restore.unwrap().unwrap();
        while restore.progress() != RestoreProgress::Ready {
            scene.cache.poll();
        }
        let (_, taken) = between(
            1,
            || scene.cache.clear(),
            || (restore.progress(), restore.take().is_some()),
        );
        assert_eq!(taken, Some((RestoreProgress::Failed, false)), "{whole}");
        drop(restore);
        scene.check_nothing_is_held();
    }
}

/// What a follower knows: block and key.
type Told = std::collections::BTreeSet<(usize, Vec<u8>)>;

/// Lets a follower hear of changes to some prompts: nothing is removed that it does not know, nothing told twice, and the
/// block before is always known.
fn hear(told: &mut Told, changes: &Changes, prompts: &[Vec<PrefixKey>], what: &str) {
    for block in &changes.removed {
        let name = (block.block_index, block.key.as_bytes().to_vec());
        assert!(told.remove(&name), "{what}: block {} is removed", name.0);
    }
    for run in &changes.stored {
        if let Some(before) = run.block_index.checked_sub(1) {
            let of_run = |keys: &&Vec<PrefixKey>| keys[run.block_index] == run.blocks[0].0;
            let keys = prompts.iter().find(of_run).unwrap();
            let name = (before, keys[before].as_bytes().to_vec());
            assert!(told.contains(&name), "{what}: block {before} is not known");
        }
        for (block, (key, _)) in (run.block_index..).zip(&run.blocks) {
            let name = (block, key.as_bytes().to_vec());
            assert!(told.insert(name), "{what}: block {block} is stored");
        }
    }
}

#[test]
fn changes_in_portions_are_told_once_whatever_comes_in_between() {
    for between_what in [Between::Clear, Between::Invalidate, Between::Store] {
        for (holds, anew) in [1, 4, 8, 12, 16, 20, 24]
            .into_iter()
            .flat_map(|it| [(it, false), (it, true)])
        {
            let what = format!("{between_what:?} at {holds}, anew: {anew}");
            let (cache, namespace) = host("lru", SLOTS);
            let prompts: Vec<_> = (1..4).map(|seed| prompt(seed, BLOCKS)).collect();
            let (keys, other) = (&prompts[0], &prompts[1]);
            let mut told = Told::new();
            put(&cache, namespace, &keys[..300]);
            put(&cache, namespace, &keys[..700]);
            hear(
                &mut told,
                &cache.changes(Medium::Host, false),
                &prompts,
                &what,
            );
            assert_eq!(told.len(), 700);
            put(&cache, namespace, keys);
            put(&cache, namespace, other);
            let (changes, _) = between(
                holds,
                || cache.changes(Medium::Host, anew),
                || match between_what {
                    Between::Clear => {
                        cache.clear();
                        put(&cache, namespace, &keys[..500]);
                    }
                    Between::Invalidate => {
                        let lease = cache.acquire(namespace, &keys[..300], 200).unwrap();
                        lease.map(|lease| cache.invalidate(&lease).unwrap());
                        put(&cache, namespace, &keys[..250]);
                    }
                    _ => drop(put(&cache, namespace, &prompts[2])),
                },
            );
            hear(&mut told, &changes, &prompts, &what);
            for _ in 0..3 {
                hear(
                    &mut told,
                    &cache.changes(Medium::Host, false),
                    &prompts,
                    &what,
                );
            }
            assert_eq!(cache.audit(), None, "{what}");
            // All that is known is removed and all that is there is told: the follower knew the same.
            let before = told.clone();
            let all = cache.changes(Medium::Host, true);
            assert_eq!(all.removed.len(), before.len(), "{what}");
            hear(&mut told, &all, &prompts, &what);
            assert!(told == before, "{what}");
            check_rest(&cache, SLOTS);
        }
    }
}

/// A host with a tier that logs, and a prompt's beginning in both.
fn host_over(tier: &Handle, keys: &[PrefixKey]) -> (Cache, NamespaceId) {
    let classes = [
        class(ClassKind::Attention, 0, 1),
        class(ClassKind::Recurrent, 0, 1),
    ];
    let below = Plain::boxed(tier, 1 << 20, "lru", SHAPE, true);
    let cache = Cache::with_tiers(&config(&classes, SLOTS), vec![below]).unwrap();
    let namespace = cache.namespace(b"engine").unwrap();
    put(&cache, namespace, keys);
    cache.poll();
    (cache, namespace)
}

#[test]
fn a_tier_is_written_nothing_of_before_from_the_beginning_of_a_reset_on() {
    for holds in 1..9 {
        let (tier, keys) = (Handle::default(), prompt(1, BLOCKS));
        let (cache, namespace) = host_over(&tier, &prompt(2, BLOCKS));
        let mut lease = cache.reserve(namespace, &keys, &all(BLOCKS)).unwrap();
        let sums = vec![[7]; lease.entries().len()];
        let (_, came) = between(holds, || lease.commit(&sums).unwrap(), || cache.clear());
        let log = tier.lock().log.len();
        assert!(came.is_none() || log == 0, "{log} at {holds}");
        drop(lease);
        check_rest(&cache, SLOTS);
    }
}

#[test]
fn nothing_is_stored_behind_pages_that_have_left_to_a_tier_meanwhile() {
    for holds in 1..18 {
        let (tier, keys) = (Handle::default(), prompt(1, BLOCKS));
        let (cache, namespace) = host_over(&tier, &keys[..300]);
        let lease = cache.acquire(namespace, &keys[..300], 0).unwrap().unwrap();
        let (mut stored, left) = between(
            holds,
            || cache.reserve(namespace, &keys, &all(BLOCKS)).unwrap(),
            || cache.leave_to(&lease, 1).unwrap(),
        );
        assert_eq!(cache.audit(), None, "{holds}");
        drop(lease);
        let sums = vec![[7]; stored.entries().len()];
        stored.commit(&sums).unwrap();
        let found = depth(&cache, namespace, &keys);
        assert_eq!(found, if left.is_some() { 0 } else { BLOCKS }, "{holds}");
        drop(stored);
        check_rest(&cache, SLOTS);
    }
}

#[test]
fn an_error_in_a_later_portion_gives_back_all_of_the_store() {
    let (cache, namespace) = host("lru", SLOTS);
    let (mut keys, other) = (prompt(1, BLOCKS), prompt(2, 10));
    put(&cache, namespace, &keys[..300]);
    put(&cache, namespace, &other);
    (0..20).for_each(|_| cache.poll());
    let free = cache.stats().free_slots;
    // A key of another prefix is found while the prefix is looked at; one that comes twice, while room is given.
    for key in [other[5], keys[400]] {
        keys[1200] = key;
        let stored = cache.reserve(namespace, &keys, &all(BLOCKS));
        assert!(stored.is_err());
        let stats = cache.stats();
        let held = (stats.leased_slots, stats.writing_entries, stats.free_slots);
        assert_eq!((cache.audit(), held), (None, (0, 0, free)));
    }
    check_rest(&cache, SLOTS);
}

#[test]
fn what_a_store_holds_it_holds_with_the_pages_before_it_whoever_has_come_in_between() {
    for policy in ["lru", "reuse"] {
        for holds in [1, 2, 2, 2, 3] {
            let (cache, namespace) = host(policy, 4 * BLOCKS);
            let keys = prompt(1, 3 * BLOCKS);
            put(&cache, namespace, &keys[..300]);
            (0..20).for_each(|_| cache.poll());
            // Another one stores some of it at once, and lets go, while the prefix is looked at.
            let next: Vec<_> = (300..540).map(|block| (0, block)).collect();
            let (_, wrong) = between(
                holds,
                || put(&cache, namespace, &keys),
                || {
                    let mut lease = cache.reserve(namespace, &keys[..540], &next).unwrap();
                    let sums = vec![[7]; lease.entries().len()];
                    lease.commit(&sums).unwrap();
                    cache.poll();
                    (0..20).find_map(|_| cache.audit())
                },
            );
            assert_eq!(wrong.flatten(), None, "{policy} at {holds}");
            assert_eq!(depth(&cache, namespace, &keys), keys.len());
            check_rest(&cache, 4 * BLOCKS);
        }
    }
}
