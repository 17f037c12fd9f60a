//! Lookups and read leases. Prompts are strings, one letter per block; unless a test says otherwise, class 0
//! holds attention pages and class 1 checkpoints, each of one slot.

use crate::cache_support;

use cache_support::{
    CHECKPOINT, NONE_SKIPPED, PAGE, Small, class, commit, keys, pages, places, whole,
};
use hybrid_pages::cache::{LeaseEntry, Skipped};
use hybrid_pages::error::Error;
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::policy::Hints;
use hybrid_pages::prefix::{Hit, Missing, boundaries};

#[test]
fn a_hit_is_the_deepest_checkpoint_with_every_page_before_it() {
    let small = Small::hybrid(16);
    small.store("abcdef", &pages(0..5));
    assert_eq!(
        small.hit("abcdef"),
        Hit {
            blocks: 0,
            pages: 5,
            host: 0,
            missing: Some(Missing::NeverMade),
            asking: false,
            coming: 0,
        }
    );
    small.store("abcdef", &[(1, 1), (1, 3)]);
    assert_eq!(
        small.hit("abcdef"),
        Hit {
            blocks: 4,
            pages: 5,
            host: 4,
            missing: Some(Missing::NeverMade),
            asking: false,
            coming: 4,
        }
    );
    assert_eq!(
        small.hit("abcx"),
        Hit {
            blocks: 2,
            pages: 3,
            host: 2,
            missing: Some(Missing::NeverMade),
            asking: false,
            coming: 2,
        }
    );
    assert_eq!(
        small.hit("a"),
        Hit {
            blocks: 0,
            pages: 1,
            host: 0,
            missing: Some(Missing::NeverMade),
            asking: false,
            coming: 0,
        }
    );
    assert_eq!(small.hit("xbcdef"), Hit::default());
    assert_eq!(small.hit(""), Hit::default());
}

#[test]
fn a_limit_hides_deeper_boundaries() {
    let small = Small::hybrid(16);
    small.store("abcd", &whole("abcd"));
    small.store("abcd", &[(1, 1)]);
    // A prompt of exactly four blocks: its last token is computed again, so block 3 is out of reach.
    assert_eq!(
        small.hit("abc"),
        Hit {
            blocks: 2,
            pages: 3,
            host: 2,
            missing: Some(Missing::NeverMade),
            asking: false,
            coming: 2,
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
fn a_caller_is_shown_the_entries_that_a_lease_would_list() {
    let classes = [
        class(ClassKind::Attention, 0, 4),
        class(ClassKind::Recurrent, 0, 2),
    ];
    let (listed, shown) = (Small::new(&classes, 64), Small::new(&classes, 64));
    for small in [&listed, &shown] {
        small.store("abc", &pages(0..3));
    }
    // In no order, one twice, one that is there.
    let wanted = [(1, 5), (0, 4), (0, 3), (0, 2), (0, 4), (0, 5), (1, 3)];
    let lease = listed.reserve("abcdef", &wanted);
    let mut found = Vec::new();
    let each = |class, block, slots: &[SlotId]| found.push((class, block, slots.to_vec()));
    let mut twin = shown
        .cache
        .reserve_each(
            shown.namespace,
            &keys("abcdef"),
            &wanted,
            &Hints::NONE,
            each,
        )
        .unwrap();
    let plain = |entry: &LeaseEntry| (entry.class_index, entry.block_index, entry.slots.to_vec());
    assert_eq!(found, lease.entries().iter().map(plain).collect::<Vec<_>>());
    assert_eq!(found.len(), 5);
    assert_eq!(twin.skipped(), lease.skipped());
    assert!(twin.entries().is_empty());
    assert_eq!(twin.commit(&vec![[7]; found.len()]), Ok(5));
    assert_eq!(shown.depth("abcdef"), 6);
    assert_eq!(shown.cache.audit(), None);
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
            pages: 6,
            host: 5,
            missing: Some(Missing::Window),
            asking: false,
            coming: 5,
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
            pages: 4,
            host: 4,
            missing: None,
            asking: false,
            coming: 4,
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
    let small = Small::hybrid(8);
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

#[test]
fn a_lease_names_what_is_left_to_load() {
    let small = Small::hybrid(16);
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
    let small = Small::hybrid(6);
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

/// A hybrid with four pages of `abcd` and no checkpoint.
fn bare() -> Small {
    let small = Small::hybrid(16);
    small.store("abcd", &pages(0..4));
    small
}

#[test]
fn nothing_is_missing_where_the_pages_end() {
    let small = bare();
    assert_eq!(small.hit("x").missing, None);
    small.store("abcd", &[(1, 3)]);
    assert_eq!(small.hit("abcdef").missing, None);
    assert_eq!(small.hit("ab").missing, Some(Missing::NeverMade));
}

#[test]
fn a_checkpoint_in_writing_is_told_apart_until_it_ends() {
    let small = bare();
    let mut writing = small.reserve("abcd", &[(1, 1)]);
    assert_eq!(small.hit("abcd").missing, Some(Missing::Writing));
    assert_eq!(small.hit("a").missing, Some(Missing::NeverMade));
    writing.abort();
    assert_eq!(small.hit("abcd").missing, Some(Missing::NeverMade));
    small.store("abcd", &[(1, 1)]);
    assert_eq!(small.hit("ab").missing, None);
    assert_eq!(small.hit("abcd").missing, Some(Missing::NeverMade));
}

#[test]
fn a_checkpoint_that_went_is_remembered_with_its_page() {
    // Room for four pages and a checkpoint: another checkpoint takes the place of the first.
    let small = Small::new(&[PAGE, CHECKPOINT], 5);
    small.store("abcd", &[(0, 0), (0, 1), (1, 1)]);
    small.store("abcd", &pages(2..4));
    small.store("abcd", &[(1, 3)]);
    assert_eq!(small.stats().evicted_checkpoints, 1);
    assert_eq!(small.hit("abcd").missing, None);
    assert_eq!(small.hit("abc").missing, Some(Missing::Evicted));
    assert_eq!(small.hit("a").missing, Some(Missing::NeverMade));
    // A write that is given up leaves what was; one that is not ends it.
    let mut writing = small.reserve("ab", &[(1, 1)]);
    assert_eq!(writing.entries().len(), 1);
    assert_eq!(small.hit("abc").missing, Some(Missing::Writing));
    writing.abort();
    assert_eq!(small.hit("abc").missing, Some(Missing::Evicted));
    small.store("ab", &[(1, 1)]);
    assert_eq!(small.hit("ab").missing, None);
    assert_eq!(small.hit("abc").missing, Some(Missing::NeverMade));
}

#[test]
fn what_a_page_takes_with_it_is_forgotten() {
    let small = bare();
    small.store("abcd", &[(1, 3)]);
    let lease = small.acquire("abcd", 3).unwrap();
    assert_eq!(small.cache.invalidate(&lease), Ok(2));
    small.store("abcd", &pages(3..4));
    assert_eq!(small.hit("abcd").pages, 4);
    assert_eq!(small.hit("abcd").missing, Some(Missing::NeverMade));
}

#[test]
fn of_several_reasons_the_one_nearest_to_a_hit_counts() {
    // Room for four pages and two checkpoints.
    let small = Small::new(&[PAGE, class(ClassKind::Window, 1, 1), CHECKPOINT], 6);
    let missing = || small.hit("abcd").missing;
    small.store("abcd", &pages(0..4));
    assert_eq!(missing(), Some(Missing::NeverMade));
    // Whether a reason lies deeper than others or not doesn't matter.
    small.store("ab", &[(2, 1)]);
    assert_eq!(missing(), Some(Missing::Window));
    small.store("abcd", &[(2, 3)]);
    assert_eq!(missing(), Some(Missing::Window));
    small.store("a", &[(2, 0)]);
    assert_eq!(small.stats().evicted_checkpoints, 1);
    assert_eq!(missing(), Some(Missing::Evicted));
    let writing = small.reserve("abc", &[(2, 2)]);
    assert_eq!(small.stats().evicted_checkpoints, 2);
    assert_eq!(missing(), Some(Missing::Writing));
    drop(writing);
    assert_eq!(missing(), Some(Missing::Evicted));
    // What lies before the hit doesn't count, nor what lies behind the last page.
    assert_eq!(small.hit("a").missing, Some(Missing::Window));
    small.store("abcd", &[(1, 1), (2, 1)]);
    assert_eq!(small.hit("abc").blocks, 2);
    assert_eq!(small.hit("abc").missing, Some(Missing::NeverMade));
}

#[test]
fn without_checkpoints_only_a_window_can_be_missing() {
    let small = Small::new(&[PAGE, class(ClassKind::Window, 1, 1)], 16);
    small.store("abcd", &[(0, 0), (0, 1), (0, 2), (1, 1)]);
    assert_eq!(small.hit("ab").missing, None);
    assert_eq!(small.hit("abcd").missing, Some(Missing::Window));
    let _writing = small.reserve("abcd", &[(1, 2)]);
    assert_eq!(small.hit("abcd").missing, Some(Missing::Window));
    assert_eq!(Small::new(&[PAGE], 4).hit("abcd").missing, None);
}

#[test]
fn without_attention_nothing_says_how_deep_a_hit_could_be() {
    let small = Small::new(&[CHECKPOINT], 1);
    small.store("abcd", &[(0, 3)]);
    let writing = small.reserve("abcd", &[(0, 1)]);
    assert_eq!(writing.entries().len(), 1);
    let found = small.hit("abcd");
    assert_eq!(found.coming, 2);
    assert_eq!(Hit { coming: 0, ..found }, Hit::default());
}
