//! Reads that failed: what they were for is found again, where it has a place.

use crate::tiers_support;

use hybrid_pages::ids::{ClassKind, EntryKey};
use hybrid_pages::policy::EntryKind;
use tiers_support::cache_support::{class, keys, pages, whole};
use tiers_support::{Engine, Handle, LARGE, Size, hybrid};

/// The name of an entry at the end of a prompt.
fn end(prompt: &str, class_index: usize) -> EntryKey {
    let block_index = prompt.len() - 1;
    EntryKey {
        namespace: b"engine"[..].into(),
        prefix: keys(prompt)[block_index],
        block_index,
        class_index,
    }
}

fn checkpoint(prompt: &str) -> EntryKey {
    end(prompt, 1)
}

#[test]
fn what_a_read_failed_for_is_not_found_again_where_its_page_has_left() {
    let shelf = Handle::default();
    let size = Size {
        slots: 14,
        queue: 50,
    };
    let engine = Engine::new(&hybrid(), 12, &[(shelf.clone(), size)]);
    for prompt in ["abc", "xyz"] {
        engine.store_below(prompt);
    }
    engine.store("klmn", &pages(0..4));
    engine.cache.poll();
    // The host has evicted the checkpoint, which can't be read now. The tier has it still.
    shelf.pause();
    assert!(engine.promote("abc"));
    let name = checkpoint("abc");
    let entry = shelf.lock().entries[&name].clone();
    shelf.lock().fail_reads = 1;
    shelf.resume();
    engine.cache.poll();
    assert_eq!(engine.tier().failed_reads, 1);
    shelf.lock().entries.insert(name, entry);
    // The host holds the pages, and the tier evicts them.
    let held = engine.reserve("abcd", &[(0, 3)]);
    for prompt in ["stuv", "efgh", "qrst"] {
        engine.store(prompt, &pages(0..4));
        engine.cache.poll();
    }
    assert_eq!(shelf.count("abc"), 1, "the checkpoint");
    assert_eq!(engine.depths("abc").0, 0);
    assert_eq!(engine.cache.audit(), None);
    drop(held);
    assert_eq!(engine.cache.audit(), None);
}

#[test]
fn what_reads_failed_for_is_found_again_after_many_others_have_failed_and_gone() {
    let shelf = Handle::default();
    let size = Size {
        slots: 9_000,
        queue: 9_000,
    };
    let engine = Engine::new(&hybrid(), 3_000, &[(shelf.clone(), size)]);
    let long = "x".repeat(2_500);
    engine.store_below("abc");
    engine.store_below(&long);
    engine.store_below(&"y".repeat(2_990));
    assert_eq!(
        (engine.depths("abc"), engine.depths(&long)),
        ((3, 0), (2_500, 0))
    );
    // The deepest read ends first.
    let read = |prompt: &str, failures| {
        shelf.pause();
        assert!(engine.promote(prompt));
        let mut it = shelf.lock();
        it.order = (0..it.under_way()).rev().collect();
        (it.fail_reads, it.ends) = (failures, None);
        drop(it);
        engine.cache.poll();
        shelf.lock().fail_reads = 0;
        engine.tier().failed_reads
    };
    // All reads of a prompt fail, and nobody asks for it again.
    let failed = read(&long, usize::MAX);
    assert!(failed > 2_000, "{failed}");
    // Then one checkpoint cannot be read, whose pages stay known. The tier has it still.
    let name = checkpoint("abc");
    let entry = shelf.lock().entries[&name].clone();
    assert_eq!(read("abc", 1), failed + 1);
    assert_eq!(engine.hit("abc").pages, 3);
    shelf.lock().entries.insert(name, entry);
    assert_eq!(engine.hit("abc").blocks, 3);
}

/// Without pages, a boundary that only the tier knows is forgotten with the last entry that it has there.
#[test]
fn a_boundary_that_made_room_for_its_own_entry_is_made_known_anew() {
    let shelf = Handle::default();
    shelf.lock().keeps_forgotten = true;
    let classes = [
        class(ClassKind::Window, 1, 1),
        class(ClassKind::Recurrent, 0, 1),
    ];
    let size = Size {
        slots: 6,
        queue: 50,
    };
    let engine = Engine::new(&classes, 4, &[(shelf.clone(), size)]);
    let store = |prompt: &str, entries: &[(usize, usize)]| {
        assert_eq!(engine.store(prompt, entries), entries.len());
        engine.cache.poll();
    };
    for prompt in ["a", "x", "y"] {
        store(prompt, &[(0, 0), (1, 0)]);
    }
    assert_eq!(engine.depths("a"), (1, 0));
    shelf.lock().unreadable.insert(checkpoint("a"));
    assert!(engine.promote("a"));
    engine.cache.poll();
    assert_eq!(engine.tier().failed_reads, 1);
    // The tier is full again, and the window page of "a" is what was not used for longest.
    store("z", &[(0, 0)]);
    for prompt in ["x", "y"] {
        engine.promote(prompt);
        engine.cache.poll();
    }
    assert_eq!(engine.tier().usage.free, 0);
    let used = engine.tier().usage.evicted;
    assert_eq!(engine.depths("a"), (0, 0));
    assert_eq!(engine.tier().usage.evicted, used + 1);
    engine.audit();
    // Nobody has ever stored a checkpoint of "p".
    store("p", &[(0, 0)]);
    assert_eq!(engine.depths("p").0, 0);
    engine.cache.clear();
    engine.audit();
    for prompt in ["q", "r", "s", "t", "u"] {
        store(prompt, &[(0, 0), (1, 0)]);
        assert_eq!(engine.load(prompt), 1);
    }
}

#[test]
fn what_left_a_tier_with_a_page_is_found_with_it_again() {
    for (second, page) in [(false, "ab"), (true, "ab"), (false, "abc"), (true, "abc")] {
        let (one, two) = (Handle::default(), Handle::default());
        one.lock().keeps_forgotten = true;
        two.lock().declines = vec![EntryKind::Checkpoint];
        let mut below = vec![(one.clone(), LARGE)];
        below.extend(second.then(|| (two.clone(), LARGE)));
        let engine = Engine::new(&hybrid(), 7, &below);
        engine.store_below("abc");
        engine.store_below("wxyz");
        assert_eq!(engine.depths("abc"), (3, 0));
        one.lock().unreadable.insert(end(page, 0));
        assert!(engine.promote("abc"));
        engine.cache.poll();
        assert_eq!(engine.tier().failed_reads, 1);
        assert_eq!(engine.hit("abc").blocks, 3, "{page}, {second}");
        while engine.promote("abc") {
            engine.cache.poll();
        }
        assert_eq!(engine.load("abc"), 3, "{page}, {second}");
    }
}

/// A page that could not be copied takes what hangs from it along, in portions.
#[test]
fn a_page_in_front_of_many_leaves_after_them() {
    let blocks = 3_000;
    let long = "x".repeat(blocks);
    let size = Size {
        slots: 9_000,
        queue: 9_000,
    };
    let whole = whole(&long);
    for damaged in [false, true] {
        let shelf = Handle::default();
        let engine = Engine::new(&hybrid(), blocks + 2, &[(shelf.clone(), size)]);
        shelf.pause();
        engine.store(&long, &whole);
        let mut it = shelf.lock();
        it.fail_writes = usize::from(!damaged);
        it.ends = None;
        drop(it);
        engine.cache.poll();
        engine.audit();
        assert_eq!(engine.load(&long), blocks);
        if !damaged {
            assert_eq!((engine.tier().usage.entries, shelf.count(&long)), (0, 0));
            continue;
        }
        engine.store_below(&"y".repeat(blocks));
        assert_eq!(engine.depths(&long), (blocks, 0));
        shelf.lock().damage_reads = 1;
        assert!(engine.promote(&long));
        engine.cache.poll();
        engine.audit();
        assert_eq!(engine.depths(&long), (0, 0));
        assert_eq!(shelf.count(&long), 0);
    }
}

/// A store brings a tier what it lacks of the prefix, in portions.
#[test]
fn a_store_brings_a_tier_the_whole_prefix() {
    let long = "x".repeat(3_000);
    let shelf = Handle::default();
    let size = |queue| Size {
        slots: 9_000,
        queue,
    };
    for (queue, policy) in [
        (9_000, "lru"),
        (300, "lru"),
        (9_000, "reuse"),
        (300, "reuse"),
    ] {
        let below = [(shelf.clone(), size(queue))];
        let engine = Engine::with_policy(&hybrid(), 3_100, &below, policy);
        shelf.lock().fail_writes = 1;
        engine.store(&long, &pages(0..3_000));
        engine.cache.poll();
        assert_eq!(shelf.count(&long), 0);
        let mut prompt = long.clone();
        for turn in 0..14 {
            prompt.push('y');
            engine.store(&prompt, &pages(prompt.len() - 1..prompt.len()));
            // The tier reports more when these are taken note of.
            (0..2).for_each(|_| engine.cache.poll());
            let kept = shelf.count(&prompt);
            if queue > 3_000 {
                assert_eq!(kept, prompt.len());
            } else {
                assert!(kept >= ((turn + 1) * 256).min(3_000), "{turn}: {kept}");
            }
        }
        assert_eq!(engine.load(&prompt), 0, "without a checkpoint");
        engine.cache.clear();
    }
}

/// The store itself ends before what it has brought of the prefix is written.
#[test]
fn a_prefix_that_goes_to_a_tier_is_held_from_its_start() {
    let long = "x".repeat(600);
    let shelf = Handle::default();
    let size = Size {
        slots: 9_000,
        queue: 9_000,
    };
    let below = [(shelf.clone(), size)];
    let engine = Engine::with_policy(&hybrid(), 700, &below, "reuse");
    shelf.lock().fail_writes = 1;
    engine.store(&long, &pages(0..600));
    engine.cache.poll();
    shelf.pause();
    engine.store(&format!("{long}y"), &pages(600..601));
    let mut it = shelf.lock();
    assert_eq!(it.under_way(), 601);
    // The last page and those that went with it, and then the first portion.
    it.order = (512..601).rev().collect();
    it.ends = Some(89 + 256);
    drop(it);
    (0..2).for_each(|_| engine.cache.poll());
    engine.audit();
    assert_eq!(shelf.lock().under_way(), 256);
    shelf.resume();
    engine.cache.poll();
    assert_eq!(shelf.count(&long), 600);
}
