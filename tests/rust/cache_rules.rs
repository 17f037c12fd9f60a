//! The rules of the cache, one a test. Prompts are strings, a letter a block; unless a test says
//! otherwise, class 0 holds attention pages and class 1 checkpoints, each of one slot.

mod cache_support;

use std::sync::Barrier;
use std::thread;

use cache_support::{CHECKPOINT, PAGE, Small, class, commit, config, keys, pages, places, whole};
use hybrid_pages::cache::{Cache, CacheConfig, Skipped};
use hybrid_pages::error::Error;
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::prefix::{Hit, boundaries};

fn hybrid(slots: usize) -> Small {
    Small::new(&[PAGE, CHECKPOINT], slots)
}

const NONE_SKIPPED: Skipped = Skipped {
    resident: 0,
    in_writing: 0,
    no_room: 0,
    orphan: 0,
};

// Hits

#[test]
fn a_hit_is_the_deepest_checkpoint_with_every_page_before_it() {
    let small = hybrid(16);
    small.store("abcdef", &pages(0..5));
    assert_eq!(
        small.hit("abcdef"),
        Hit {
            blocks: 0,
            pages: 5
        }
    );
    small.store("abcdef", &[(1, 1), (1, 3)]);
    assert_eq!(
        small.hit("abcdef"),
        Hit {
            blocks: 4,
            pages: 5
        }
    );
    assert_eq!(
        small.hit("abcx"),
        Hit {
            blocks: 2,
            pages: 3
        }
    );
    assert_eq!(
        small.hit("a"),
        Hit {
            blocks: 0,
            pages: 1
        }
    );
    assert_eq!(small.hit("xbcdef"), Hit::default());
    assert_eq!(small.hit(""), Hit::default());
}

#[test]
fn a_limit_hides_deeper_boundaries() {
    let small = hybrid(16);
    small.store("abcd", &whole("abcd"));
    small.store("abcd", &[(1, 1)]);
    // A prompt of exactly four blocks: its last token is computed again, so block 3 is out of reach.
    assert_eq!(
        small.hit("abc"),
        Hit {
            blocks: 2,
            pages: 3
        }
    );
    assert_eq!(small.read("abc").blocks(), 2);
}

#[test]
fn boundaries_are_every_stride_th_hash() {
    let at = |hashes, stride| boundaries(hashes, stride).unwrap().collect::<Vec<_>>();
    assert_eq!(at(7, 1), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(at(7, 3), [2, 5]);
    assert!(at(2, 3).is_empty());
    assert_eq!(at(usize::MAX, usize::MAX), [usize::MAX - 1]);
    assert!(matches!(
        boundaries(7, 0).map(drop),
        Err(Error::InvalidArgument(_))
    ));
}

#[test]
fn a_window_class_needs_only_the_pages_of_the_last_window() {
    let window = class(ClassKind::Window, 2, 1);
    let small = Small::new(&[PAGE, window], 32);
    small.store("abcdef", &pages(0..6));
    assert_eq!(small.depth("abcdef"), 0);
    small.store("abcdef", &[(1, 3), (1, 4)]);
    assert_eq!(
        small.hit("abcdef"),
        Hit {
            blocks: 5,
            pages: 6
        }
    );
    assert_eq!(small.depth("abcd"), 0);
    assert_eq!(
        places(small.read("abcdef").entries()),
        [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (0, 4), (1, 4)]
    );
    // Shorter than the window: as many as there are.
    small.store("abcdef", &[(1, 0)]);
    assert_eq!(small.depth("abcd"), 1);
}

#[test]
fn windows_of_different_widths_are_all_needed() {
    let windows = [
        class(ClassKind::Window, 1, 1),
        class(ClassKind::Window, 3, 1),
    ];
    let small = Small::new(
        &[PAGE, windows[0].clone(), windows[1].clone(), CHECKPOINT],
        64,
    );
    small.store("abcde", &pages(0..5));
    small.store("abcde", &[(3, 4), (2, 2), (2, 3), (2, 4)]);
    assert_eq!(small.depth("abcde"), 0);
    small.store("abcde", &[(1, 4)]);
    assert_eq!(small.depth("abcde"), 5);
}

#[test]
fn without_attention_a_checkpoint_alone_is_a_hit() {
    let small = Small::new(&[CHECKPOINT], 8);
    assert_eq!(small.store("abcdef", &[(0, 3)]), 1);
    assert_eq!(
        small.hit("abcdef"),
        Hit {
            blocks: 4,
            pages: 4
        }
    );
    assert_eq!(small.hit("abc"), Hit::default());
    assert_eq!(places(small.read("abcdef").entries()), [(0, 3)]);
    assert_eq!(small.stats().nodes, 1);
}

#[test]
fn without_attention_making_room_may_drop_boundaries_of_the_same_prefix() {
    let small = Small::new(&[class(ClassKind::Window, 1, 1), CHECKPOINT], 3);
    small.store("abcd", &[(1, 0), (1, 1), (1, 2)]);
    let lease = small.reserve("abcd", &[(0, 0), (0, 1), (0, 3)]);
    assert_eq!(places(lease.entries()), [(0, 0), (0, 1), (0, 3)]);
    assert_eq!(small.cache.audit(), None);
}

#[test]
fn namespaces_share_nothing() {
    let small = hybrid(8);
    small.store_prompt("ab");
    let other = small.cache.namespace(b"another adapter").unwrap();
    assert_ne!(other, small.namespace);
    assert_eq!(small.cache.namespace(b"another adapter"), Ok(other));
    assert_eq!(small.cache.lookup(other, &keys("ab")), Ok(Hit::default()));
    let mut lease = small
        .cache
        .reserve(other, &keys("ab"), &whole("ab"))
        .unwrap();
    assert_eq!(commit(&mut lease), 3);
    assert_eq!(small.stats().pages, 4);
}

// Reading

#[test]
fn a_lease_names_what_is_left_to_load() {
    let small = hybrid(16);
    small.store_prompt("abcd");
    let lease = small.acquire("abcdxyz", 2).unwrap();
    assert_eq!((lease.first(), lease.blocks()), (2, 4));
    assert_eq!(places(lease.entries()), [(0, 2), (0, 3), (1, 3)]);
    assert!(lease.entries().iter().all(|entry| entry.checksums == [7]));
    assert!(small.acquire("abcd", 4).is_none());
    assert!(small.acquire("abcd", 9).is_none());
    assert!(small.acquire("x", 0).is_none());
}

#[test]
fn nothing_under_a_lease_is_evicted() {
    let small = hybrid(6);
    small.store_prompt("abcd");
    let lease = small.acquire("abcd", 3).unwrap();
    let slots = |lease: &hybrid_pages::cache::ReadLease| -> Vec<_> {
        lease
            .entries()
            .iter()
            .flat_map(|entry| entry.slots.clone())
            .collect()
    };
    let held = slots(&lease);
    // The pages before the lease are needed to reach it: they stay as well.
    let writing = small.reserve("xyz", &pages(0..3));
    assert_eq!(places(writing.entries()), [(0, 0)]);
    assert_eq!(
        writing.skipped(),
        Skipped {
            no_room: 2,
            ..NONE_SKIPPED
        }
    );
    assert_eq!(small.depth("abcd"), 4);
    assert!(
        writing
            .entries()
            .iter()
            .all(|entry| !held.contains(&entry.slots[0]))
    );
    drop((writing, lease));
    assert_eq!(small.store("xyz", &pages(0..3)), 3);
    assert_eq!(small.depth("abcd"), 0);
}

// Writing

#[test]
fn nothing_is_seen_before_the_commit_and_everything_after() {
    let small = hybrid(8);
    let mut lease = small.reserve("abc", &whole("abc"));
    assert_eq!(lease.skipped(), NONE_SKIPPED);
    assert!(
        lease
            .entries()
            .iter()
            .all(|entry| entry.checksums.is_empty())
    );
    assert_eq!(small.hit("abc"), Hit::default());
    assert_eq!(small.stats().writing_entries, 4);
    assert_eq!(commit(&mut lease), 4);
    assert!(lease.ended());
    assert_eq!(
        small.hit("abc"),
        Hit {
            blocks: 3,
            pages: 3
        }
    );
    assert_eq!(small.stats().writing_entries, 0);
}

#[test]
fn a_dropped_write_leaves_no_trace() {
    let small = hybrid(8);
    let before = small.stats();
    drop(small.reserve("abc", &whole("abc")));
    let mut lease = small.reserve("abc", &whole("abc"));
    lease.abort();
    lease.abort();
    assert!(lease.ended());
    let after = small.stats();
    assert_eq!((after.free_slots, after.nodes), (8, 0));
    assert_eq!(after.evicted_pages, before.evicted_pages);
    assert_eq!(small.hit("abc"), Hit::default());
}

#[test]
fn what_is_resident_or_in_writing_is_not_written_twice() {
    let small = hybrid(16);
    small.store("abc", &pages(0..2));
    let first = small.reserve("abc", &whole("abc"));
    assert_eq!(places(first.entries()), [(0, 2), (1, 2)]);
    assert_eq!(
        first.skipped(),
        Skipped {
            resident: 2,
            ..NONE_SKIPPED
        }
    );
    let second = small.reserve("abc", &whole("abc"));
    assert!(second.entries().is_empty());
    assert_eq!(
        second.skipped(),
        Skipped {
            resident: 2,
            in_writing: 2,
            ..NONE_SKIPPED
        }
    );
    // The same boundary state offered twice in one step.
    let twice = small.reserve("x", &[(0, 0), (1, 0), (1, 0)]);
    assert_eq!(places(twice.entries()), [(0, 0), (1, 0)]);
    assert_eq!(
        twice.skipped(),
        Skipped {
            in_writing: 1,
            ..NONE_SKIPPED
        }
    );
}

#[test]
fn an_entry_that_could_never_be_reached_is_an_orphan() {
    let small = hybrid(16);
    small.store("abcd", &pages(0..1));
    let lease = small.reserve("abcdef", &[(0, 2), (1, 0), (1, 1), (0, 5), (0, 4)]);
    assert_eq!(places(lease.entries()), [(1, 0)]);
    assert_eq!(
        lease.skipped(),
        Skipped {
            orphan: 4,
            ..NONE_SKIPPED
        }
    );
    // A page before it in the same call, in any order, or in another one's writing, is enough.
    let parents = small.reserve("abcdef", &[(0, 2), (1, 2), (0, 1)]);
    assert_eq!(places(parents.entries()), [(0, 1), (0, 2), (1, 2)]);
    let child = small.reserve("abcdef", &[(0, 3)]);
    assert_eq!(child.skipped(), NONE_SKIPPED);
}

#[test]
fn a_child_of_an_aborted_page_is_never_published() {
    let small = hybrid(16);
    let mut parent = small.reserve("abcd", &pages(0..2));
    let mut child = small.reserve("abcd", &[(0, 2), (1, 2)]);
    let mut grandchild = small.reserve("abcd", &[(0, 3)]);
    assert_eq!(commit(&mut grandchild), 1);
    parent.abort();
    assert_eq!(small.stats().nodes, 0);
    // The same prefix again, while the child's lease is still out.
    small.store_prompt("abcd");
    assert_eq!(commit(&mut child), 0);
    assert_eq!(
        small.hit("abcd"),
        Hit {
            blocks: 4,
            pages: 4
        }
    );
    assert_eq!(small.depth("abc"), 0);
    assert_eq!(small.stats().free_slots, 11);
    assert_eq!(small.stats().reclaimed, 1);
}

#[test]
fn a_commit_of_another_shape_changes_nothing() {
    let small = hybrid(8);
    let mut lease = small.reserve("ab", &whole("ab"));
    let before = small.stats();
    assert!(matches!(
        lease.commit(&[[1], [1]]),
        Err(Error::InvalidArgument(_))
    ));
    assert!(matches!(
        lease.commit(&[[1, 2], [1, 2], [1, 2]]),
        Err(Error::InvalidArgument(_))
    ));
    assert!(matches!(
        lease.commit(&[vec![1], vec![], vec![1]]),
        Err(Error::InvalidArgument(_))
    ));
    assert_eq!((small.stats(), lease.ended()), (before, false));
    assert_eq!(lease.commit(&[[1], [2], [3]]), Ok(3));
    assert!(matches!(
        lease.commit(&[[1], [2], [3]]),
        Err(Error::Lease(_))
    ));
    let read = small.read("ab");
    assert_eq!(
        read.entries()
            .iter()
            .map(|entry| entry.checksums[0])
            .collect::<Vec<_>>(),
        [1, 2, 3]
    );
}

#[test]
fn an_aborted_lease_cannot_be_committed() {
    let small = hybrid(8);
    let mut lease = small.reserve("ab", &whole("ab"));
    lease.abort();
    assert!(matches!(
        lease.commit(&[[1], [2], [3]]),
        Err(Error::Lease(_))
    ));
    assert_eq!(small.stats().free_slots, 8);
}

// Room

#[test]
fn tails_go_first_and_the_used_stay() {
    let small = hybrid(9);
    small.store_prompt("abc");
    small.store_prompt("xyz");
    small.load("abc");
    // One is free, two are needed: what goes is the end of what was used longest ago.
    small.store("p", &[(0, 0), (1, 0)]);
    assert_eq!(
        small.hit("xyz"),
        Hit {
            blocks: 0,
            pages: 3
        }
    );
    small.store("q", &[(0, 0)]);
    assert_eq!(
        small.hit("xyz"),
        Hit {
            blocks: 0,
            pages: 2
        }
    );
    assert_eq!(
        small.hit("abc"),
        Hit {
            blocks: 3,
            pages: 3
        }
    );
    let stats = small.stats();
    assert_eq!(
        (
            stats.evicted_checkpoints,
            stats.evicted_pages,
            stats.reclaimed
        ),
        (1, 1, 0)
    );
}

#[test]
fn a_load_refreshes_only_the_checkpoint_that_it_resumed_from() {
    let small = hybrid(6);
    small.store("abc", &pages(0..3));
    small.store("abc", &[(1, 0)]);
    small.store("abc", &[(1, 1), (1, 2)]);
    small.load("ab");
    // The last checkpoint is the oldest entry that no load used, though stored after the first.
    small.store("x", &[(0, 0), (1, 0)]);
    assert_eq!(
        small.hit("abc"),
        Hit {
            blocks: 2,
            pages: 3
        }
    );
    assert_eq!(small.depth("a"), 0);
}

#[test]
fn a_lookup_refreshes_nothing() {
    let small = hybrid(4);
    small.store_prompt("a");
    small.store_prompt("b");
    for _ in 0..3 {
        small.hit("a");
    }
    small.store_prompt("c");
    assert_eq!((small.depth("a"), small.depth("b")), (0, 1));
}

#[test]
fn the_prefix_being_extended_is_never_evicted_for_its_own_tail() {
    let small = hybrid(4);
    small.store("ab", &pages(0..2));
    small.store("x", &pages(0..1));
    let mut lease = small.reserve("abcdef", &pages(0..6));
    assert_eq!(places(lease.entries()), [(0, 2), (0, 3)]);
    assert_eq!(
        lease.skipped(),
        Skipped {
            resident: 2,
            no_room: 2,
            ..NONE_SKIPPED
        }
    );
    commit(&mut lease);
    assert_eq!(small.hit("abcdef").pages, 4);
    assert_eq!(small.hit("x").pages, 0);
}

#[test]
fn a_window_page_that_the_tail_needs_is_never_evicted_for_it() {
    let window = class(ClassKind::Window, 2, 1);
    let small = Small::new(&[window, CHECKPOINT], 3);
    small.store("ab", &[(0, 0), (0, 1)]);
    // Block 2 resumes from pages 1 and 2: of the old ones, only page 0 may go.
    assert_eq!(small.store("abc", &[(0, 2), (1, 2)]), 2);
    assert_eq!(small.depth("abc"), 3);
    assert_eq!(small.stats().evicted_windows, 1);
    // Page 2 stays for block 3, whose own two entries take the places of the others.
    assert_eq!(small.store("abcd", &[(0, 3), (1, 3)]), 2);
    assert_eq!(small.depth("abcd"), 4);
    let lease = small.reserve("abcde", &[(1, 3), (0, 4), (1, 4)]);
    assert_eq!(
        lease.skipped(),
        Skipped {
            resident: 1,
            no_room: 2,
            ..NONE_SKIPPED
        }
    );
}

#[test]
fn a_checkpoint_gets_room_with_its_pages_or_they_get_none() {
    let small = Small::new(&[PAGE, class(ClassKind::Recurrent, 0, 3)], 8);
    small.store("x", &pages(0..1));
    // 1 + 3 for the first boundary, 3 + 3 more for the second: only the first fits.
    let lease = small.reserve("abcd", &[(0, 0), (1, 0), (0, 1), (0, 2), (0, 3), (1, 3)]);
    assert_eq!(places(lease.entries()), [(0, 0), (1, 0)]);
    assert_eq!(
        lease.skipped(),
        Skipped {
            no_room: 4,
            ..NONE_SKIPPED
        }
    );
    drop(lease);
    assert_eq!(small.hit("x").pages, 1);
    // Pages deeper than the checkpoint come after it, not before.
    let lease = small.reserve(
        "abcdefg",
        &[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 1)],
    );
    assert_eq!(
        places(lease.entries()),
        [(0, 0), (0, 1), (1, 1), (0, 2), (0, 3), (0, 4)]
    );
    assert_eq!(
        lease.skipped(),
        Skipped {
            no_room: 1,
            ..NONE_SKIPPED
        }
    );
}

#[test]
fn a_checkpoint_whose_pages_are_there_gets_room_before_deeper_pages() {
    let small = hybrid(4);
    small.store("abc", &pages(0..3));
    let lease = small.reserve("abcd", &[(0, 3), (1, 2)]);
    assert_eq!(places(lease.entries()), [(1, 2)]);
}

#[test]
fn a_prompt_larger_than_the_budget_costs_others_nothing() {
    let small = hybrid(4);
    small.store_prompt("abc");
    let before = small.stats();
    let lease = small.reserve("stuvwxyz", &whole("stuvwxyz"));
    assert_eq!(
        lease.skipped(),
        Skipped {
            no_room: 9,
            ..NONE_SKIPPED
        }
    );
    drop(lease);
    assert_eq!(small.stats().pages, before.pages);
    assert_eq!(small.depth("abc"), 3);
}

#[test]
fn a_checkpoint_stored_again_is_not_evicted_by_the_same_call() {
    let small = hybrid(4);
    small.store("ab", &whole("ab"));
    small.store("x", &pages(0..1));
    let lease = small.reserve("abc", &[(1, 1), (0, 2)]);
    assert_eq!(places(lease.entries()), [(0, 2)]);
    drop(lease);
    assert_eq!(small.hit("x").pages, 0);
    assert_eq!(small.depth("ab"), 2);
}

#[test]
fn nothing_below_an_evicted_page_is_left() {
    let small = hybrid(12);
    small.store_prompt("abcd");
    small.store("abxy", &[(0, 2), (0, 3), (1, 3)]);
    for letter in ["m", "n", "o", "p", "q"] {
        small.store_prompt(letter);
        let both = small.hit("abcd").pages.max(small.hit("abxy").pages);
        assert_eq!(small.cache.audit(), None);
        assert!(both >= 2 || small.stats().nodes <= 6);
    }
    small.store_prompt("r");
    small.store_prompt("s");
    let stats = small.stats();
    assert_eq!(stats.pages, stats.nodes);
}

// Forgetting

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
            pages: 1
        }
    );
    assert_eq!(
        small.hit("abxy"),
        Hit {
            blocks: 1,
            pages: 1
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
    assert_eq!(commit(&mut writing), 0);
    assert_eq!(
        small.hit("pq"),
        Hit {
            blocks: 0,
            pages: 1
        }
    );
    lease.release();
    assert_eq!(small.stats().free_slots, 15);
    assert_eq!(small.cache.clear(), 1);
    assert_eq!(small.cache.clear(), 0);
    assert_eq!(small.stats().free_slots, 16);
}

// Bad input

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
            pages: 1
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
