//! Every policy behind the cache: what is held stays, rooms add up, hits are real.

use hybrid_pages::cache::{Arrival, Cache, CacheConfig, ClassConfig};
use hybrid_pages::ids::{ClassKind, PrefixKey};
use hybrid_pages::policy;
use proptest::prelude::*;

fn keys(letters: &[u8]) -> Vec<PrefixKey> {
    (1..=letters.len())
        .map(|end| PrefixKey::new(blake3::hash(&letters[..end]).as_bytes()).unwrap())
        .collect()
}

fn cache(name: &str, kinds: &[(ClassKind, usize)], slots: usize) -> Cache {
    let class = |&(kind, slots_per_entry): &(ClassKind, usize)| ClassConfig {
        kind,
        window_blocks: 2,
        slots_per_entry,
    };
    let classes = kinds.iter().map(class).collect();
    Cache::new(&CacheConfig {
        classes,
        ranks: 1,
        slots,
        slot_bytes: 512,
        policy: name.into(),
    })
    .unwrap()
}

const SHAPES: [&[(ClassKind, usize)]; 4] = [
    &[(ClassKind::Attention, 1), (ClassKind::Recurrent, 3)],
    &[
        (ClassKind::Attention, 1),
        (ClassKind::Window, 1),
        (ClassKind::Recurrent, 2),
    ],
    &[(ClassKind::Recurrent, 2)],
    &[(ClassKind::Window, 1), (ClassKind::Recurrent, 2)],
];

proptest! {
    #[test]
    fn what_is_held_stays_and_room_adds_up(
        prompts in prop::collection::vec((prop::collection::vec(0..3_u8, 1..8), 0..4_u8), 1..60),
        slots in 8..40_usize,
        shape in 0..SHAPES.len(),
    ) {
        for name in policy::NAMES {
            let kinds = SHAPES[shape];
            let cache = cache(name, kinds, slots);
            let namespace = cache.namespace(b"x").unwrap();
            let mut leases = Vec::new();
            let mut writing = Vec::new();
            for (at, (letters, action)) in prompts.iter().enumerate() {
                let keys = keys(letters);
                let arrival = Arrival { now: at as u64 * 700, tokens: keys.len() as u64 * 4 + 1, limit: keys.len() };
                let admitted = cache.admit(namespace, &keys, arrival).unwrap().boundaries;
                if let Some(lease) = cache.acquire(namespace, &keys, 0).unwrap() {
                    leases.push((keys.clone(), lease));
                }
                let mut wanted = Vec::new();
                for (class, (kind, _)) in kinds.iter().enumerate() {
                    match kind {
                        ClassKind::Recurrent => wanted.extend(admitted.iter().map(|depth| (class, depth - 1))),
                        _ => wanted.extend((0..keys.len()).map(|block| (class, block))),
                    }
                }
                let mut lease = cache.reserve(namespace, &keys, &wanted).unwrap();
                if action % 2 == 0 {
                    lease.commit(&vec![[7]; lease.entries().len()]).unwrap();
                } else {
                    writing.push(lease);
                }
                cache.finish(namespace, &keys, keys.len(), 9).unwrap();
                if *action == 3 {
                    leases.truncate(leases.len() / 2);
                    writing.clear();
                }
                if at % 17 == 16 {
                    cache.clear();
                    leases.clear();
                }
                for (keys, lease) in &leases {
                    prop_assert!(cache.lookup(namespace, keys).unwrap().blocks >= lease.blocks());
                }
                prop_assert_eq!(cache.audit(), None, "{}", name);
            }
        }
    }
}
