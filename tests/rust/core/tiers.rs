//! Tiers below the host: entries go down when they are published, stay known when the host evicts them,
//! and come back when a lookup needs them.

use crate::tiers_support;

use hybrid_pages::cache::{Cache, CacheConfig};
use hybrid_pages::error::Error;
use hybrid_pages::ids::ClassKind;
use hybrid_pages::policy::EntryKind;
use hybrid_pages::tier::CopyId;
use tiers_support::cache_support::{class, keys, pages, whole};
use tiers_support::{Engine, Handle, LARGE, Size, hybrid};

#[test]
fn what_is_published_goes_down_with_its_bytes() {
    let (engine, shelf) = Engine::hybrid(16);
    let mut lease = engine.reserve("abc", &whole("abc"));
    engine.cache.poll();
    assert_eq!(shelf.lock().under_way(), 0, "nothing is published yet");
    engine.commit("abc", &mut lease);
    engine.cache.poll();
    assert_eq!(shelf.places(), [(0, 0), (0, 1), (0, 2), (1, 2)]);
    for (key, (bytes, _)) in &shelf.lock().entries {
        assert_eq!(&key.namespace[..], b"engine");
        assert_eq!(key.prefix, keys("abc")[key.block_index]);
        let expected = engine.bytes(key.class_index, &"abc"[..=key.block_index]);
        assert_eq!(*bytes, expected);
    }
    let tier = engine.tier();
    assert_eq!((tier.name.as_str(), tier.written), ("memory", 4));
    assert_eq!((tier.usage.entries, tier.usage.free), (4, 95));
    assert_eq!(engine.cache.stats().leased_slots, 0);
}

#[test]
fn what_leaves_the_process_has_checksums() {
    let (engine, shelf) = Engine::hybrid(16);
    let mut lease = engine.reserve("abc", &whole("abc"));
    match lease.commit_without_checksums() {
        Err(Error::InvalidArgument(why)) => assert!(why.contains("tiers below"), "{why}"),
        other => panic!("expected an invalid argument, found {other:?}"),
    }
    engine.cache.poll();
    assert_eq!((shelf.places(), lease.ended()), (vec![], false));
    engine.commit("abc", &mut lease);
    engine.cache.poll();
    assert_eq!(shelf.places().len(), 4);
}

#[test]
fn an_aborted_write_goes_nowhere() {
    let (engine, shelf) = Engine::hybrid(16);
    drop(engine.reserve("abc", &whole("abc")));
    engine.cache.poll();
    assert_eq!((shelf.places(), engine.tier().written), (vec![], 0));
}

#[test]
fn while_bytes_go_down_the_host_keeps_them_and_nobody_waits() {
    let (engine, shelf) = Engine::hybrid(5);
    shelf.pause();
    engine.store_prompt("abc");
    assert_eq!(engine.load("abc"), 3, "the host serves meanwhile");
    assert_eq!(engine.cache.stats().leased_slots, 5);
    // Another prompt isn't stored rather than made to wait.
    assert_eq!(engine.reserve("xyz", &whole("xyz")).skipped().no_room, 4);
    shelf.resume();
    engine.cache.poll();
    assert_eq!(engine.cache.stats().leased_slots, 0);
    engine.store_prompt("xyz");
}

#[test]
fn the_host_evicts_what_a_tier_below_keeps() {
    let (engine, _shelf) = Engine::hybrid(5);
    engine.store_below("abc");
    engine.store_prompt("xyz");
    assert_eq!(engine.depths("abc"), (3, 0));
    assert_eq!(engine.depths("xyz"), (3, 3));
    assert_eq!(engine.cache.stats().nodes, 6);
    assert_eq!(engine.cache.stats().pages, 3, "counts are the host's");
    // The host alone serves who can't wait.
    assert!(engine.acquire("abc").is_none());
}

#[test]
fn what_no_tier_below_has_is_forgotten_with_its_host_entry() {
    let (engine, shelf) = Engine::hybrid(5);
    shelf.lock().declines = vec![EntryKind::Checkpoint];
    engine.store_below("abc");
    engine.store_prompt("xyz");
    let hit = engine.hit("abc");
    assert_eq!((hit.blocks, hit.pages), (0, 3));
    assert_eq!(engine.tier().declined, 2);
}

#[test]
fn a_promotion_reads_verifies_and_publishes() {
    let (engine, shelf) = Engine::hybrid(5);
    engine.store_below("abc");
    engine.store_below("xyz");
    shelf.pause();
    assert!(engine.promote("abc"));
    assert!(
        engine.promote("abc"),
        "one read per entry, however often it is asked for"
    );
    assert_eq!(shelf.lock().under_way(), 4);
    assert_eq!(engine.depths("abc"), (3, 0));
    assert!(engine.acquire("abc").is_none());
    engine.audit();
    shelf.lock().ends = Some(2);
    assert!(engine.promote("abc"));
    assert_eq!(engine.depths("abc"), (3, 0), "pages alone are no hit");
    shelf.resume();
    assert!(!engine.promote("abc"));
    assert_eq!(engine.depths("abc"), (3, 3));
    assert_eq!(engine.load("abc"), 3);
    assert_eq!(engine.tier().read, 4);
    assert_eq!(engine.cache.stats().leased_slots, 0);
    // It left nothing behind that a second promotion would read.
    assert_eq!(engine.depths("xyz"), (3, 0));
}

#[test]
fn a_promotion_reads_only_what_the_host_lacks_and_the_request_needs() {
    let (engine, shelf) = Engine::hybrid(16);
    engine.store("abcd", &[pages(0..4), vec![(1, 1), (1, 3)]].concat());
    engine.store_prompt("uvwxyz");
    engine.store("ab", &pages(0..2)); // There already: this only counts as a use.
    engine.cache.poll();
    engine.store_prompt("rstuvw"); // Evicts what was used longest ago: of `abcd` all but two pages.
    engine.cache.poll();
    assert_eq!(engine.depths("abcd"), (4, 0));
    let asked = |first| engine.cache.promote(engine.namespace, &keys("abcd"), first);
    assert_eq!(asked(4), Ok(false), "the engine has it all");
    shelf.pause();
    assert_eq!(asked(3), Ok(true));
    assert_eq!(
        shelf.lock().under_way(),
        3,
        "two pages and the last checkpoint"
    );
    shelf.resume();
    engine.cache.poll();
    assert_eq!(engine.load("abcd"), 4);
}

#[test]
fn bytes_that_changed_below_are_never_seen() {
    for rank in 0..2 {
        let (engine, shelf) = Engine::hybrid(5);
        engine.store_below("abc");
        engine.store_prompt("xyz");
        for (key, (bytes, _)) in &mut shelf.lock().entries {
            if (key.class_index, key.prefix) == (0, keys("abc")[1]) {
                bytes[rank * 16] ^= 1;
            }
        }
        assert!(engine.promote("abc"));
        assert!(!engine.promote("abc"), "the next lookup is honest");
        let hit = engine.hit("abc");
        assert_eq!((hit.blocks, hit.pages, hit.host), (0, 1, 0));
        assert_eq!(engine.tier().corrupt_reads, 1);
        assert_eq!(shelf.count("abc"), 1, "what hung from it left, too");
        assert_eq!(engine.cache.stats().leased_slots, 0);
        assert_eq!(engine.store("abc", &whole("abc")), 3);
        assert_eq!(engine.load("abc"), 3);
    }
}

#[test]
fn a_read_that_fails_costs_its_place() {
    let (engine, shelf) = Engine::hybrid(5);
    engine.store_below("abc");
    engine.store_below("xyz");
    shelf.pause();
    assert!(engine.promote("abc"));
    shelf.lock().fail_reads = 1;
    shelf.resume();
    engine.cache.poll();
    assert_eq!(engine.depths("abc"), (0, 0));
    let tier = engine.tier();
    assert_eq!((tier.failed_reads, tier.corrupt_reads), (1, 0));
    assert_eq!(tier.usage.entries, 4, "those of the other prompt");
    assert_eq!(engine.cache.stats().free_slots, 5);
}

#[test]
fn a_write_that_fails_costs_that_write_and_is_offered_again() {
    let (engine, shelf) = Engine::hybrid(16);
    shelf.lock().fail_writes = 1;
    engine.store_below("abc");
    let tier = engine.tier();
    assert_eq!((tier.failed_writes, tier.usage.entries), (1, 0));
    assert_eq!(shelf.places(), [], "nothing is kept that can't be reached");
    assert_eq!(engine.load("abc"), 3);
    // The next entry of the prefix takes along what is missing.
    engine.store("abcd", &[(0, 3), (1, 3)]);
    engine.cache.poll();
    assert_eq!(shelf.places(), [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3)]);
}

#[test]
fn a_full_queue_declines_and_the_rest_goes_down_later() {
    let shelf = Handle::default();
    let size = Size {
        slots: 50,
        queue: 3,
    };
    let engine = Engine::new(&hybrid(), 32, &[(shelf.clone(), size)]);
    shelf.pause();
    engine.store_prompt("abcdef");
    assert_eq!(shelf.lock().under_way(), 3);
    assert_eq!(
        engine.tier().declined,
        1,
        "deeper pages could not be reached"
    );
    shelf.resume();
    engine.store("abcdefg", &[(0, 6), (1, 6)]);
    engine.cache.poll();
    assert_eq!(shelf.places(), pages(0..6));
}

#[test]
fn a_tier_evicts_by_its_own_policy_and_keeps_prefixes_whole() {
    let shelf = Handle::default();
    let size = Size {
        slots: 5,
        queue: 50,
    };
    let engine = Engine::new(&hybrid(), 32, &[(shelf.clone(), size)]);
    engine.store_below("abc");
    assert_eq!(engine.tier().usage.free, 0);
    engine.store("xy", &pages(0..2));
    engine.cache.poll();
    // The checkpoint made room; it counts as used no later than the pages that it hangs from.
    assert_eq!(shelf.places(), [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2)]);
    engine.store("xyz", &pages(2..3));
    engine.cache.poll();
    assert_eq!(engine.tier().usage.evicted, 2);
    assert_eq!(shelf.count("abc"), 2, "the end of the prefix went first");
    assert_eq!(engine.load("abc"), 3, "the host keeps what it has");
}

#[test]
fn a_tier_without_room_for_a_checkpoint_keeps_the_page_that_it_hangs_from() {
    // As many pages as a store offers at once: the checkpoint comes alone.
    let prompt = "a".repeat(256);
    let shelf = Handle::default();
    let size = Size {
        slots: 257,
        queue: 1000,
    };
    let engine = Engine::new(&hybrid(), 300, &[(shelf.clone(), size)]);
    for time in 0..3 {
        engine.store(&prompt, &whole(&prompt));
        engine.audit();
        engine.cache.poll();
        engine.audit();
        assert_eq!(shelf.places(), pages(0..256), "at store {time}");
    }
    assert_eq!(engine.tier().usage.evicted, 0);
}

#[test]
fn what_is_used_in_the_host_counts_as_used_below() {
    let shelf = Handle::default();
    let size = Size {
        slots: 10,
        queue: 50,
    };
    let engine = Engine::new(&hybrid(), 32, &[(shelf.clone(), size)]);
    engine.store_prompt("abc");
    engine.store_below("xyz");
    assert_eq!(engine.load("abc"), 3);
    engine.store_below("rst");
    let left = ["abc", "xyz", "rst"].map(|prompt| shelf.count(prompt));
    assert_eq!(left, [4, 0, 4]);
}

#[test]
fn cleared_bytes_never_come_back_from_a_write_in_flight() {
    let (mut engine, shelf) = Engine::hybrid(5);
    shelf.pause();
    engine.store_prompt("abc");
    assert_eq!(engine.cache.clear(), 4);
    engine.weights += 1;
    assert_eq!(engine.depths("abc"), (0, 0));
    assert_eq!(
        engine.cache.stats().free_slots,
        0,
        "the slots are still read"
    );
    engine.audit();
    shelf.resume();
    engine.cache.poll();
    assert_eq!(engine.cache.stats().free_slots, 5);
    assert_eq!((shelf.places(), engine.depths("abc")), (vec![], (0, 0)));
    assert_eq!(engine.tier().usage.free, LARGE.slots);
    engine.store_prompt("abc");
    assert_eq!(engine.load("abc"), 3);
}

#[test]
fn cleared_bytes_never_come_back_from_a_read_in_flight() {
    let (mut engine, shelf) = Engine::hybrid(5);
    engine.store_below("abc");
    engine.store_prompt("xyz");
    shelf.pause();
    engine.cache.poll();
    let _ = engine.promote("abc");
    engine.cache.clear();
    engine.weights += 1;
    shelf.resume();
    engine.cache.poll();
    assert_eq!(
        (engine.depths("abc"), engine.depths("xyz")),
        ((0, 0), (0, 0))
    );
    assert_eq!(engine.cache.stats().free_slots, 5);
    assert_eq!(engine.cache.stats().nodes, 0);
}

#[test]
fn what_a_failed_load_drops_is_dropped_below() {
    let (engine, shelf) = Engine::hybrid(16);
    engine.store_prompt("abc");
    engine.store_below("xyz");
    let lease = engine.acquire("abc").unwrap();
    assert_eq!(engine.cache.invalidate(&lease), Ok(4));
    drop(lease);
    assert_eq!(shelf.places().len(), 4);
    assert_eq!(
        (engine.depths("abc"), engine.depths("xyz")),
        ((0, 0), (3, 3))
    );
}

#[test]
fn a_dropped_entry_does_not_come_back_from_its_write() {
    let (engine, shelf) = Engine::hybrid(16);
    shelf.pause();
    engine.store_prompt("abc");
    let lease = engine.acquire("abc").unwrap();
    assert_eq!(engine.cache.invalidate(&lease), Ok(4));
    drop(lease);
    // The same keys, written again while the old write has not ended.
    engine.store_prompt("abc");
    shelf.resume();
    engine.cache.poll();
    assert_eq!(shelf.places().len(), 4);
    assert_eq!(engine.load("abc"), 3);
    assert_eq!(engine.cache.stats().leased_slots, 0);
}

#[test]
fn a_new_cache_finds_what_the_last_one_left() {
    let (engine, shelf) = Engine::hybrid(16);
    engine.store("abcde", &[pages(0..5), vec![(1, 1), (1, 3)]].concat());
    engine.cache.poll();
    drop(engine);
    let again = Engine::new(&hybrid(), 16, &[(shelf.clone(), LARGE)]);
    assert_eq!(again.cache.stats().nodes, 0);
    let hit = again.hit("abcdef");
    assert_eq!((hit.blocks, hit.pages, hit.host), (4, 5, 0));
    assert_eq!(again.hit("abx").blocks, 2);
    assert!(again.promote("abcdef"));
    assert!(!again.promote("abcdef"));
    assert_eq!(again.load("abcdef"), 4);
    assert_eq!((again.tier().found, again.tier().usage.entries), (7, 7));
    assert_eq!(shelf.places().len(), 7);
}

#[test]
fn a_tier_is_asked_for_what_another_place_has_less_of() {
    let (first, second) = (Handle::default(), Handle::default());
    let below = [(first.clone(), LARGE), (second.clone(), LARGE)];
    let engine = Engine::new(&hybrid(), 16, &below);
    engine.store_below("abc");
    drop(engine);
    first.lock().entries.retain(|key, _| key.block_index < 1);
    let again = Engine::new(&hybrid(), 16, &below);
    assert_eq!(again.depths("abc"), (3, 0));
    let found = again
        .cache
        .tiers()
        .iter()
        .map(|tier| tier.found)
        .sum::<u64>();
    assert_eq!((found, again.hit("abc").blocks), (5, 3), "each once");
    assert!(again.promote("abc"));
    again.cache.poll();
    assert_eq!(again.load("abc"), 3);
}

#[test]
fn a_tier_with_other_bytes_of_a_page_is_not_followed_beyond_it() {
    let (engine, shelf) = Engine::hybrid(16);
    engine.store_below("abc");
    drop(engine);
    let mut again = Engine::new(&hybrid(), 16, &[(shelf.clone(), LARGE)]);
    again.weights += 1;
    shelf.lock().declines = vec![EntryKind::Page];
    let mut lease = again.reserve("a", &pages(0..1));
    again.commit("a", &mut lease);
    assert_eq!(again.hit("abc").pages, 1);
    assert_eq!(again.tier().found, 0);
}

#[test]
fn what_was_being_written_at_a_crash_is_not_found() {
    let (engine, shelf) = Engine::hybrid(16);
    shelf.lock().ends = Some(2);
    engine.store_below("abc");
    drop(engine);
    shelf.lock().crash();
    shelf.resume();
    let again = Engine::new(&hybrid(), 16, &[(shelf, LARGE)]);
    let hit = again.hit("abc");
    assert_eq!((hit.blocks, hit.pages), (0, 2));
}

#[test]
fn a_new_cache_finds_nothing_from_before_a_clear() {
    let (engine, shelf) = Engine::hybrid(16);
    engine.store_below("abc");
    engine.cache.clear();
    drop(engine);
    let again = Engine::new(&hybrid(), 16, &[(shelf, LARGE)]);
    assert_eq!(again.depths("abc"), (0, 0));
}

#[test]
fn other_namespaces_find_nothing() {
    let (engine, _shelf) = Engine::hybrid(16);
    engine.store_below("abc");
    let other = engine.cache.namespace(b"another").unwrap();
    let hit = engine.cache.lookup(other, &keys("abc")).unwrap();
    assert_eq!(hit.pages, 0);
    assert_eq!(engine.cache.promote(other, &keys("abc"), 0), Ok(false));
}

#[test]
fn a_namespace_is_known_while_a_tier_below_has_an_entry_of_it() {
    let (engine, _shelf) = Engine::hybrid(5);
    engine.store_below("abc");
    let other = engine.cache.namespace(b"another").unwrap();
    let mut lease = engine
        .cache
        .reserve(other, &keys("xyz"), &whole("xyz"))
        .unwrap();
    engine.commit("xyz", &mut lease);
    engine.cache.release_namespace(engine.namespace).unwrap();
    assert_eq!(engine.depths("abc"), (3, 0));
    engine.cache.clear();
    assert!(engine.cache.lookup(engine.namespace, &[]).is_err());
}

#[test]
fn a_namespace_may_end_with_a_read_that_a_lookup_hears_of() {
    for asks_again in [false, true] {
        let (engine, shelf) = Engine::hybrid(5);
        let namespace = engine.cache.namespace(b"gone").unwrap();
        let mut lease = engine
            .cache
            .reserve(namespace, &keys("abc"), &whole("abc"))
            .unwrap();
        engine.commit("abc", &mut lease);
        engine.cache.poll();
        engine.store_below("xyz");
        shelf.pause();
        assert_eq!(engine.cache.promote(namespace, &keys("abc"), 0), Ok(true));
        engine.cache.release_namespace(namespace).unwrap();
        // Its entries go with their first page, and the namespace with them.
        shelf.lock().fail_reads = 1;
        shelf.resume();
        if asks_again {
            assert_eq!(engine.cache.promote(namespace, &keys("abc"), 0), Ok(false));
        } else {
            let hit = engine.cache.lookup(namespace, &keys("abc")).unwrap();
            assert_eq!((hit.blocks, hit.pages), (0, 0));
        }
        assert!(engine.cache.lookup(namespace, &keys("abc")).is_err());
    }
}

#[test]
fn an_entry_that_is_only_below_is_written_to_the_host_again() {
    let (engine, _shelf) = Engine::hybrid(5);
    engine.store_below("abc");
    engine.store_below("xyz");
    let mut lease = engine.reserve("abc", &whole("abc"));
    assert_eq!(lease.entries().len(), 4);
    assert!(
        lease
            .entries()
            .iter()
            .all(|entry| entry.checksums.is_empty())
    );
    // What the tier has stays a hit, and who can't wait for the engine takes what the host has.
    assert_eq!(engine.depths("abc"), (3, 0));
    assert!(!engine.promote("abc"));
    assert_eq!(engine.reserve("abc", &whole("abc")).skipped().in_writing, 4);
    engine.commit("abc", &mut lease);
    assert_eq!(engine.load("abc"), 3);
    engine.cache.poll();
    assert_eq!(
        engine.tier().written,
        8,
        "the same bytes are not written twice"
    );
}

#[test]
fn other_bytes_replace_those_below() {
    let (mut engine, shelf) = Engine::hybrid(5);
    engine.store_below("abc");
    engine.store_below("xyz");
    engine.weights += 1; // As if a kernel had added in another order.
    engine.store_below("abc");
    assert_eq!(engine.tier().written, 12);
    for (key, (bytes, _)) in &shelf.lock().entries {
        if let Some(block) = keys("abc").iter().position(|it| *it == key.prefix) {
            assert_eq!(*bytes, engine.bytes(key.class_index, &"abc"[..=block]));
        }
    }
}

#[test]
fn a_write_that_is_given_up_leaves_what_is_below() {
    let (engine, _shelf) = Engine::hybrid(5);
    engine.store_below("abc");
    engine.store_below("xyz");
    drop(engine.reserve("abc", &whole("abc")));
    assert_eq!(engine.depths("abc"), (3, 0));
    assert_eq!(engine.cache.stats().free_slots, 5);
    assert!(engine.promote("abc"));
    engine.cache.poll();
    assert_eq!(engine.load("abc"), 3);
}

#[test]
fn a_prefix_that_is_only_below_has_to_come_back_before_it_grows() {
    let (engine, _shelf) = Engine::hybrid(6);
    engine.store_below("abc");
    engine.store_below("wxyz");
    let lease = engine.reserve("abcd", &[(0, 3)]);
    assert_eq!((lease.entries().len(), lease.skipped().orphan), (0, 1));
    assert_eq!(engine.store("abcd", &pages(0..4)), 4);
    assert_eq!(engine.hit("abcd").pages, 4);
}

#[test]
fn without_room_for_a_promotion_the_host_serves_what_it_has() {
    let (engine, shelf) = Engine::hybrid(8);
    engine.store("abcd", &[pages(0..4), vec![(1, 0), (1, 3)]].concat());
    engine.cache.poll();
    let writer = engine.reserve("wxyz", &pages(0..4)); // Evicts the end of `abcd`.
    assert_eq!(engine.depths("abcd"), (4, 1));
    assert!(!engine.promote("abcd"));
    assert_eq!(shelf.lock().under_way(), 0);
    assert_eq!(engine.load("abcd"), 1);
    drop(writer);
    assert!(engine.promote("abcd"));
    engine.cache.poll();
    assert_eq!(engine.load("abcd"), 4);
}

#[test]
fn the_next_tier_serves_when_one_is_damaged() {
    let (first, second) = (Handle::default(), Handle::default());
    let below = [(first.clone(), LARGE), (second.clone(), LARGE)];
    let engine = Engine::new(&hybrid(), 5, &below);
    engine.store_below("abc");
    engine.store_below("xyz");
    first.lock().damage_reads = 1;
    assert!(engine.promote("abc"));
    assert_eq!(engine.depths("abc"), (3, 0), "the second tier has it");
    assert!(engine.promote("abc"));
    engine.cache.poll();
    assert_eq!(engine.load("abc"), 3);
    let tiers = engine.cache.tiers();
    assert_eq!((tiers[0].corrupt_reads, tiers[1].corrupt_reads), (1, 0));
    assert!(tiers[1].read > 0);
    // It is not offered to the first tier before it is published again.
    assert_eq!((first.places().len(), second.places().len()), (4, 8));
}

#[test]
fn window_pages_and_checkpoints_alone_stand_below_by_themselves() {
    let classes = [
        class(ClassKind::Window, 2, 1),
        class(ClassKind::Recurrent, 0, 1),
    ];
    let shelf = Handle::default();
    let engine = Engine::new(&classes, 3, &[(shelf, LARGE)]);
    let entries = [(0, 1), (0, 2), (1, 2)];
    assert_eq!(engine.store("abc", &entries), 3);
    engine.cache.poll();
    assert_eq!(engine.store("xyz", &entries), 3);
    assert_eq!(engine.depths("abc"), (3, 0));
    engine.cache.poll();
    assert!(engine.promote("abc"));
    engine.cache.poll();
    assert_eq!(engine.load("abc"), 3);
}

#[test]
fn copies_end_in_any_order_and_once() {
    let (engine, shelf) = Engine::hybrid(16);
    engine.store_prompt("abc");
    shelf.lock().order.extend([3, 0, 1]);
    engine.cache.poll();
    assert_eq!(engine.tier().written, 4);
    shelf.lock().invented.extend([0, 3, 1000].map(CopyId));
    engine.cache.poll();
    assert_eq!(engine.tier().written, 4);
}

#[test]
fn a_cache_without_tiers_has_nothing_to_promote() {
    let engine = Engine::new(&hybrid(), 16, &[]);
    engine.store_prompt("abc");
    assert!(!engine.promote("abc"));
    assert_eq!(engine.cache.tiers(), []);
    assert_eq!(engine.depths("abc"), (3, 3));
    let unknown = engine
        .cache
        .promote(hybrid_pages::ids::NamespaceId(7), &[], 0);
    assert!(matches!(unknown, Err(Error::InvalidArgument(_))));
}

#[test]
fn more_room_than_names_for_entries_is_rejected() {
    let config = CacheConfig {
        classes: hybrid(),
        ranks: 1,
        slots: (1 << 30) + 1,
        slot_bytes: 1,
        policy: "lru".into(),
        tenant_slots: None,
    };
    assert!(matches!(
        Cache::new(&config),
        Err(Error::InvalidArgument(_))
    ));
}
