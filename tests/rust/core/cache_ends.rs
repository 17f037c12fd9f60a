//! Clearing, rejected calls, and invariants under threads. Prompts are strings, one letter per block; unless a test says otherwise, class 0
//! holds attention pages and class 1 checkpoints, each of one slot.

use crate::cache_support;

use std::sync::Barrier;
use std::thread;

use cache_support::{CHECKPOINT, PAGE, Small, class, commit, config, keys, pages, whole};
use hybrid_pages::cache::{Cache, CacheConfig};
use hybrid_pages::error::Error;
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::prefix::{Hit, Missing};

fn hybrid(slots: usize) -> Small {
    Small::new(&[PAGE, CHECKPOINT], slots)
}

#[test]
fn invalidated_entries_are_gone_with_everything_behind_them() {
    let small = hybrid(16);
    small.store_prompt("abcd");
    small.store("abxy", &[(0, 2), (0, 3), (1, 3)]);
    small.store("abcd", &[(1, 0)]);
    let mut lease = small.acquire("abcd", 1).unwrap();
    let other = small.read("abxy");
    // Pages 1 to 3 and the checkpoint are named; the fork's pages and checkpoint hang from page 1.
    assert_eq!(small.cache.invalidate(&lease), Ok(7));
    assert_eq!(small.stats().reclaimed, 3);
    assert_eq!(
        small.hit("abcd"),
        Hit {
            blocks: 1,
            pages: 1,
            host: 1,
            missing: None,
            asking: false,
            coming: 1,
        }
    );
    assert_eq!(
        small.hit("abxy"),
        Hit {
            blocks: 1,
            pages: 1,
            host: 1,
            missing: None,
            asking: false,
            coming: 1,
        }
    );
    assert_eq!(small.cache.invalidate(&lease), Ok(0));
    // The slots return with the leases, and never while one reads them.
    assert_eq!(small.stats().free_slots, 7);
    lease.release();
    assert_eq!(small.stats().free_slots, 10);
    drop(other);
    assert_eq!(small.stats().free_slots, 14);
    assert_eq!(small.store("abcd", &whole("abcd")), 4);
    assert_eq!(small.depth("abcd"), 4);
}

#[test]
fn a_lease_that_ended_or_is_another_caches_invalidates_nothing() {
    let (small, other) = (hybrid(8), hybrid(8));
    small.store_prompt("abc");
    other.store_prompt("abc");
    let foreign = other.read("abc");
    let mut lease = small.read("abc");
    lease.release();
    lease.release();
    assert!(lease.released());
    let before = small.stats();
    assert!(matches!(
        small.cache.invalidate(&lease),
        Err(Error::Lease(_))
    ));
    assert!(matches!(
        small.cache.invalidate(&foreign),
        Err(Error::Lease(_))
    ));
    assert_eq!(small.stats(), before);
    assert_eq!((small.depth("abc"), other.depth("abc")), (3, 3));
}

#[test]
fn clear_forgets_everything_and_slots_under_a_lease_return_with_it() {
    let small = hybrid(16);
    small.store_prompt("abc");
    small.store_prompt("xyz");
    let mut lease = small.read("abc");
    let mut writing = small.reserve("pq", &whole("pq"));
    assert_eq!(small.cache.clear(), 8);
    let stats = small.stats();
    assert_eq!((stats.pages, stats.checkpoints, stats.nodes), (0, 0, 0));
    assert_eq!(
        (stats.free_slots, stats.leased_slots, stats.writing_entries),
        (9, 7, 3)
    );
    // A commit after the clear publishes nothing, even where the same prefix is back.
    small.store("pq", &pages(0..1));
    let stored = small.stats().stored_pages;
    assert_eq!(commit(&mut writing), 0);
    assert_eq!(small.stats().stored_pages, stored);
    assert_eq!(
        small.hit("pq"),
        Hit {
            blocks: 0,
            pages: 1,
            host: 0,
            missing: Some(Missing::NeverMade),
            asking: false,
            coming: 0,
        }
    );
    lease.release();
    assert_eq!(small.stats().free_slots, 15);
    assert_eq!(small.cache.clear(), 1);
    assert_eq!(small.cache.clear(), 0);
    assert_eq!(small.stats().free_slots, 16);
}

#[test]
fn a_refused_call_changes_nothing() {
    let small = hybrid(8);
    small.store_prompt("ab");
    let before = small.stats();
    let invalid = |result: Result<(), Error>| {
        assert!(
            matches!(result, Err(Error::InvalidArgument(_))),
            "{result:?}"
        );
        assert_eq!(small.stats(), before);
    };
    let strange = NamespaceId(5);
    invalid(small.cache.lookup(strange, &keys("ab")).map(drop));
    invalid(small.cache.acquire(strange, &keys("ab"), 0).map(drop));
    invalid(small.cache.reserve(strange, &keys("ab"), &[]).map(drop));
    let reserve = |keys: &[PrefixKey], entries: &[(usize, usize)]| {
        small
            .cache
            .reserve(small.namespace, keys, entries)
            .map(drop)
    };
    invalid(reserve(&keys("abc"), &[(0, 2), (2, 0)]));
    invalid(reserve(&keys("abc"), &[(0, 2), (0, 3)]));
    invalid(reserve(&[], &[(0, 0)]));
    invalid(reserve(&keys("abc"), &[(usize::MAX, usize::MAX)]));
    assert!(reserve(&[], &[]).is_ok());
    assert_eq!(small.stats(), before);
}

#[test]
fn keys_that_are_not_chained_are_refused_or_miss() {
    let small = hybrid(8);
    small.store_prompt("abc");
    let before = small.stats();
    let [a, b, c] = keys("abc")[..] else {
        panic!("three keys")
    };
    let x = keys("x")[0];
    for wrong in [
        vec![b],
        vec![b, a],
        vec![a, c],
        vec![x, b],
        vec![x, x],
        vec![a, x, x],
        vec![a, b, c, a],
    ] {
        let entries = pages(0..wrong.len());
        let refused = small
            .cache
            .reserve(small.namespace, &wrong, &entries)
            .map(drop);
        assert!(
            matches!(refused, Err(Error::InvalidArgument(_))),
            "{refused:?}"
        );
        assert_eq!(small.stats(), before);
    }
    assert_eq!(
        small.cache.lookup(small.namespace, &[a, c]),
        Ok(Hit {
            blocks: 0,
            pages: 1,
            host: 0,
            missing: Some(Missing::NeverMade),
            asking: false,
            coming: 0,
        })
    );
    assert_eq!(
        small.cache.lookup(small.namespace, &[c]),
        Ok(Hit::default())
    );
}

#[test]
fn impossible_configurations_are_refused() {
    let refused = |config: CacheConfig| Cache::new(&config).map(drop).unwrap_err();
    let invalid = |config| assert!(matches!(refused(config), Error::InvalidArgument(_)));
    let good = || config(&[PAGE, CHECKPOINT], 8);
    invalid(config(&[], 8));
    invalid(config(&[PAGE, PAGE], 8));
    invalid(config(&[CHECKPOINT, PAGE, CHECKPOINT], 8));
    invalid(config(&[class(ClassKind::Window, 0, 1)], 8));
    invalid(config(&[class(ClassKind::Attention, 0, 0)], 8));
    invalid(CacheConfig { ranks: 0, ..good() });
    invalid(CacheConfig {
        slot_bytes: 0,
        ..good()
    });
    invalid(CacheConfig { slots: 0, ..good() });
    invalid(CacheConfig {
        slots: usize::MAX,
        ..good()
    });
    invalid(CacheConfig {
        policy: "fifo".into(),
        ..good()
    });
    let Error::Budget(text) = refused(config(&[PAGE, class(ClassKind::Recurrent, 0, 8)], 8)) else {
        panic!("expected a budget error");
    };
    assert!(
        text.contains("4608 bytes") && text.contains("4096 bytes"),
        "{text}"
    );
    let huge = class(ClassKind::Attention, 0, usize::MAX);
    assert!(matches!(
        refused(config(&[huge, CHECKPOINT], 8)),
        Error::Budget(_)
    ));
}

#[test]
fn counts_in_bytes_add_up_to_the_budget() {
    let sizes = [
        class(ClassKind::Attention, 0, 2),
        class(ClassKind::Window, 1, 1),
        class(ClassKind::Window, 2, 3),
        class(ClassKind::Recurrent, 0, 5),
    ];
    let small = Small::new(&sizes, 40);
    let empty = small.stats();
    small.store("ab", &[(0, 0), (0, 1), (1, 1), (2, 0), (2, 1), (3, 1)]);
    let stats = small.stats();
    assert_eq!((stats.pages, stats.windows, stats.checkpoints), (2, 3, 1));
    assert_eq!(stats.page_bytes, 4 * 512);
    assert_eq!(stats.window_bytes, 7 * 512);
    assert_eq!(stats.checkpoint_bytes, 5 * 512);
    assert_eq!(stats.free_slots, 40 - 16);
    assert!(stats.metadata_bytes > empty.metadata_bytes);
}

#[test]
fn many_threads_leave_a_consistent_cache() {
    let small = hybrid(24);
    let prompts = ["abcdef", "abcxyz", "abpq", "mnop", "mnxy", "z"];
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for worker in 0..4 {
            let (small, start) = (&small, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..500 {
                    let prompt = prompts[(worker * 5 + round) % prompts.len()];
                    let lease = small.acquire(prompt, round % 3);
                    if round % 17 == 0 {
                        lease
                            .iter()
                            .for_each(|lease| drop(small.cache.invalidate(lease)));
                    }
                    let mut writing = small.reserve(prompt, &whole(prompt));
                    if round % 5 > 0 {
                        commit(&mut writing);
                    }
                    if round % 101 == 0 {
                        small.cache.clear();
                    }
                }
            });
        }
    });
    let stats = small.stats();
    assert_eq!((stats.leased_slots, stats.writing_entries), (0, 0));
    small.cache.clear();
    assert_eq!(small.stats().free_slots, 24);
}
