//! What fails in part, or for a time, is used again when it works, and not tried for ever meanwhile.

use crate::support;

use std::time::{Duration, Instant};

use hybrid_pages_remote::{Admit, RemoteFailure, RemoteStats};
use support::cache_support::{keys, whole};
use support::{Engine, Fault, Setup, Store, geometry, table_bytes, under_the_name_of};

/// More than the host holds.
const OTHERS: [&str; 4] = ["0123456789", "ghijklmnop", "qrstuvwxyz", "!@#$%&*+-="];

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
fn an_idle_engine_completes_its_uploads_right_after_an_outage() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.pack_bytes = 1;
    let engine = setup.engine();
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
    store.set(|faults| *faults = Default::default());
    engine.until("back", |engine| !engine.stats().out);
    let number = std::cell::Cell::new(0);
    engine.until("tried", |engine| {
        number.set(number.get() + 1);
        engine.store(&number.get().to_string());
        engine.stats().writing > 0
    });
    // Nobody calls the cache while it waits.
    let idle = |is_so: &dyn Fn(&RemoteStats) -> bool| {
        let begun = Instant::now();
        while !is_so(&engine.stats()) {
            assert!(begun.elapsed() < support::LIMIT, "{:?}", engine.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    idle(&|stats| stats.writes > 0 && stats.writing == 0);
    let before = engine.stats().writes;
    engine.store("abcdef");
    idle(&|stats| stats.writes == before + 7);
    assert_eq!(setup.engine().serve("abcdef"), 6);
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
    engine.until("failed", |engine| {
        engine.stats().failed(RemoteFailure::Write) >= 4
    });
    store.set(|faults| *faults = Default::default());
    writes_again(&engine);
}

#[test]
fn packs_of_which_nothing_is_left_do_not_end_uploads() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.pack_age = Duration::from_secs(3600);
    let engine = setup.engine();
    for prompt in ["a", "b", "c", "d"] {
        let mut lease = engine.reserve(prompt, &whole(prompt));
        let entries = lease.entries().iter();
        let slots: Vec<_> = entries.map(|entry| entry.slots[0]).collect();
        engine.commit(prompt, &mut lease);
        let other = vec![1; engine.arena.slot_bytes()];
        let changes = |slot: &_| engine.arena.write(*slot, &other).unwrap();
        slots.iter().for_each(changes);
        engine.settle();
    }
    let stats = engine.stats();
    assert_eq!((stats.failed(RemoteFailure::Source), stats.puts), (8, 0));
    engine.keep("xyz");
    assert_eq!(setup.engine().serve("xyz"), 3);
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
    let (failed, paused) = (
        stats.failed(RemoteFailure::Write),
        stats.failed(RemoteFailure::Paused),
    );
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
    assert_eq!(engine.stats().failed(RemoteFailure::Late), 0);
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
    assert_eq!(engine.stats().failed(RemoteFailure::Late), 1);
    let notes = engine.below.take_notes().join("\n");
    assert!(notes.contains("clocks"), "{notes}");
}

#[test]
fn a_reset_that_comes_under_an_old_name_is_found_late_and_counted() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.engine().keep("abc");
    setup.options.skew = Duration::ZERO;
    setup.options.write_limit = Duration::from_millis(1);
    setup.options.whole = Duration::from_millis(300);
    std::thread::sleep(Duration::from_millis(10));
    let engine = setup.engine();
    engine.until("listed", |engine| {
        engine.ask("abc") == 3 && engine.stats().lists > 1
    });
    let pack = store.packs().remove(0).0.to_string();
    // The writer's sign, as one whose clock is behind would make it.
    let (folder, name) = pack.rsplit_once('/').unwrap();
    let (made, writer) = (&name[..12], &name[13..29]);
    store.write(&format!("{folder}/{made}-{writer}.gone").into(), "");
    engine.until("told", |engine| {
        engine.ask("other");
        engine.stats().packs == 0
    });
    assert_eq!(engine.restore("abc"), 0);
    assert_eq!(engine.stats().failed(RemoteFailure::Late), 1);
    let notes = engine.below.take_notes().join("\n");
    assert!(notes.contains("clocks"), "{notes}");
}

#[test]
fn packs_that_are_listed_after_they_have_left_cost_one_request_each() {
    let store = Store::new();
    let setup = Setup::small(&store);
    for prompt in ["abc", "xyz"] {
        setup.engine().keep(prompt);
    }
    let known = setup.engine();
    assert_eq!((known.ask("abc"), known.ask("xyz")), (3, 3));
    store.delete_behind_listings();
    let engine = setup.engine();
    engine.until("listed", |engine| {
        engine.ask("abc");
        engine.stats().lists > 5
    });
    let stats = engine.stats();
    assert_eq!((stats.gets, stats.failed(RemoteFailure::Gone)), (2, 2));
    assert_eq!((stats.outages, engine.serve("abc")), (0, 0));
    // Who knew one finds out by its entries, and does not ask for its table.
    assert_eq!(known.restore("abc"), 0);
    let (gets, lists) = (known.stats().gets, known.stats().lists);
    known.until("listed", |known| {
        known.ask("other");
        known.stats().lists > lists + 5
    });
    assert_eq!(known.stats().gets, gets);
}

#[test]
fn a_pack_that_was_gone_for_a_while_is_found_by_the_next_whole_listing() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.whole = Duration::from_millis(100);
    setup.options.deadline = Duration::from_secs(3);
    setup.engine().keep("abc");
    let packs = store.packs();
    let engine = setup.engine();
    assert_eq!(engine.ask("abc"), 3);
    store.delete_behind_listings();
    assert_eq!(engine.restore("abc"), 0);
    assert!(engine.stats().failed(RemoteFailure::Gone) > 0);
    for (name, bytes) in packs {
        store.write(&name, bytes);
    }
    engine.until("found", |engine| engine.serve("abc") == 3);
}

#[test]
fn a_pack_that_came_without_an_answer_is_not_counted_on_by_its_writer() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let engine = setup.engine();
    engine.ask("abc");
    store.set(|faults| (faults.puts, faults.deletes) = (Fault::Unanswered, Fault::Hangs));
    engine.store("abc");
    engine.until("failed", |it| it.stats().failed(RemoteFailure::Write) > 0);
    // It is to be removed, and is in every listing until then.
    let lists = engine.stats().lists;
    engine.until("listed", |engine| {
        engine.ask("x");
        engine.stats().lists > lists + 3
    });
    assert_eq!((store.packs().len(), engine.stats().packs), (1, 0));
    store.set(|faults| faults.puts = Fault::None);
    engine.until("written", |engine| {
        engine.store("abcd");
        engine.settle();
        engine.stats().writes > 0
    });
    assert_eq!(engine.stats().spared_writes, 0);
    store.delete(&store.packs()[0].0);
    assert_eq!(setup.engine().serve("abcd"), 4);
}

#[test]
fn a_missing_pack_is_an_answer() {
    let store = Store::new();
    let setup = Setup::small(&store);
    for prompt in ["abc", "def", "ghi"] {
        setup.engine().keep(prompt);
    }
    store.set(|faults| faults.gets = Fault::Fails);
    let engine = setup.engine();
    engine.until("left alone", |engine| engine.stats().out);
    store.delete_behind_listings();
    store.set(|faults| *faults = Default::default());
    engine.until("back", |engine| !engine.stats().out);
}

#[test]
fn a_pack_that_leaves_between_failures_is_an_answer() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let prompts = ["a", "b", "c", "d", "e", "f"];
    for prompt in prompts {
        setup.engine().keep(prompt);
    }
    let engine = setup.engine();
    assert_eq!(prompts.map(|prompt| engine.ask(prompt)), [1; 6]);
    // Two requests each, at most.
    for pair in prompts.chunks(2) {
        for (prompt, fault) in pair.iter().zip([Fault::Fails, Fault::Gone]) {
            store.set(|faults| faults.gets = fault);
            assert_eq!(engine.restore(prompt), 0);
        }
    }
    let stats = engine.stats();
    assert!(stats.failed(RemoteFailure::Read) > 0 && stats.failed(RemoteFailure::Gone) > 0);
    assert_eq!(stats.outages, 0);
}

#[test]
fn two_packs_of_one_name_cost_a_miss() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let writer = setup.engine();
    writer.keep("abc");
    let (name, first) = store.packs().remove(0);
    let reader = setup.engine();
    assert_eq!(reader.ask("abc"), 3);
    let elsewhere = Store::new();
    Setup::small(&elsewhere).engine().keep("xyz");
    let other = elsewhere.packs().remove(0).1;
    let twin = under_the_name_of(&first, &other, table_bytes(name.as_ref()));
    assert_eq!(twin.len(), first.len());
    store.write(&name, twin);
    for prompt in OTHERS {
        writer.store(prompt);
        writer.settle();
    }
    for engine in [&reader, &writer] {
        assert_eq!(engine.restore("abc"), 0);
        assert!(engine.stats().failed(RemoteFailure::Checksum) > 0);
        assert_eq!(engine.stats().outages, 0);
    }
    let third = setup.engine();
    assert_eq!((third.serve("xyz"), third.serve("abc")), (3, 0));
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
