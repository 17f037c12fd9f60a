//! The cost of a store and of a load to a scheduler, and the cost of a full cache.
//!
//! `store`: reserve, commit and release a prompt of 164 pages and a checkpoint, evicting as much.
//! `extend`: one more block of such a prompt. `load`: acquire and release it. `next`: room for one
//! more block of a prompt of 2,000, given back, by policy. `churn`: one page in and one out of
//! 1,000,000 slots.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use hybrid_pages::cache::{Cache, CacheConfig, ClassConfig};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};

const BLOCKS: usize = 164;
const LONG: usize = 2_000;

fn cache(policy: &str, slots: usize) -> (Cache, NamespaceId) {
    let class = |kind, slots_per_entry| ClassConfig {
        kind,
        window_blocks: 0,
        slots_per_entry,
    };
    let config = CacheConfig {
        classes: vec![
            class(ClassKind::Attention, 1),
            class(ClassKind::Recurrent, 3),
        ],
        ranks: 1,
        slots,
        slot_bytes: 1 << 20,
        policy: policy.into(),
        tenant_slots: None,
    };
    let cache = Cache::new(&config).expect("the configuration is valid");
    let namespace = cache.namespace(b"bench").expect("there is a number left");
    (cache, namespace)
}

/// Keys of one prompt, spread as a hash spreads them.
fn prompt(number: usize, blocks: usize) -> Vec<PrefixKey> {
    let word = |at: usize| {
        (at as u64 + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_le_bytes()
    };
    (0..blocks)
        .map(|block| word(number * blocks + block).repeat(4))
        .map(|bytes| PrefixKey::new(&bytes).expect("32 bytes are a key"))
        .collect()
}

fn store(cache: &Cache, namespace: NamespaceId, keys: &[PrefixKey], entries: &[(usize, usize)]) {
    let mut lease = cache
        .reserve(namespace, keys, entries)
        .expect("the entries are valid");
    let checksums = vec![[0]; lease.entries().len()];
    lease.commit(&checksums).expect("one checksum per rank");
}

fn whole_prompt() -> Vec<(usize, usize)> {
    (0..BLOCKS)
        .map(|block| (0, block))
        .chain([(1, BLOCKS - 1)])
        .collect()
}

fn prompts(c: &mut Criterion) {
    let mut group = c.benchmark_group("cache");
    // Twenty prompts fit, a hundred come round and round.
    let (cache, namespace) = cache("lru", 20 * (BLOCKS + 3));
    let entries = whole_prompt();
    let prompts: Vec<_> = (0..100).map(|number| prompt(number, BLOCKS)).collect();
    let mut next = prompts.iter().cycle();
    group.bench_function("store", |b| {
        b.iter(|| {
            next.next()
                .map(|keys| store(&cache, namespace, keys, &entries))
        });
    });

    cache.clear();
    let (mut number, mut block) = (0, 1);
    store(&cache, namespace, &prompts[0], &[(0, 0)]);
    group.bench_function("extend", |b| {
        b.iter(|| {
            store(
                &cache,
                namespace,
                &prompts[number],
                &[(0, block), (1, block)],
            );
            block += 1;
            if block == BLOCKS {
                (number, block) = ((number + 1) % prompts.len(), 1);
                store(&cache, namespace, &prompts[number], &[(0, 0)]);
            }
        });
    });

    cache.clear();
    store(&cache, namespace, &prompts[0], &entries);
    group.bench_function("load", |b| {
        b.iter(|| {
            cache
                .acquire(namespace, black_box(&prompts[0]), 0)
                .map(drop)
        });
    });
    for policy in ["lru", "reuse"] {
        let (cache, namespace) = self::cache(policy, 2 * LONG);
        let keys = prompt(0, LONG + 1);
        let pages: Vec<_> = (0..LONG).map(|block| (0, block)).collect();
        store(&cache, namespace, &keys[..LONG], &pages);
        group.bench_function(format!("next/{policy}"), |b| {
            b.iter(|| {
                cache
                    .reserve(namespace, black_box(&keys), &[(0, LONG)])
                    .map(drop)
            });
        });
    }
    group.finish();
}

fn churn(c: &mut Criterion) {
    const SLOTS: usize = 1_000_000;
    let (cache, namespace) = cache("lru", SLOTS);
    let mut number = 0;
    let mut page = || {
        store(&cache, namespace, &prompt(number, 1), &[(0, 0)]);
        number += 1;
    };
    (0..SLOTS).for_each(|_| page());
    c.bench_function("churn", |b| b.iter(&mut page));
}

criterion_group!(benches, prompts, churn);
criterion_main!(benches);
