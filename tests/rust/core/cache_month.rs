//! A month of traffic: nothing that the cache remembers keeps growing.

use crate::cache_support;
use crate::plain_tier;

use cache_support::{class, config};
use hybrid_pages::cache::{Arrival, Cache, CacheConfig};
use hybrid_pages::ids::{ClassKind, PrefixKey};
use hybrid_pages::policy::Hints;
use plain_tier::{Handle, Plain, SHAPE};

const DAYS: u64 = 30;
const REQUESTS: u64 = 400;
const DAY: u64 = 24 * 3_600_000;

fn keys(seed: u64, blocks: usize) -> Vec<PrefixKey> {
    let word = |block: u64| (seed << 20 | (block + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..blocks as u64)
        .map(|block| PrefixKey::new(&word(block).to_le_bytes().repeat(4)).unwrap())
        .collect()
}

/// Most bytes of metadata on each day.
fn month(policy: &str) -> Vec<u64> {
    let classes = [
        class(ClassKind::Attention, 0, 1),
        class(ClassKind::Window, 4, 1),
        class(ClassKind::Recurrent, 0, 3),
    ];
    let config = CacheConfig {
        policy: policy.into(),
        tenant_slots: Some(300),
        ..config(&classes, 400)
    };
    let tiers: Vec<Handle> = (0..2).map(|_| Handle::default()).collect();
    {
        let mut remote = tiers[1].lock();
        (remote.waits_for_proof, remote.is_shared) = (true, true);
        remote.queue = Some(40);
    }
    let below = tiers
        .iter()
        .map(|seen| Plain::boxed(seen, 900, policy, SHAPE, true));
    let cache = Cache::with_tiers(&config, below.collect()).unwrap();
    let mut random = 7_u64;
    let mut next = move |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    let mut days = Vec::new();
    for day in 0..DAYS {
        let mut most = 0;
        for at in 0..REQUESTS {
            let now = day * DAY + at * (DAY / REQUESTS);
            let number = day * REQUESTS + at;
            // Tenants and adapters come and go.
            let who = number / 10 * 3 + next(3);
            let (identity, tenant) = (who.to_le_bytes(), (who / 2).to_le_bytes());
            let namespace = cache
                .namespace_of(&[&identity[..], &tenant].concat(), &tenant)
                .unwrap();
            let blocks = 3 + next(10) as usize;
            let keys = keys(if next(3) == 0 { 1 } else { number }, blocks);
            tiers[0].lock().is_out = next(7) == 0;
            tiers[1].lock().asks = next(2) == 0;
            let hit = cache.lookup(namespace, &keys).unwrap();
            assert!(hit.blocks <= blocks);
            if next(4) > 0 {
                let retain = if next(5) == 0 { next(3 * DAY) } else { 0 };
                let hints = Hints {
                    retain,
                    ..Hints::NONE
                };
                let arrival = Arrival {
                    now,
                    tokens: 1,
                    limit: blocks,
                    hints,
                };
                cache.admit(namespace, &keys, arrival).unwrap();
                let mut restore = cache.restore(namespace, &keys, 0).unwrap();
                if let Some(restore) = &mut restore {
                    restore.progress();
                    drop(restore.take());
                }
                for from in (0..blocks).step_by(3) {
                    let to = blocks.min(from + 3);
                    let mut wanted: Vec<_> = (from..to)
                        .flat_map(|block| [(0, block), (1, block)])
                        .collect();
                    wanted.push((2, to - 1));
                    let lease = cache.reserve_hinted(namespace, &keys[..to], &wanted, &hints);
                    let mut lease = lease.unwrap();
                    let sums = vec![[number]; lease.entries().len()];
                    if next(20) > 0 {
                        lease.commit(&sums).unwrap();
                    }
                }
                drop(restore);
                cache.finish(namespace, &keys, blocks, 10).unwrap();
            }
            cache.release_namespace(namespace).unwrap();
            cache.poll();
            tiers.iter().for_each(|tier| tier.lock().log.clear());
            if at % 20 == 0 {
                most = most.max(cache.stats().metadata_bytes);
            }
        }
        assert_eq!(cache.audit(), None);
        days.push(most);
    }
    cache.clear();
    let stats = cache.stats();
    assert_eq!((stats.nodes, stats.tenants, stats.leased_slots), (0, 0, 0));
    days
}

#[test]
fn nothing_keeps_growing_in_a_month() {
    for policy in ["lru", "reuse"] {
        let days = month(policy);
        let most = |days: &[u64]| days.iter().copied().max().unwrap();
        let (before, after) = (most(&days[16..23]), most(&days[23..]));
        assert!(after <= before + before / 50, "{policy}: {days:?}");
    }
}
