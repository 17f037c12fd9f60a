//! What fails in part, or for a time, is used again when it works, and not tried for ever meanwhile.

mod support;

use std::time::Duration;

use hybrid_pages_remote::{Admit, Reason};
use support::cache_support::keys;
use support::{Engine, Fault, Setup, Store, geometry};

/// More than the host holds.
const OTHERS: [&str; 4] = ["0123456789", "ABCDEFGHIJ", "KLMNOPQRST", "UVWXYZ!@#$"];

/// Stores new prompts until something was written.
fn writes_again(engine: &Engine) {
    let before = engine.stats().writes;
    let number = std::cell::Cell::new(0);
    engine.until("written", |engine| {
        number.set(number.get() + 1);
        engine.store(&format!("{}x", number.get()));
        engine.settle();
        engine.stats().writes > before
    });
}

#[test]
fn writes_come_back_after_a_total_outage() {
    let store = Store::new();
    let engine = Setup::small(&store).engine();
    store.set(|faults| {
        (faults.gets, faults.lists, faults.puts) = (Fault::Fails, Fault::Fails, Fault::Fails);
    });
    for prompt in ["g", "h", "i", "j"] {
        engine.store(prompt);
        engine.settle();
    }
    engine.until("out", |engine| {
        engine.ask("other");
        engine.stats().out
    });
    // What is offered meanwhile is declined, and tries nothing.
    for _ in 0..20 {
        engine.store("xyz");
        engine.settle();
        std::thread::sleep(Duration::from_millis(10));
    }
    store.set(|faults| *faults = Default::default());
    engine.until("back", |engine| !engine.stats().out);
    writes_again(&engine);
}

#[test]
fn removals_that_hang_do_not_end_uploads() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.write_limit = Duration::from_millis(100);
    setup.options.pack_bytes = 1;
    store.set(|faults| (faults.puts, faults.deletes) = (Fault::Hangs, Fault::Hangs));
    let engine = setup.engine();
    engine.store("abc");
    engine.until("failed", |engine| engine.stats().failed(Reason::Write) >= 4);
    store.set(|faults| *faults = Default::default());
    writes_again(&engine);
}

#[test]
fn what_waits_behind_writes_that_hang_ends_with_them() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.write_limit = Duration::from_millis(100);
    setup.options.retry = Duration::from_secs(3600);
    setup.options.pack_bytes = 1;
    store.set(|faults| faults.puts = Fault::Hangs);
    let engine = setup.engine();
    engine.store("abcdefghij");
    // The cache hears of it later: it would undo what builds on a page that failed.
    assert!(engine.below.settle(Duration::from_secs(60)));
    let stats = engine.stats();
    let (failed, paused) = (stats.failed(Reason::Write), stats.failed(Reason::Paused));
    // Four are under way at a time, and two may begin before the third has failed.
    assert!((4..=6).contains(&failed), "{stats:?}");
    assert_eq!(failed + paused, 11, "{stats:?}");
    let notes = engine.below.take_notes().join("\n");
    assert!(notes.contains("'paused'"), "{notes}");
}

#[test]
fn tables_that_could_not_be_read_are_read_later() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    // Nothing is listed again that was made before the last listing.
    setup.options.skew = Duration::ZERO;
    setup.options.write_limit = Duration::from_millis(1);
    setup.options.whole = Duration::from_secs(3600);
    let mut writer = setup.clone();
    writer.options.write_limit = Duration::from_secs(30);
    for prompt in ["abc", "def", "ghi", "jkl"] {
        writer.engine().keep(prompt);
    }
    store.set(|faults| faults.gets = Fault::Fails);
    let engine = setup.engine();
    engine.until("listed again", |engine| {
        engine.ask("other");
        engine.stats().lists > 5
    });
    assert_eq!(engine.stats().packs, 0);
    store.set(|faults| *faults = Default::default());
    engine.until("known", |engine| {
        engine.ask("other");
        engine.stats().packs == 4
    });
    assert_eq!(engine.stats().failed(Reason::Late), 0);
}

#[test]
fn packs_that_come_under_an_old_name_are_found_late_and_counted() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.skew = Duration::ZERO;
    setup.options.whole = Duration::from_millis(300);
    setup.engine().keep("abc");
    let (name, bytes) = store.packs().remove(0);
    store.delete(&name);
    setup.options.write_limit = Duration::from_millis(1);
    std::thread::sleep(Duration::from_millis(10));
    let engine = setup.engine();
    engine.until("listed", |engine| {
        engine.ask("abc") == 0 && engine.stats().lists > 1
    });
    // As a writer's would whose clock is behind.
    store.write(&name, bytes);
    engine.until("found", |engine| engine.serve("abc") == 3);
    assert_eq!(engine.stats().failed(Reason::Late), 1);
    let notes = engine.below.take_notes().join("\n");
    assert!(notes.contains("clocks"), "{notes}");
}

#[test]
fn what_would_not_come_in_time_is_not_begun() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.geometry = geometry(100_000, 100_000, 2);
    setup.slot_bytes = 1 << 18;
    setup.options.deadline = Duration::from_millis(200);
    setup.engine().keep("abcdef");
    let engine = setup.engine();
    engine.until("found", |engine| engine.ask("abcdef") == 6);
    store.set(|faults| faults.gets = Fault::Slow(Duration::from_secs(1)));
    engine.until("left out", |engine| {
        engine.ask("abcdef");
        engine.restore("abcdef");
        engine.cache.restores().not_worth > 0
    });
}

#[test]
fn another_engines_bits_take_nothing_away() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let (first, mut second) = (setup.engine(), setup.engine());
    second.weights = 1; // Other bits for the same tokens, as another batch may give.
    first.ask("abcdef");
    second.ask("abcdef");
    first.store_whole("abcdef");
    std::thread::sleep(Duration::from_millis(5));
    second.store_whole("abcdef");
    first.settle();
    second.settle();
    first.until("told of both", |first| {
        first.ask("other");
        first.stats().packs >= 2
    });
    for prompt in OTHERS {
        first.store(prompt);
        first.settle();
    }
    assert_eq!(first.serve("abcdef"), 6);
    assert_eq!(first.tier().corrupt_reads, 0);
    assert_eq!(first.stats().failures.iter().sum::<u64>(), 0);
}

#[test]
fn an_entry_whose_pack_is_gone_is_found_in_another() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let (first, second) = (setup.engine(), setup.engine());
    for engine in [&first, &second] {
        engine.ask("abc");
    }
    first.store("abc");
    second.store("abc");
    first.settle();
    second.settle();
    assert_eq!(store.packs().len(), 2);
    let reader = setup.engine();
    reader.until("told of both", |reader| {
        reader.ask("other");
        reader.stats().packs == 2
    });
    store.delete(&store.packs()[0].0);
    reader.until("found", |reader| reader.serve("abc") == 3);
    store.delete(&store.packs()[0].0);
}

#[test]
fn reads_that_hang_beside_listings_that_work_open_the_breaker() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.deadline = Duration::from_millis(100);
    setup.engine().keep("abcdef");
    store.set(|faults| faults.gets = Fault::Hangs);
    let engine = setup.engine();
    engine.until("left alone", |engine| {
        engine.ask("other");
        engine.stats().outages > 0
    });
    store.set(|faults| *faults = Default::default());
    engine.until("found", |engine| engine.serve("abcdef") == 6);
}

#[test]
fn a_store_too_slow_for_the_deadline_is_not_tried_for_ever() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.geometry = geometry(100_000, 100_000, 2);
    setup.slot_bytes = 1 << 18;
    setup.options.deadline = Duration::from_millis(200);
    setup.engine().keep("abcdef");
    setup.options.admit = Admit::Auto;
    let engine = setup.engine();
    engine.until("found", |engine| engine.ask("abcdef") == 6);
    engine.cache.set_compute_rate(Some(1000.0)).unwrap();
    store.set(|faults| faults.gets = Fault::Slow(Duration::from_secs(1)));
    engine.until("weighed", |engine| {
        engine.ask("abcdef");
        engine.restore("abcdef");
        engine.cache.restores().not_worth > 0
    });
}

#[test]
fn reads_end_when_the_store_is_closed_beside_them() {
    for round in 0..60 {
        let store = Store::new();
        let engine = Setup::small(&store).engine();
        engine.keep("abcdef");
        for prompt in OTHERS {
            engine.store(prompt);
            engine.settle();
        }
        let below = engine.below.clone();
        let closing = std::thread::spawn(move || {
            for _ in 0..(round % 7) * 300 {
                std::hint::spin_loop();
            }
            below.close();
        });
        let promoted = engine.cache.promote(engine.namespace, &keys("abcdef"), 0);
        assert!(promoted.is_ok());
        closing.join().unwrap();
        engine.until("ended", |engine| engine.stats().reading == 0);
    }
}
