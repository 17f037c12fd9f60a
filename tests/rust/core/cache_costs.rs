//! What a step does grows with what is new, not with the prompt: work is counted, not timed.

use crate::cache_support;
use crate::plain_tier;

use cache_support::{class, config};
use hybrid_pages::cache::{Arrival, Cache, CacheConfig, ClassConfig, WriteLease};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::policy::Hints;
use plain_tier::{Handle, Plain, SHAPE};

const NEW: usize = 16;

fn prompt(seed: u64, blocks: usize) -> Vec<PrefixKey> {
    let word = |block: u64| (seed << 32 | (block + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..blocks as u64)
        .map(|block| PrefixKey::new(&word(block).to_le_bytes().repeat(4)).unwrap())
        .collect()
}

fn commit(lease: &mut WriteLease) {
    let sums = vec![[7]; lease.entries().len()];
    lease.commit(&sums).unwrap();
}

fn all(classes: usize, blocks: std::ops::Range<usize>) -> Vec<(usize, usize)> {
    blocks
        .flat_map(|block| (0..classes).map(move |class| (class, block)))
        .collect()
}

fn made(
    classes: &[ClassConfig],
    slots: usize,
    policy: &str,
    tiers: &[Handle],
) -> (Cache, NamespaceId) {
    made_with(classes, slots, policy, tiers, None)
}

fn made_with(
    classes: &[ClassConfig],
    slots: usize,
    policy: &str,
    tiers: &[Handle],
    tenant_slots: Option<usize>,
) -> (Cache, NamespaceId) {
    let config = CacheConfig {
        policy: policy.into(),
        tenant_slots,
        ..config(classes, slots)
    };
    let tiers = tiers
        .iter()
        .map(|seen| Plain::boxed(seen, 1 << 20, policy, SHAPE, true));
    let cache = Cache::with_tiers(&config, tiers.collect()).unwrap();
    let namespace = cache.namespace(b"engine").unwrap();
    (cache, namespace)
}

fn admit(cache: &Cache, namespace: NamespaceId, keys: &[PrefixKey]) {
    let arrival = Arrival {
        now: 1,
        tokens: 1,
        limit: keys.len(),
        hints: Hints::NONE,
    };
    cache.admit(namespace, keys, arrival).unwrap();
}

/// Offers, and calls of the tiers' policies, for some more blocks of a prompt; and slots that a store holds meanwhile.
fn more(
    classes: &[ClassConfig],
    policy: &str,
    tiers: &[Handle],
    blocks: usize,
    share: bool,
) -> (usize, usize, u64) {
    let slots = 8 * blocks + 4096;
    let (cache, namespace) = made_with(classes, slots, policy, tiers, share.then_some(slots - 1));
    let keys = prompt(1, blocks + NEW);
    admit(&cache, namespace, &keys[..blocks]);
    commit(
        &mut cache
            .reserve(namespace, &keys[..blocks], &all(classes.len(), 0..blocks))
            .unwrap(),
    );
    cache.poll();
    let counted = |tiers: &[Handle]| {
        let seen = tiers
            .iter()
            .map(Handle::lock)
            .map(|seen| (seen.offers, seen.turns));
        seen.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
    };
    let before = counted(tiers);
    let mut held = 0;
    for block in blocks..blocks + NEW {
        let entries = all(classes.len(), block..block + 1);
        let mut lease = cache.reserve(namespace, &keys[..=block], &entries).unwrap();
        assert_eq!(lease.entries().len(), classes.len());
        held = held.max(cache.stats().leased_slots);
        commit(&mut lease);
        cache.poll();
    }
    assert_eq!(cache.audit(), None);
    let after = counted(tiers);
    (after.0 - before.0, after.1 - before.1, held)
}

fn shapes() -> Vec<Vec<ClassConfig>> {
    let page = class(ClassKind::Attention, 0, 1);
    let window = class(ClassKind::Window, 8, 1);
    let checkpoint = class(ClassKind::Recurrent, 0, 3);
    vec![
        vec![page.clone()],
        vec![page.clone(), window.clone()],
        vec![page.clone(), checkpoint.clone()],
        vec![page, window.clone(), checkpoint.clone()],
        vec![checkpoint.clone()],
        vec![window, checkpoint],
    ]
}

#[test]
fn one_more_block_costs_the_same_behind_a_long_prompt() {
    for classes in shapes() {
        for policy in ["lru", "reuse"] {
            for kind in 0..5 {
                let tiers = || {
                    let tiers = vec![Handle::default(); usize::from(kind > 0)];
                    let tiers: Vec<Handle> = tiers.into_iter().collect();
                    if let Some(tier) = tiers.first() {
                        let mut says = tier.lock();
                        says.waits_for_proof = kind == 2;
                        says.is_out = kind == 3;
                        says.queue = (kind == 4).then_some(0);
                    }
                    tiers
                };
                for share in [false, true] {
                    let short = more(&classes, policy, &tiers(), 64, share);
                    let long = more(&classes, policy, &tiers(), 1024, share);
                    assert_eq!(
                        short, long,
                        "{classes:?}, {policy}, tier {kind}, share {share}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_prompt_whose_start_the_host_lacks_is_not_walked_at_each_store() {
    let classes = [class(ClassKind::Attention, 0, 1)];
    let (cache, namespace) = made(&classes, 4096, "lru", &[]);
    let keys = prompt(1, 3000);
    commit(
        &mut cache
            .reserve(namespace, &keys[..1000], &all(1, 0..1000))
            .unwrap(),
    );
    let lease = cache
        .reserve(namespace, &keys, &all(1, 2000..3000))
        .unwrap();
    assert_eq!((lease.entries().len(), lease.skipped().orphan), (0, 1000));
    assert_eq!(cache.stats().leased_slots, 1);
    // Of those before the first entry that is wanted, only the last is looked at.
    let mut foreign = keys;
    foreign[500] = prompt(2, 1)[0];
    let lease = cache
        .reserve(namespace, &foreign, &all(1, 2000..3000))
        .unwrap();
    assert_eq!(lease.skipped().orphan, 1000);
}

#[test]
fn a_tier_that_asks_is_asked_about_a_prompt_once() {
    for blocks in [8, 512, 8192] {
        let tier = Handle::default();
        tier.lock().asks = true;
        let classes = [
            class(ClassKind::Attention, 0, 1),
            class(ClassKind::Window, 8, 1),
        ];
        let (cache, namespace) = made(&classes, 64, "lru", std::slice::from_ref(&tier));
        let keys = prompt(1, blocks);
        let finds = || {
            let before = tier.lock().finds;
            assert!(cache.lookup(namespace, &keys).unwrap().asking);
            tier.lock().finds - before
        };
        assert!(
            (2 * blocks..=3 * blocks).contains(&finds()),
            "{blocks} blocks"
        );
        for _ in 0..10 {
            assert_eq!(finds(), 1, "{blocks} blocks");
        }
        // The request goes on; another one with its prompt asks anew.
        admit(&cache, namespace, &keys);
        assert!(finds() >= 2 * blocks);
        cache.clear();
        assert!(finds() >= 2 * blocks);
    }
}

#[test]
fn without_pages_a_lookup_that_comes_again_asks_about_some_blocks() {
    for asks in [false, true] {
        let tier = Handle::default();
        tier.lock().asks = asks;
        let classes = [class(ClassKind::Recurrent, 0, 1)];
        let (cache, namespace) = made(&classes, 64, "lru", std::slice::from_ref(&tier));
        let keys = prompt(1, 4096);
        let mut finds = Vec::new();
        for _ in 0..4 {
            let before = tier.lock().finds;
            assert_eq!(cache.lookup(namespace, &keys).unwrap().asking, asks);
            finds.push(tier.lock().finds - before);
        }
        assert_eq!(finds[0], 4096);
        assert!(
            asks || finds[1..].iter().all(|&finds| finds <= 256),
            "{finds:?}"
        );
    }
}

#[test]
fn a_wave_holds_what_it_reads_and_not_all_before_it() {
    for blocks in [512, 2048] {
        let classes = [class(ClassKind::Attention, 0, 1)];
        let tier = Handle::default();
        let (cache, namespace) = made(&classes, blocks * 5 / 4, "lru", std::slice::from_ref(&tier));
        let store = |keys: &[PrefixKey]| {
            admit(&cache, namespace, keys);
            commit(
                &mut cache
                    .reserve(namespace, keys, &all(1, 0..keys.len()))
                    .unwrap(),
            );
            cache.poll();
        };
        let (keys, other) = (prompt(1, blocks), prompt(2, blocks * 35 / 100));
        store(&keys);
        store(&other);
        let mut restore = cache
            .restore(namespace, &keys, blocks / 2)
            .unwrap()
            .unwrap();
        assert!(!restore.whole());
        let mut taken = 0;
        loop {
            restore.progress();
            let Some(lease) = restore.take() else { break };
            let held = cache.stats().leased_slots as usize;
            assert!(held <= lease.entries().len() + 1, "{held} slots are held");
            assert_eq!(cache.audit(), None);
            taken += lease.entries().len();
        }
        assert_eq!(taken, blocks / 2);
    }
}
