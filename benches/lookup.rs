//! Hot path: the joint hit for a prompt of 164 blocks over four classes.
//!
//! `whole`: everything is there. `cold`: the first key misses. `stateless`: every page, no
//! checkpoint. `crowded`: whole, in an index of 100,000 boundaries that has left the CPU's caches.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use hybrid_pages::cache::{Cache, CacheConfig, ClassConfig};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};

const BLOCKS: usize = 164;
const CROWD: usize = 100_000 / BLOCKS;

fn cache() -> (Cache, NamespaceId) {
    let class = |kind, window_blocks| ClassConfig {
        kind,
        window_blocks,
        slots_per_entry: 1,
    };
    let config = CacheConfig {
        classes: vec![
            class(ClassKind::Attention, 0),
            class(ClassKind::Window, 1),
            class(ClassKind::Window, 4),
            class(ClassKind::Recurrent, 0),
        ],
        ranks: 1,
        slots: 4 * BLOCKS * (CROWD + 1),
        slot_bytes: 4096,
        policy: "lru".into(),
        tenant_slots: None,
    };
    let cache = Cache::new(&config).expect("the configuration is valid");
    let namespace = cache.namespace(b"bench").expect("there is a number left");
    (cache, namespace)
}

/// Keys spread as a hash spreads them.
fn prompt(number: usize) -> Vec<PrefixKey> {
    let word = |at: usize| {
        (at as u64 + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_le_bytes()
    };
    (0..BLOCKS)
        .map(|block| word(number * BLOCKS + block).repeat(4))
        .map(|bytes| PrefixKey::new(&bytes).expect("32 bytes are a key"))
        .collect()
}

fn store(cache: &Cache, namespace: NamespaceId, keys: &[PrefixKey], classes: usize) {
    let entries: Vec<_> = (0..classes)
        .flat_map(|class| (0..BLOCKS).map(move |block| (class, block)))
        .collect();
    let mut lease = cache
        .reserve(namespace, keys, &entries)
        .expect("the entries are valid");
    let checksums = vec![[0]; lease.entries().len()];
    lease.commit(&checksums).expect("one checksum per rank");
}

fn lookup(c: &mut Criterion) {
    let mut group = c.benchmark_group("lookup");
    let (cache, namespace) = cache();
    let (whole, cold, stateless) = (prompt(0), prompt(1), prompt(2));
    store(&cache, namespace, &whole, 4);
    store(&cache, namespace, &stateless, 3);
    let mut run = |name: &str, keys: &[PrefixKey]| {
        group.bench_function(name, |b| {
            b.iter(|| cache.lookup(namespace, black_box(keys)))
        });
    };
    run("whole", &whole);
    run("cold", &cold);
    run("stateless", &stateless);
    for number in 3..CROWD {
        store(&cache, namespace, &prompt(number), 4);
    }
    let crowd: Vec<_> = (3..CROWD).map(prompt).collect();
    let mut next = crowd.iter().cycle();
    group.bench_function("crowded", |b| {
        b.iter(|| {
            next.next()
                .map(|keys| cache.lookup(namespace, black_box(keys)))
        });
    });
    group.finish();
}

criterion_group!(benches, lookup);
criterion_main!(benches);
