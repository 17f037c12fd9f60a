//! Reads that failed: what they were for is found again, where it has a place.

use crate::tiers_support;

use hybrid_pages::ids::EntryKey;
use tiers_support::cache_support::{keys, pages};
use tiers_support::{Engine, Handle, Size, hybrid};

/// The name of the checkpoint at the end of a prompt.
fn checkpoint(prompt: &str) -> EntryKey {
    let block_index = prompt.len() - 1;
    EntryKey {
        namespace: b"engine"[..].into(),
        prefix: keys(prompt)[block_index],
        block_index,
        class_index: 1,
    }
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
