//! A tenant's share: a flood takes room from the tenant that sends it, and from nobody else.

use crate::live_cache;

use hybrid_pages::cache::{Arrival, Cache};
use hybrid_pages::error::Error;
use hybrid_pages::ids::{ClassKind, NamespaceId};
use hybrid_pages::policy::Hints;
use hybrid_pages_lab::policies;
use live_cache::{commit, keys, shared, wanted};

use ClassKind::{Attention, Recurrent};

const KINDS: [(ClassKind, usize); 2] = [(Attention, 1), (Recurrent, 3)];
const SLOTS: usize = 70;

/// A request, from its arrival to its end; how many entries were not stored for its tenant's share.
fn run(cache: &Cache, namespace: NamespaceId, now: u64, name: &[u8], hints: Hints) -> usize {
    let keys = keys(name);
    let arrival = Arrival {
        now,
        tokens: keys.len() as u64 * 16 + 1,
        limit: keys.len(),
        hints,
    };
    cache.admit(namespace, &keys, arrival).unwrap();
    drop(cache.acquire(namespace, &keys, 0).unwrap());
    let entries = wanted(&KINDS, 0, keys.len(), &[keys.len()]);
    let mut lease = cache
        .reserve_hinted(namespace, &keys, &entries, &hints)
        .unwrap();
    commit(&mut lease);
    cache.finish(namespace, &keys, keys.len(), 9).unwrap();
    assert_eq!(cache.audit(), None);
    lease.skipped().tenant_share
}

fn depth(cache: &Cache, namespace: NamespaceId, name: &[u8]) -> usize {
    cache.lookup(namespace, &keys(name)).unwrap().blocks
}

/// A conversation of one tenant before and in a flood of another's prompts, some of which are retained; how deep
/// the conversation is there afterwards, and the flood's last prompt.
fn flooded(policy: &str, tenant_slots: Option<usize>, retain: u64) -> (usize, usize) {
    let cache = shared(policy, &KINDS, SLOTS, tenant_slots);
    let talker = cache.namespace_of(b"talker", b"talker").unwrap();
    let flood = cache.namespace(b"").unwrap();
    let talk = b"turn by turn";
    for turn in 1..=3 {
        run(
            &cache,
            talker,
            turn * 1_000,
            &talk[..turn as usize * 4],
            Hints::NONE,
        );
    }
    let hints = Hints {
        retain,
        ..Hints::NONE
    };
    for number in 0..200_u8 {
        let now = 4_000 + u64::from(number) * 500;
        let hints = if number % 2 == 0 { hints } else { Hints::NONE };
        let skipped = run(&cache, flood, now, &[number; 6], hints);
        assert_eq!(
            skipped, 0,
            "{policy}: one-shot prompts find room among themselves"
        );
    }
    (depth(&cache, talker, talk), depth(&cache, flood, &[199; 6]))
}

#[test]
fn a_flood_of_one_tenant_pushes_the_conversation_of_another_out_only_without_a_share() {
    for policy in policies() {
        for retain in [0, 3_600_000] {
            assert_eq!(
                flooded(policy, Some(SLOTS / 2), retain),
                (12, 6),
                "{policy}"
            );
            assert_eq!(flooded(policy, None, retain), (0, 6), "{policy}");
        }
    }
}

#[test]
fn a_prompt_that_its_tenants_share_cannot_hold_is_skipped_and_counted_and_nobody_gives_way() {
    for policy in policies() {
        let cache = shared(policy, &KINDS, SLOTS, Some(20));
        let (a, b) = (
            cache.namespace_of(b"a", b"a").unwrap(),
            cache.namespace_of(b"b", b"b").unwrap(),
        );
        assert_eq!(run(&cache, b, 0, b"other", Hints::NONE), 0);
        assert_eq!(run(&cache, a, 1, b"mine", Hints::NONE), 0);
        // 18 pages and a checkpoint take 21 slots.
        assert_eq!(run(&cache, a, 2, &[7; 18], Hints::NONE), 19, "{policy}");
        assert_eq!(depth(&cache, b, b"other"), 5);
        assert_eq!(depth(&cache, a, b"mine"), 4);
        // What a lease holds can't give way either.
        let held = cache.acquire(a, &keys(b"mine"), 0).unwrap().unwrap();
        assert_eq!(run(&cache, a, 3, &[8; 12], Hints::NONE), 13, "{policy}");
        drop(held);
        assert_eq!(run(&cache, a, 4, &[8; 12], Hints::NONE), 0, "{policy}");
        assert_eq!(
            (depth(&cache, a, b"mine"), depth(&cache, b, b"other")),
            (0, 5)
        );
    }
}

#[test]
fn a_tenant_gives_up_its_own_in_the_order_of_the_policy() {
    for policy in policies() {
        let cache = shared(policy, &KINDS, SLOTS, Some(24));
        let a = cache.namespace_of(b"a", b"a").unwrap();
        let b = cache.namespace_of(b"b", b"b").unwrap();
        // The oldest of all is another's.
        run(&cache, b, 0, b"old", Hints::NONE);
        for (now, name) in [(1, b"one"), (2, b"two"), (3, b"six"), (4, b"ten")] {
            run(&cache, a, now * 60_000, name, Hints::NONE);
        }
        run(&cache, a, 241_000, b"one", Hints::NONE);
        run(&cache, a, 242_000, b"new", Hints::NONE);
        let there = [b"one", b"two", b"six", b"ten", b"new"].map(|name| depth(&cache, a, name));
        assert_eq!(there, [3, 0, 3, 3, 3], "{policy}");
        assert_eq!(depth(&cache, b, b"old"), 3);
    }
}

#[test]
fn tenants_are_counted_as_long_as_they_have_entries() {
    let cache = shared("reuse", &KINDS, SLOTS, Some(35));
    for round in 0..3_u64 {
        for number in 0..500_u64 {
            let tenant = (round * 500 + number).to_le_bytes();
            let namespace = cache.namespace_of(&tenant, &tenant).unwrap();
            run(&cache, namespace, number * 100, b"once", Hints::NONE);
            cache.release_namespace(namespace).unwrap();
        }
    }
    assert_eq!(cache.stats().tenants, SLOTS as u64 / 7);
    cache.clear();
    assert_eq!(cache.stats().tenants, 0);
    assert_eq!(cache.audit(), None);
}

#[test]
fn an_identity_has_one_tenant() {
    let cache = shared("lru", &KINDS, SLOTS, Some(35));
    cache.namespace_of(b"x", b"a").unwrap();
    let other = cache.namespace_of(b"x", b"b");
    assert!(matches!(other, Err(Error::InvalidArgument(_))));
}

#[test]
fn a_share_that_holds_no_prompt_at_all_is_refused() {
    let class = |&(kind, slots_per_entry): &(ClassKind, usize)| hybrid_pages::cache::ClassConfig {
        kind,
        window_blocks: 0,
        slots_per_entry,
    };
    let config = hybrid_pages::cache::CacheConfig {
        classes: KINDS.iter().map(class).collect(),
        ranks: 1,
        slots: SLOTS,
        slot_bytes: 512,
        policy: "lru".into(),
        tenant_slots: Some(3),
    };
    let Err(Error::Budget(text)) = Cache::new(&config).map(drop) else {
        panic!("expected a budget error");
    };
    assert!(text.contains("4 slots, found 3"), "{text}");
}
