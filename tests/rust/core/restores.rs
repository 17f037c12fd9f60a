//! Restores: a hit comes back from the tiers below as one wave, or in waves if the host can't hold it.

use crate::tiers_support;

use hybrid_pages::cache::RestoreProgress;
use hybrid_pages::ids::ClassKind;
use hybrid_pages::policy::EntryKind;
use tiers_support::cache_support::{class, pages, whole};
use tiers_support::{Engine, Handle, LARGE, Size, hybrid};

const LONG: &str = "abcdefghijklmnopqrst";

/// A tier that has `LONG` with checkpoints after 4, 12 and 20 blocks, under a host of so many slots.
fn small_host(slots: usize) -> (Engine, Handle) {
    let (engine, shelf) = Engine::hybrid(64);
    let checkpoints = vec![(1, 3), (1, 11), (1, 19)];
    assert_eq!(
        engine.store(LONG, &[pages(0..20), checkpoints].concat()),
        23
    );
    engine.cache.poll();
    drop(engine);
    (
        Engine::new(&hybrid(), slots, &[(shelf.clone(), LARGE)]),
        shelf,
    )
}

fn all_of(first: usize) -> Vec<(usize, usize)> {
    [pages(first..20), vec![(1, 19)]].concat()
}

#[test]
fn what_fits_is_one_wave_that_every_lookup_sees() {
    let (engine, shelf) = Engine::hybrid(8);
    engine.store_below("abc");
    engine.store_below("xyz");
    engine.store_below("uvw");
    shelf.pause();
    let mut restore = engine.restore("abcd", 0).unwrap();
    assert!(restore.whole());
    assert_eq!((restore.first(), restore.blocks()), (0, 3));
    assert_eq!(restore.progress(), RestoreProgress::Waiting);
    assert!(restore.take().is_none());
    shelf.resume();
    assert_eq!(restore.progress(), RestoreProgress::Ready);
    assert_eq!(engine.depths("abc"), (3, 3));
    let mut lease = restore.take().unwrap();
    assert_eq!(engine.check("abc", &lease), 3);
    assert_eq!(lease.entries().len(), 4);
    assert_eq!(restore.progress(), RestoreProgress::Done);
    drop(restore);
    engine.check("abc", &lease);
    lease.release();
    assert_eq!(engine.cache.stats().leased_slots, 0);
}

#[test]
fn what_the_host_has_needs_no_restore() {
    let (engine, _shelf) = Engine::hybrid(8);
    engine.store_below("abc");
    assert!(engine.restore("abc", 0).is_none());
    assert!(engine.restore("x", 0).is_none());
    engine.store_below("uvwxyz");
    assert!(engine.restore("abc", 3).is_none(), "the engine has it all");
    assert!(engine.restore("abc", 2).is_some());
    let alone = Engine::new(&hybrid(), 8, &[]);
    assert!(alone.restore("abc", 0).is_none());
}

#[test]
fn what_was_brought_up_is_held_until_its_request_asks_again() {
    let (engine, _shelf) = Engine::hybrid(8);
    for prompt in ["abc", "xyz"] {
        engine.store_below(prompt);
    }
    engine.store_below("rstuvw"); // All of the host.
    let mut first = engine.restore("abc", 0).unwrap();
    let mut second = engine.restore("xyz", 0).unwrap();
    assert_eq!(first.progress(), RestoreProgress::Ready);
    // Eight slots are too few for both: one waits, and neither takes the other's.
    for _ in 0..3 {
        assert_eq!(second.progress(), RestoreProgress::Queued);
        assert_eq!(first.progress(), RestoreProgress::Ready);
    }
    assert_eq!(engine.take_all("abc", &mut first).len(), 4);
    assert_eq!(second.progress(), RestoreProgress::Ready);
    assert_eq!(engine.take_all("xyz", &mut second).len(), 4);
    assert_eq!(engine.tier().read, 8, "each entry once");
    assert_eq!(engine.cache.restores().failed, 0);
}

#[test]
fn a_prompt_larger_than_the_host_comes_in_waves() {
    for slots in [3, 5, 8, 12] {
        let (engine, _shelf) = small_host(slots);
        assert_eq!(engine.depths(LONG), (20, 0));
        let mut restore = engine.restore(LONG, 0).unwrap();
        assert!(!restore.whole());
        let mut waves = 0;
        let mut taken = Vec::new();
        while restore.progress() == RestoreProgress::Ready {
            let lease = restore.take().unwrap();
            engine.check(LONG, &lease);
            let places = lease.entries().iter();
            taken.extend(places.map(|entry| (entry.class_index, entry.block_index)));
            assert!(lease.first() < lease.blocks());
            waves += 1;
        }
        assert_eq!(restore.progress(), RestoreProgress::Done);
        assert_eq!(taken, all_of(0), "in order, the checkpoint last");
        assert!(waves >= 20 / slots, "{waves} waves with {slots} slots");
        assert_eq!(engine.tier().read, 21);
        assert_eq!(engine.cache.restores().in_waves, 1);
        drop(restore);
        assert_eq!(engine.cache.restores().in_waves, 0);
        assert_eq!(
            engine.cache.stats().free_slots as usize,
            slots,
            "nothing stays"
        );
        assert_eq!(engine.depths(LONG), (20, 0));
    }
}

#[test]
fn only_what_the_engine_lacks_is_read() {
    let (engine, _shelf) = small_host(64);
    let mut restore = engine.restore(LONG, 15).unwrap();
    assert!(!restore.whole(), "the host has not what it would hang from");
    assert_eq!(engine.take_all(LONG, &mut restore), all_of(15));
    assert_eq!(engine.tier().read, 6);
    drop(restore);
    // With the pages before it in the host, it stays there.
    assert!(engine.promote(&LONG[..4]));
    engine.cache.poll();
    let mut restore = engine.restore(LONG, 3).unwrap();
    assert!(restore.whole());
    assert_eq!(engine.take_all(LONG, &mut restore), all_of(3));
    assert_eq!(engine.depths(LONG), (20, 20));
}

#[test]
fn a_wave_takes_what_the_host_has_from_there() {
    let (engine, _shelf) = small_host(16);
    assert!(engine.promote(&LONG[..5]));
    engine.cache.poll();
    assert_eq!(engine.depths(LONG), (20, 4));
    let mut restore = engine.restore(LONG, 0).unwrap();
    assert_eq!(engine.take_all(LONG, &mut restore), all_of(0));
    assert_eq!(engine.tier().read, 5 + 17, "four pages are not read again");
}

#[test]
fn the_next_wave_is_read_while_one_is_loaded() {
    let (engine, shelf) = small_host(12);
    let mut restore = engine.restore(LONG, 0).unwrap();
    assert_eq!(restore.progress(), RestoreProgress::Ready);
    let first = restore.take().unwrap();
    shelf.pause();
    assert_eq!(restore.progress(), RestoreProgress::Waiting);
    assert_eq!(shelf.lock().under_way(), 3);
    shelf.resume();
    assert_eq!(restore.progress(), RestoreProgress::Ready);
    let second = restore.take().unwrap();
    engine.check(LONG, &first);
    engine.check(LONG, &second);
    assert_eq!(first.blocks(), second.first());
}

#[test]
fn without_room_a_wave_waits_and_holds_nothing() {
    let (engine, _shelf) = small_host(12);
    let writer = engine.reserve("uvwxyzuvwxyz", &pages(0..12));
    let mut restore = engine.restore(LONG, 0).unwrap();
    assert_eq!(restore.progress(), RestoreProgress::Queued);
    assert_eq!(engine.cache.stats().leased_slots, 12);
    drop(writer);
    assert_eq!(engine.take_all(LONG, &mut restore), all_of(0));
}

#[test]
fn first_waves_leave_room_for_later_ones() {
    let (engine, _shelf) = small_host(12);
    let mut all: Vec<_> = (0..6).map(|_| engine.restore(LONG, 0).unwrap()).collect();
    let ready = |all: &mut Vec<hybrid_pages::cache::Restore>| -> Vec<bool> {
        let restores = all.iter_mut();
        restores
            .map(|it| it.progress() == RestoreProgress::Ready)
            .collect()
    };
    assert_eq!(ready(&mut all), [true, true, true, false, false, false]);
    // The engine has blocks for one request alone: it must come to its end.
    assert_eq!(engine.take_all(LONG, &mut all[1]), all_of(0));
    drop(all.remove(1));
    assert_eq!(ready(&mut all), [true, true, true, false, false]);
    for mut restore in all {
        assert_eq!(engine.take_all(LONG, &mut restore), all_of(0));
    }
}

#[test]
fn a_damaged_entry_costs_a_shallower_hit_before_the_first_wave() {
    for slots in [64, 12] {
        let (engine, shelf) = small_host(slots);
        let last = tiers_support::cache_support::keys(LONG)[19];
        for (key, (bytes, _)) in &mut shelf.lock().entries {
            if key.prefix == last && key.class_index == 1 {
                bytes[0] ^= 1;
            }
        }
        let mut restore = engine.restore(LONG, 0).unwrap();
        engine.take_all(LONG, &mut restore);
        assert_eq!(restore.progress(), RestoreProgress::Failed);
        assert_eq!(restore.progress(), RestoreProgress::Failed);
        assert_eq!(engine.cache.restores().failed, 1);
        drop(restore);
        assert_eq!(engine.depths(LONG).0, 12, "of {slots} slots");
        assert_eq!(engine.tier().corrupt_reads, 1);
        let again = engine.restore(LONG, 0);
        let taken = again.map(|mut restore| engine.take_all(LONG, &mut restore));
        let expected = [pages(0..12), vec![(1, 11)]].concat();
        assert!(taken.is_none_or(|taken| taken == expected));
    }
}

#[test]
fn a_failed_wave_ends_the_restore_and_costs_its_entry() {
    let (engine, shelf) = small_host(12);
    let mut restore = engine.restore(LONG, 0).unwrap();
    assert_eq!(restore.progress(), RestoreProgress::Ready);
    let lease = restore.take().unwrap();
    shelf.lock().fail_reads = 1;
    assert_eq!(restore.progress(), RestoreProgress::Failed);
    assert!(restore.take().is_none());
    engine.check(LONG, &lease);
    drop(lease);
    drop(restore);
    assert_eq!(engine.cache.stats().leased_slots, 0);
    assert_eq!(engine.hit(LONG).pages, 3);
    assert_eq!(engine.tier().failed_reads, 1);
}

#[test]
fn what_is_computed_after_a_failure_is_stored_whole() {
    let whole = [pages(0..4), vec![(1, 3)]].concat();
    for first in 0..whole.len() {
        let (engine, shelf) = Engine::hybrid(64);
        engine.store("abcd", &whole);
        engine.cache.poll();
        drop(engine);
        let start = || Engine::new(&hybrid(), 64, &[(shelf.clone(), LARGE)]);
        let engine = start();
        shelf.pause();
        shelf.lock().damage_reads = whole.len();
        let mut restore = engine.restore("abcd", 0).unwrap();
        assert_eq!(restore.progress(), RestoreProgress::Waiting);
        {
            let mut shelf = shelf.lock();
            (shelf.ends, shelf.order) = (Some(1), [first].into());
        }
        // One is damaged, and the others are still being read.
        assert_eq!(restore.progress(), RestoreProgress::Waiting);
        shelf.resume();
        assert_eq!(restore.progress(), RestoreProgress::Failed);
        drop(restore);
        shelf.lock().damage_reads = 0;
        assert_eq!(engine.store("abcd", &whole), whole.len());
        engine.cache.poll();
        drop(engine);
        assert_eq!(start().hit("abcd").blocks, 4, "read {first} ended first");
    }
}

#[test]
fn a_restore_that_ends_early_leaves_its_slots_to_the_reads() {
    for slots in [12, 64] {
        let (engine, shelf) = small_host(slots);
        shelf.pause();
        let mut restore = engine.restore(LONG, 0).unwrap();
        assert_eq!(restore.progress(), RestoreProgress::Waiting);
        restore.end();
        assert_eq!(restore.progress(), RestoreProgress::Failed);
        engine.audit();
        assert!(
            engine.cache.stats().leased_slots > 0,
            "they are being filled"
        );
        shelf.resume();
        engine.cache.poll();
        assert_eq!(engine.cache.stats().leased_slots, 0);
        assert_eq!(engine.cache.restores().failed, 0);
    }
}

#[test]
fn nothing_of_before_a_clear_is_handed_out() {
    for slots in [12, 64] {
        let (mut engine, shelf) = small_host(slots);
        shelf.pause();
        let mut restore = engine.restore(LONG, 0).unwrap();
        assert_eq!(restore.progress(), RestoreProgress::Waiting);
        engine.cache.clear();
        engine.weights += 1;
        shelf.resume();
        assert_eq!(restore.progress(), RestoreProgress::Failed);
        engine.store(LONG, &pages(0..3));
        assert!(restore.take().is_none());
        drop(restore);
        engine.audit();
        // Ready before, and cleared then.
        let (engine, _shelf) = small_host(slots);
        let mut restore = engine.restore(LONG, 0).unwrap();
        assert_eq!(restore.progress(), RestoreProgress::Ready);
        engine.cache.clear();
        assert!(restore.take().is_none());
        assert_eq!(restore.progress(), RestoreProgress::Failed);
    }
}

#[test]
fn what_a_restore_needs_is_not_evicted_below() {
    let shelf = Handle::default();
    let below = [(
        shelf.clone(),
        Size {
            slots: 24,
            queue: 50,
        },
    )];
    let engine = Engine::new(&hybrid(), 64, &below);
    engine.store(LONG, &[pages(0..20), vec![(1, 19)]].concat());
    engine.cache.poll();
    drop(engine);
    let engine = Engine::new(&hybrid(), 12, &below);
    let mut restore = engine.restore(LONG, 0).unwrap();
    assert_eq!(restore.progress(), RestoreProgress::Ready);
    drop(restore.take().unwrap());
    // Other prompts go down meanwhile: there is room for two slots of theirs.
    engine.store_below("uv");
    engine.store_below("xyz");
    assert_eq!(shelf.count(LONG), 21);
    engine.audit();
    assert_eq!(engine.take_all(LONG, &mut restore).len(), 21 - 3);
    drop(restore);
    engine.store_below("123");
    assert_eq!(shelf.count("123"), 4, "afterwards it may go");
    assert!(shelf.count(LONG) < 21);
}

#[test]
fn two_restores_share_what_is_kept() {
    let (engine, _shelf) = small_host(12);
    let mut first = engine.restore(LONG, 0).unwrap();
    let mut second = engine.restore(&LONG[..12], 0).unwrap();
    engine.take_all(LONG, &mut first);
    drop(first);
    engine.audit();
    engine.take_all(LONG, &mut second);
    drop(second);
    engine.audit();
    assert!(engine.promote(&LONG[..4]));
}

#[test]
fn windows_come_with_the_last_wave() {
    let classes = [
        class(ClassKind::Attention, 0, 1),
        class(ClassKind::Window, 2, 1),
        class(ClassKind::Recurrent, 0, 2),
    ];
    let shelf = Handle::default();
    let below = [(shelf.clone(), LARGE)];
    let engine = Engine::new(&classes, 64, &below);
    let end = vec![(1, 18), (1, 19), (2, 19)];
    engine.store(LONG, &[pages(0..20), end.clone()].concat());
    engine.cache.poll();
    drop(engine);
    let engine = Engine::new(&classes, 8, &below);
    let mut restore = engine.restore(LONG, 0).unwrap();
    let mut taken = engine.take_all(LONG, &mut restore);
    taken.sort_unstable();
    assert_eq!(taken, [pages(0..20), end].concat());
}

#[test]
fn a_share_bounds_what_passes_through() {
    let (engine, shelf) = Engine::hybrid(64);
    engine.store(LONG, &whole(LONG));
    engine.cache.poll();
    drop(engine);
    let below = [(shelf, LARGE)];
    let engine = Engine::with_share(&hybrid(), 16, &below, "lru", Some(4));
    let mut restore = engine.restore(LONG, 0).unwrap();
    let mut taken = 0;
    while restore.progress() == RestoreProgress::Ready {
        let lease = restore.take().unwrap();
        engine.audit();
        assert!(engine.cache.stats().leased_slots <= 4);
        taken += lease.entries().len();
    }
    assert_eq!(taken, 21);
}

#[test]
fn a_namespace_lasts_as_long_as_a_restore_of_it() {
    let (engine, shelf) = small_host(12);
    let mut restore = engine.restore(LONG, 0).unwrap();
    assert_eq!(restore.progress(), RestoreProgress::Ready);
    drop(restore.take());
    engine.cache.release_namespace(engine.namespace).unwrap();
    // The first page goes, and with it everything of the namespace.
    engine.cache.clear();
    assert_eq!(restore.progress(), RestoreProgress::Failed);
    assert!(engine.cache.lookup(engine.namespace, &[]).is_ok());
    drop(restore);
    assert!(engine.cache.lookup(engine.namespace, &[]).is_err());
    drop(shelf);
}

#[test]
fn a_promotion_without_room_reads_up_to_a_shallower_boundary() {
    for (slots, depth) in [
        (3, 0),
        (5, 0),
        (6, 4),
        (13, 4),
        (14, 12),
        (21, 12),
        (22, 20),
    ] {
        let (engine, _shelf) = small_host(slots);
        assert_eq!(engine.promote(LONG), depth > 0, "{slots} slots");
        engine.cache.poll();
        assert_eq!(engine.depths(LONG), (20, depth));
        assert!(!engine.promote(LONG), "asked again, it is content");
        assert_eq!(engine.load(LONG), depth);
        let shallower = u64::from(depth > 0 && depth < 20);
        assert_eq!(engine.cache.restores().shallower, shallower);
    }
}

/// Another process puts the same entries into a nearer tier, which the restore does not pin.
#[test]
fn a_restore_reads_from_the_tier_that_it_has_pinned() {
    let (one, two) = (Handle::default(), Handle::default());
    one.lock().is_shared = true;
    one.lock().declines = vec![EntryKind::Page];
    let classes = [class(ClassKind::Attention, 0, 1)];
    let below = [(one.clone(), LARGE), (two.clone(), LARGE)];
    let engine = Engine::new(&classes, 4, &below);
    for prompt in ["abc", "wxyz"] {
        engine.store(prompt, &pages(0..prompt.len()));
        engine.cache.poll();
    }
    let mut restore = engine.restore("abc", 1).unwrap();
    assert!(!restore.whole());
    one.lock().entries = two.lock().entries.clone();
    assert_eq!(engine.hit("abc").blocks, 3);
    one.lock().fail_reads = usize::MAX;
    assert_eq!(engine.take_all("abc", &mut restore), [(0, 1), (0, 2)]);
    assert_eq!(engine.cache.restores().failed, 0);
}
