//! Identities come and go: known while they are held or have an entry, under numbers that are never used
//! again. Prompts are strings, one letter per block; class 0 holds attention pages and class 1
//! checkpoints, each of one slot.

use crate::cache_support;

use cache_support::{CHECKPOINT, PAGE, Small, commit, keys, whole};
use hybrid_pages::cache::{Arrival, Cache};
use hybrid_pages::error::Error;
use hybrid_pages::ids::NamespaceId;
use hybrid_pages::policy::Hints;
use hybrid_pages::prefix::Hit;

const IDENTITY: &[u8] = b"an adapter";

fn hybrid(slots: usize) -> Small {
    Small::new(&[PAGE, CHECKPOINT], slots)
}

fn known(cache: &Cache, namespace: NamespaceId) -> bool {
    cache.lookup(namespace, &[]).is_ok()
}

fn store(cache: &Cache, namespace: NamespaceId, prompt: &str) {
    let lease = cache.reserve(namespace, &keys(prompt), &whole(prompt));
    assert_eq!(commit(&mut lease.unwrap()), prompt.len() + 1);
}

/// Evicts everything else from a cache of six slots.
fn crowd_out(small: &Small) {
    small.store_prompt("vwxyz");
}

#[test]
fn an_identity_has_one_number_as_long_as_somebody_holds_it() {
    let small = hybrid(8);
    let first = small.cache.namespace(IDENTITY).unwrap();
    assert_ne!(first, small.namespace);
    assert_eq!(small.cache.namespace(IDENTITY), Ok(first));
    assert_eq!(small.cache.release_namespace(first), Ok(()));
    assert!(known(&small.cache, first));
    assert_eq!(small.cache.release_namespace(first), Ok(()));
    assert!(!known(&small.cache, first));
    let second = small.cache.namespace(IDENTITY).unwrap();
    assert!(![first, small.namespace].contains(&second));
    assert!(!known(&small.cache, first));
}

#[test]
fn it_is_freed_with_the_last_entry_after_the_last_hold() {
    let small = hybrid(6);
    let namespace = small.cache.namespace(IDENTITY).unwrap();
    store(&small.cache, namespace, "ab");
    assert_eq!(small.cache.release_namespace(namespace), Ok(()));
    let found = small.cache.lookup(namespace, &keys("ab"));
    assert_eq!(found.map(|hit| hit.blocks), Ok(2));
    let bytes = small.stats().metadata_bytes;
    crowd_out(&small);
    assert!(!known(&small.cache, namespace));
    assert!(small.stats().metadata_bytes < bytes + 1024);
    assert_ne!(small.cache.namespace(IDENTITY), Ok(namespace));
}

#[test]
fn it_is_freed_with_the_last_hold_after_the_last_entry() {
    let small = hybrid(6);
    let namespace = small.cache.namespace(IDENTITY).unwrap();
    store(&small.cache, namespace, "ab");
    crowd_out(&small);
    // A request holds it though everything was evicted.
    let found = small.cache.lookup(namespace, &keys("ab"));
    assert_eq!(found, Ok(Hit::default()));
    assert_eq!(small.cache.namespace(IDENTITY), Ok(namespace));
    for _ in 0..2 {
        assert!(known(&small.cache, namespace));
        assert_eq!(small.cache.release_namespace(namespace), Ok(()));
    }
    assert!(!known(&small.cache, namespace));
}

#[test]
fn while_an_entry_is_resident_it_is_found_again_under_its_number() {
    let small = hybrid(6);
    let namespace = small.cache.namespace(IDENTITY).unwrap();
    store(&small.cache, namespace, "ab");
    assert_eq!(small.cache.release_namespace(namespace), Ok(()));
    assert_eq!(small.cache.namespace(IDENTITY), Ok(namespace));
    let lease = small.cache.acquire(namespace, &keys("ab"), 0).unwrap();
    assert_eq!(lease.map(|lease| lease.blocks()), Some(2));
}

#[test]
fn an_entry_in_writing_keeps_it_and_one_that_only_a_lease_keeps_does_not() {
    let small = hybrid(6);
    let namespace = small.cache.namespace(IDENTITY).unwrap();
    let lease = small.cache.reserve(namespace, &keys("ab"), &whole("ab"));
    assert_eq!(small.cache.release_namespace(namespace), Ok(()));
    assert!(known(&small.cache, namespace));
    assert_eq!(commit(&mut lease.unwrap()), 3);
    let read = small.cache.acquire(namespace, &keys("ab"), 0).unwrap();
    assert_eq!(small.cache.invalidate(&read.unwrap()), Ok(3));
    // Nobody finds what was dropped: there is nothing to know it for.
    assert!(!known(&small.cache, namespace));

    let namespace = small.cache.namespace(IDENTITY).unwrap();
    let lease = small.cache.reserve(namespace, &keys("ab"), &whole("ab"));
    assert_eq!(small.cache.release_namespace(namespace), Ok(()));
    drop(lease);
    assert!(!known(&small.cache, namespace));
}

#[test]
fn making_room_for_the_last_holders_own_entry_does_not_free_it() {
    let small = Small::new(&[CHECKPOINT], 1);
    let namespace = small.cache.namespace(IDENTITY).unwrap();
    let write = |block| {
        let lease = small.cache.reserve(namespace, &keys("abcd"), &[(0, block)]);
        assert_eq!(commit(&mut lease.unwrap()), 1);
    };
    write(1);
    assert_eq!(small.cache.release_namespace(namespace), Ok(()));
    // The one entry that it is known for goes, for another of its own.
    write(3);
    let found = small.cache.lookup(namespace, &keys("abcd"));
    assert_eq!(found.map(|hit| hit.blocks), Ok(4));
}

#[test]
fn clear_frees_what_nobody_holds() {
    let small = hybrid(16);
    let held = small.cache.namespace(b"held").unwrap();
    let left = small.cache.namespace(IDENTITY).unwrap();
    store(&small.cache, held, "ab");
    store(&small.cache, left, "ab");
    assert_eq!(small.cache.release_namespace(left), Ok(()));
    assert_eq!(small.cache.clear(), 6);
    assert!(!known(&small.cache, left));
    assert!(known(&small.cache, held));
    assert_eq!(small.cache.namespace(b"held"), Ok(held));
}

#[test]
fn a_stale_number_is_refused_by_every_method() {
    let small = hybrid(8);
    let cache = &small.cache;
    let stale = cache.namespace(IDENTITY).unwrap();
    assert_eq!(cache.release_namespace(stale), Ok(()));
    let before = small.stats();
    let refused = |result: Result<(), Error>| {
        let Err(Error::InvalidArgument(text)) = result else {
            panic!("expected a refusal, found {result:?}");
        };
        assert!(text.contains("namespace: expected a number that namespace() returned"));
        assert!(text.contains(&format!("found {}", stale.0)));
        assert_eq!(small.stats(), before);
    };
    let arrival = Arrival {
        now: 0,
        tokens: 32,
        limit: 2,
        hints: Hints::NONE,
    };
    let keys = keys("ab");
    refused(cache.lookup(stale, &keys).map(drop));
    refused(cache.acquire(stale, &keys, 0).map(drop));
    refused(cache.admit(stale, &keys, arrival).map(drop));
    refused(cache.finish(stale, &keys, 1, 1));
    refused(cache.reserve(stale, &keys, &whole("ab")).map(drop));
    refused(cache.reserve(stale, &keys, &[]).map(drop));
    refused(cache.release_namespace(stale));
}

#[test]
fn a_hold_is_given_back_once() {
    let small = hybrid(8);
    let namespace = small.cache.namespace(IDENTITY).unwrap();
    store(&small.cache, namespace, "ab");
    assert_eq!(small.cache.release_namespace(namespace), Ok(()));
    let before = small.stats();
    for number in [namespace, NamespaceId(7), NamespaceId(u32::MAX)] {
        let refused = small.cache.release_namespace(number);
        assert!(
            matches!(refused, Err(Error::InvalidArgument(_))),
            "{refused:?}"
        );
    }
    assert_eq!(small.stats(), before);
    assert!(known(&small.cache, namespace));
}

#[test]
fn identities_that_come_and_go_take_bounded_memory() {
    let small = hybrid(12);
    let mut most = 0;
    for number in 0..100_000_u32 {
        let namespace = small.cache.namespace(&number.to_le_bytes()).unwrap();
        if number % 3 > 0 {
            store(&small.cache, namespace, "ab");
        }
        assert_eq!(small.cache.release_namespace(namespace), Ok(()));
        let bytes = small.stats().metadata_bytes;
        if number < 1_000 {
            most = most.max(bytes);
        }
        assert!(bytes <= most);
    }
}

#[test]
fn memory_returns_when_many_go_at_once() {
    let small = hybrid(12);
    let before = small.stats().metadata_bytes;
    let all: Vec<_> = (0..10_000_u32)
        .map(|number| small.cache.namespace(&number.to_le_bytes()).unwrap())
        .collect();
    let grown = small.stats().metadata_bytes - before;
    for namespace in all {
        assert_eq!(small.cache.release_namespace(namespace), Ok(()));
    }
    assert!(small.stats().metadata_bytes - before < grown / 50);
}

#[test]
fn a_fork_known_from_keys_is_known_when_its_identity_comes_back() {
    let small = hybrid(6);
    let admit = |namespace, prompt: &str, now| {
        let arrival = Arrival {
            now,
            tokens: 16 * prompt.len() as u64 + 1,
            limit: prompt.len(),
            hints: Hints::NONE,
        };
        small.cache.admit(namespace, &keys(prompt), arrival)
    };
    let first = small.cache.namespace(IDENTITY).unwrap();
    assert_eq!(admit(first, "abcd", 0).unwrap().fork, None);
    store(&small.cache, first, "abcd");
    assert_eq!(small.cache.release_namespace(first), Ok(()));
    crowd_out(&small);
    assert!(!known(&small.cache, first));
    let second = small.cache.namespace(IDENTITY).unwrap();
    assert_ne!(second, first);
    assert_eq!(admit(second, "abxy", 1).unwrap().fork, Some(2));
    // Equal keys of another identity are another prefix.
    let other = small.cache.namespace(b"another adapter").unwrap();
    assert_eq!(admit(other, "abcd", 2).unwrap().fork, None);
}
