//! Write leases, and eviction to make room for them. Prompts are strings, one letter per block; unless a test says otherwise, class 0
//! holds attention pages and class 1 checkpoints, each of one slot.

use crate::cache_support;

use cache_support::{CHECKPOINT, NONE_SKIPPED, PAGE, Small, class, commit, pages, places, whole};
use hybrid_pages::cache::Skipped;
use hybrid_pages::error::Error;
use hybrid_pages::ids::ClassKind;
use hybrid_pages::prefix::{Hit, Missing};

#[test]
fn nothing_is_seen_before_the_commit_and_everything_after() {
    let small = Small::hybrid(8);
    let mut lease = small.reserve("abc", &whole("abc"));
    assert_eq!(lease.skipped(), NONE_SKIPPED);
    assert!(
        lease
            .entries()
            .iter()
            .all(|entry| entry.checksums.is_empty())
    );
    let found = small.hit("abc");
    assert_eq!(found.coming, 3);
    assert_eq!(Hit { coming: 0, ..found }, Hit::default());
    assert_eq!(small.stats().writing_entries, 4);
    assert_eq!(commit(&mut lease), 4);
    assert!(lease.ended());
    assert_eq!(
        small.hit("abc"),
        Hit {
            blocks: 3,
            pages: 3,
            host: 3,
            missing: None,
            asking: false,
            coming: 3,
        }
    );
    assert_eq!(small.stats().writing_entries, 0);
}

#[test]
fn a_dropped_write_leaves_no_trace() {
    let small = Small::hybrid(8);
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
    let small = Small::hybrid(16);
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
    let small = Small::hybrid(16);
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
    let small = Small::hybrid(16);
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
            pages: 4,
            host: 4,
            missing: None,
            asking: false,
            coming: 4,
        }
    );
    assert_eq!(small.depth("abc"), 0);
    assert_eq!(small.stats().free_slots, 11);
    assert_eq!(small.stats().reclaimed, 1);
}

#[test]
fn entries_without_checksums_say_so_until_they_are_written_with_them() {
    let small = Small::hybrid(8);
    let mut lease = small.reserve("ab", &whole("ab"));
    assert_eq!(lease.commit_without_checksums(), Ok(3));
    assert!(matches!(
        lease.commit_without_checksums(),
        Err(Error::Lease(_))
    ));
    let read = small.read("ab");
    assert!(
        read.entries()
            .iter()
            .all(|entry| entry.checksums.is_empty())
    );
    drop(read);
    // The records of these are used again, and know nothing of the sums that were there before.
    small.cache.clear();
    small.store_prompt("cd");
    small.cache.clear();
    let mut lease = small.reserve("ef", &whole("ef"));
    assert_eq!(lease.commit_without_checksums(), Ok(3));
    let read = small.read("ef");
    assert!(
        read.entries()
            .iter()
            .all(|entry| entry.checksums.is_empty())
    );
    drop(read);
    small.cache.clear();
    small.store_prompt("gh");
    let read = small.read("gh");
    assert!(
        read.entries()
            .iter()
            .all(|entry| entry.checksums.len() == 1)
    );
}

#[test]
fn a_commit_of_another_shape_changes_nothing() {
    let small = Small::hybrid(8);
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
    let small = Small::hybrid(8);
    let mut lease = small.reserve("ab", &whole("ab"));
    lease.abort();
    assert!(matches!(
        lease.commit(&[[1], [2], [3]]),
        Err(Error::Lease(_))
    ));
    assert_eq!(small.stats().free_slots, 8);
}

#[test]
fn tails_go_first_and_the_used_stay() {
    let small = Small::hybrid(9);
    small.store_prompt("abc");
    small.store_prompt("xyz");
    small.load("abc");
    // One is free, two are needed: what goes is the end of what was used longest ago.
    small.store("p", &[(0, 0), (1, 0)]);
    assert_eq!(
        small.hit("xyz"),
        Hit {
            blocks: 0,
            pages: 3,
            host: 0,
            missing: Some(Missing::Evicted),
            asking: false,
            coming: 0,
        }
    );
    small.store("q", &[(0, 0)]);
    assert_eq!(
        small.hit("xyz"),
        Hit {
            blocks: 0,
            pages: 2,
            host: 0,
            missing: Some(Missing::NeverMade),
            asking: false,
            coming: 0,
        }
    );
    assert_eq!(
        small.hit("abc"),
        Hit {
            blocks: 3,
            pages: 3,
            host: 3,
            missing: None,
            asking: false,
            coming: 3,
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
    let small = Small::hybrid(6);
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
            pages: 3,
            host: 2,
            missing: Some(Missing::Evicted),
            asking: false,
            coming: 2,
        }
    );
    assert_eq!(small.depth("a"), 0);
}

#[test]
fn a_lookup_refreshes_nothing() {
    let small = Small::hybrid(4);
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
    let small = Small::hybrid(4);
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
    let small = Small::hybrid(4);
    small.store("abc", &pages(0..3));
    let lease = small.reserve("abcd", &[(0, 3), (1, 2)]);
    assert_eq!(places(lease.entries()), [(1, 2)]);
}

#[test]
fn a_prompt_larger_than_the_budget_costs_others_nothing() {
    let small = Small::hybrid(4);
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
    let small = Small::hybrid(4);
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
    let small = Small::hybrid(12);
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

#[test]
fn slots_that_are_not_ready_are_not_handed_out() {
    let small = Small::hybrid(6);
    small.cache.set_ready_slots(0).unwrap();
    let lease = small.reserve("ab", &pages(0..2));
    let skipped = Skipped {
        not_ready: 2,
        ..NONE_SKIPPED
    };
    assert_eq!(lease.skipped(), skipped);
    drop(lease);

    small.cache.set_ready_slots(3).unwrap();
    small.store("abc", &pages(0..3));
    assert_eq!((small.stats().slots, small.stats().ready_slots), (6, 3));
    assert_eq!(small.stats().free_slots, 0);
    // There is nothing else to evict: the prefix is its own.
    let lease = small.reserve("abcd", &pages(3..4));
    assert_eq!(lease.skipped().not_ready, 1);
    drop(lease);
    // Room is made among what is there, as ever.
    small.store("x", &pages(0..1));
    assert_eq!(small.hit("x").pages, 1);

    for wrong in [2, 7, usize::MAX] {
        let refused = small.cache.set_ready_slots(wrong);
        assert!(
            matches!(refused, Err(Error::InvalidArgument(why)) if why.contains(&wrong.to_string()))
        );
    }
    small.cache.set_ready_slots(6).unwrap();
    assert_eq!(small.stats().free_slots, 3);
    small.store("defgh", &pages(0..5));
    assert_eq!(small.cache.audit(), None);
    let lease = small.reserve("defghijk", &pages(5..8));
    assert_eq!((lease.skipped().no_room, lease.skipped().not_ready), (2, 0));
}
