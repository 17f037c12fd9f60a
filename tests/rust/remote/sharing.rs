//! What one engine stores, another restores.

use crate::support;

use std::cell::Cell;
use std::time::{Duration, Instant};

use hybrid_pages::cache::Arrival;
use hybrid_pages::policy::Hints;
use hybrid_pages_remote::{Admit, RemoteFailure, RemotePlace};
use support::cache_support::keys;
use support::{Engine, Setup, Store, geometry};

#[test]
fn an_engine_restores_what_another_has_stored() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let (first, second) = (setup.engine(), setup.engine());
    second.until("listed", |engine| engine.stats().lists > 0);
    first.keep("abcdef");
    assert_eq!(second.serve("abcdefg"), 6);
    assert_eq!(second.serve("abcxyz"), 0, "no checkpoint there");
    let stats = second.stats();
    assert_eq!(stats.reads, 7);
    assert_eq!(stats.read_bytes, 2 * (6 * 5_000 + 9_001));
    assert_eq!(stats.failures.iter().sum::<u64>(), 0);
    assert!(stats.gets < 7, "entries come together: {stats:?}");
    // Both know all of it: nothing is written twice.
    assert_eq!(second.stats().puts, 0);
    second.store("abcdef");
    second.settle();
    assert_eq!(second.stats().writes, 0);
}

#[test]
fn a_later_engine_finds_what_earlier_ones_have_left() {
    let store = Store::new();
    let setup = Setup::small(&store);
    for prompt in ["abcd", "abxy", "mno"] {
        setup.engine().keep(prompt);
    }
    let engine = setup.engine();
    for (prompt, depth) in [("abcd", 4), ("abxy", 4), ("mnop", 3), ("q", 0)] {
        assert_eq!(engine.serve(prompt), depth, "{prompt}");
    }
    assert_eq!(engine.stats().packs, store.packs().len() as u64);
}

#[test]
fn tails_of_another_engine_are_found_by_their_lengths() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let (first, second) = (setup.engine(), setup.engine());
    first.keep("abC");
    first.keep("G");
    // As a request does: the prefix is looked up, then its tails, and each time it waits for answers.
    assert_eq!(second.ask("abx"), 0);
    let lengths = |engine: &support::Engine| {
        let found = engine
            .cache
            .tail_lengths(engine.namespace, &keys("ab"), 0, true);
        let found = found.unwrap();
        (!found.asking).then_some(found.behind)
    };
    second.until("answered", |engine| lengths(engine).is_some());
    assert_eq!(lengths(&second), Some(vec![(0, vec![7]), (2, vec![3])]));
    assert_eq!(second.serve("abC"), 3);
    assert_eq!(second.serve("G"), 1);
    assert_eq!(second.serve("abE"), 0);
    // A prompt that is shorter than a block asks for what is new, too.
    first.keep("E");
    second.until("listed", |engine| {
        let found = engine
            .cache
            .tail_lengths(engine.namespace, &keys("z"), 0, true);
        engine.ask("z");
        found.unwrap().behind == [(0, vec![5, 7])]
    });
    assert_eq!(second.serve("E"), 1);
}

#[test]
fn a_checkpoint_that_comes_later_is_found_where_the_pages_are_known() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let (first, second) = (setup.engine(), setup.engine());
    first.keep("abcdef");
    assert_eq!(second.serve("abcdef"), 6);
    // The fork at 'abc' gets a checkpoint now.
    first.keep("abc");
    second.until("refreshed", |engine| engine.ask("abcx") == 3);
    assert_eq!(second.serve("abcx"), 3);
}

#[test]
fn a_lookup_asks_about_so_many_known_boundaries_at_most() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.slots = 1200;
    let (first, second) = (setup.engine(), setup.engine());
    let letter = |at: usize| char::from(b'a' + (at * at / 7 % 26) as u8);
    let prompt: String = (0..350).map(letter).collect();
    first.keep(&prompt);
    assert_eq!(second.serve(&prompt), 350);
    let fork = format!("{}!", &prompt[..340]);
    assert_eq!(second.ask(&fork), 0, "no checkpoint there");
    let asked = Cell::new(0);
    second.until("answered at once", |second| {
        second.ask(&fork); // What it has listed may have become too old again.
        let before = second.stats().misses;
        second.hit(&fork);
        asked.set(second.stats().misses - before);
        asked.get() > 0
    });
    assert!((1..=257).contains(&asked.get()), "{}", asked.get());
    // The deepest first: that is where a fork's checkpoint comes.
    first.keep(&prompt[..340]);
    second.until("found", |second| second.ask(&fork) == 340);
    assert_eq!(second.serve(&fork), 340);
}

#[test]
fn a_miss_costs_no_request_per_block() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.refresh = Duration::from_secs(3600);
    let engine = setup.engine();
    for round in 0..50 {
        let letter = |at: usize| char::from(b'a' + (at * round % 26) as u8);
        let prompt: String = (0..20).map(letter).collect();
        engine.ask(&prompt);
    }
    let stats = engine.stats();
    assert!(stats.lists <= 2 && stats.gets == 0, "{stats:?}");
}

#[test]
fn an_idle_engine_completes_its_uploads() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.pack_age = Duration::from_millis(300);
    let engine = setup.engine();
    engine.store("abc");
    let begun = Instant::now();
    while store.packs().is_empty() {
        assert!(begun.elapsed() < support::LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
    engine.until("told", |engine| engine.stats().writing == 0);
    assert_eq!(store.packs().len(), 1, "all of it in one pack");
    assert_eq!(engine.stats().writes, 4);
}

#[test]
fn an_idle_engine_completes_its_uploads_in_however_many_packs() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.pack_bytes = 1;
    setup.slots = 400;
    let engine = setup.engine();
    for letter in 'a'..='j' {
        engine.store(&format!("{letter}bc"));
    }
    // Nobody calls the cache any more.
    let begun = Instant::now();
    while store.packs().len() < 40 {
        assert!(begun.elapsed() < support::LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_last_pack_goes_out_before_the_end() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.pack_age = Duration::from_secs(3600);
    let engine = setup.engine();
    engine.store("abc");
    assert!(engine.below.settle(support::LIMIT));
    engine.below.close();
    assert_eq!(engine.stats().failed(RemoteFailure::Closed), 0);
    assert_eq!(setup.engine().serve("abc"), 3);
}

#[test]
fn what_the_end_has_cut_off_is_counted_and_told() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let engine = setup.engine();
    store.set(|faults| faults.puts = support::Fault::Hangs);
    engine.store("abc");
    assert!(!engine.below.settle(Duration::from_millis(50)));
    engine.below.close();
    engine.below.close();
    let stats = engine.stats();
    assert_eq!((stats.failed(RemoteFailure::Closed), stats.writing), (4, 0));
    let notes = engine.below.take_notes().join("\n");
    assert!(notes.contains("before 4 entries"), "{notes}");
}

#[test]
fn a_reset_that_could_not_be_told_is_told_when_that_works_or_the_operator_is() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let (first, second, third) = (setup.engine(), setup.engine(), setup.engine());
    first.keep("abc");
    second.keep("xyz");
    assert_eq!((third.ask("abc"), third.ask("xyz")), (3, 3));
    store.set(|faults| {
        (faults.puts, faults.deletes) = (support::Fault::Fails, support::Fault::Fails)
    });
    first.cache.clear();
    second.cache.clear();
    for engine in [&first, &second] {
        engine.until("refused", |engine| {
            engine.stats().failed(RemoteFailure::Remove) > 0
        });
    }
    second.below.close();
    let notes = second.below.take_notes().join("\n");
    let packs = store.packs();
    let mine = packs.iter().filter(|(name, _)| {
        let writer = name.filename().unwrap().split('-').nth(1).unwrap();
        notes.contains(&format!("/*-{writer}-*.pack"))
    });
    assert_eq!(mine.count(), 1, "{notes}");
    store.set(|faults| faults.puts = support::Fault::None);
    first.settle();
    third.until("told", |third| {
        third.ask("other");
        third.stats().packs == 1
    });
    assert_eq!(third.restore("abc"), 0);
    assert_eq!(setup.engine().serve("abc"), 0);
    assert_eq!(setup.engine().serve("xyz"), 3, "nobody was told");
}

#[test]
fn entries_larger_than_a_pack_have_one_each() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.pack_bytes = 1;
    setup.engine().keep("abc");
    assert_eq!(store.packs().len(), 4);
    assert_eq!(setup.engine().serve("abc"), 3);
}

#[test]
fn another_identity_finds_nothing() {
    let store = Store::new();
    let setup = Setup::small(&store);
    setup.engine().keep("abc");
    let mut other = setup.clone();
    other.identity = [8; 32];
    assert_eq!(other.engine().serve("abc"), 0);
    // Not even if its packs are put where that one looks.
    for (name, bytes) in store.packs() {
        let moved = name.as_ref().replace(&"07".repeat(32), &"08".repeat(32));
        store.write(&moved.into(), bytes);
    }
    let engine = other.engine();
    assert_eq!(engine.serve("abc"), 0);
    assert!(engine.stats().failed(RemoteFailure::Table) > 0);
    assert_eq!(setup.engine().serve("abc"), 3);
}

#[test]
fn another_geometry_under_the_same_identity_finds_nothing() {
    let store = Store::new();
    let setup = Setup::small(&store);
    setup.engine().keep("abc");
    for (page, checkpoint, ranks) in [(5_000, 9_001, 1), (50_000, 9_001, 2), (5_000, 90_010, 2)] {
        let mut other = setup.clone();
        other.geometry = geometry(page, checkpoint, ranks);
        other.slots = 200;
        assert_eq!(other.engine().serve("abc"), 0);
    }
}

#[test]
fn namespaces_are_apart() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let (first, second) = (setup.engine(), setup.engine());
    first.keep("abc");
    let tenant = second.cache.namespace(b"another tenant").unwrap();
    second.serve("abc");
    let hit = second.cache.lookup(tenant, &keys("abc")).unwrap();
    assert_eq!(hit.blocks, 0);
}

#[test]
fn what_was_evicted_here_stays_for_others_and_is_found_again() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.most_entries = 12;
    let engine = setup.engine();
    for prompt in ["abc", "def", "ghi", "jkl", "mno"] {
        engine.keep(prompt);
    }
    assert_eq!(store.packs().len(), 5);
    let mut all = setup.clone();
    all.options.most_entries = 1000;
    let other = all.engine();
    for prompt in ["abc", "def", "ghi", "jkl", "mno"] {
        assert_eq!(other.serve(prompt), 3, "{prompt}");
    }
}

#[test]
fn the_catalog_forgets_the_oldest_packs_when_it_is_full() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    for prompt in ["abc", "def", "ghi", "jkl", "mno"] {
        setup.engine().keep(prompt);
        std::thread::sleep(Duration::from_millis(3));
    }
    setup.options.most_entries = 9;
    let engine = setup.engine();
    engine.until("listed", |engine| {
        engine.stats().packs > 0 && engine.ask("mno") == 3
    });
    let stats = engine.stats();
    assert!(stats.entries <= 9, "{stats:?}");
    assert_eq!(engine.serve("mno"), 3);
    let notes = engine.below.take_notes();
    assert!(
        notes.iter().any(|note| note.contains("catalog")),
        "{notes:?}"
    );
}

#[test]
fn a_reset_takes_back_what_this_engine_wrote_and_shares_no_more() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let (first, second, third) = (setup.engine(), setup.engine(), setup.engine());
    first.keep("abc");
    second.keep("xyz");
    assert_eq!(third.ask("abc"), 3);
    first.cache.clear();
    first.settle();
    assert!(!first.stats().shared);
    assert_eq!(first.serve("xyz"), 0, "not even what others wrote");
    first.store("mno");
    first.settle();
    let names: Vec<String> = store
        .objects()
        .iter()
        .map(|(name, _)| name.to_string())
        .collect();
    assert_eq!(
        names.iter().filter(|name| name.ends_with(".pack")).count(),
        1,
        "{names:?}"
    );
    assert_eq!(
        names.iter().filter(|name| name.ends_with(".gone")).count(),
        1,
        "{names:?}"
    );
    assert_eq!(setup.engine().serve("abc"), 0);
    assert_eq!(setup.engine().serve("xyz"), 3);
    // Also for whoever knew the packs before.
    assert_eq!(third.restore("abc"), 0);
    assert_eq!(third.serve("xyz"), 3);
}

#[test]
fn packs_that_could_not_be_removed_after_a_reset_are_not_found_all_the_same() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let first = setup.engine();
    first.keep("abc");
    store.set(|faults| faults.deletes = support::Fault::Fails);
    first.cache.clear();
    first.settle();
    assert!(first.stats().failed(RemoteFailure::Remove) > 0);
    assert_eq!(store.packs().len(), 1);
    assert_eq!(setup.engine().serve("abc"), 0);
}

#[test]
fn a_reset_of_an_engine_that_wrote_nothing_writes_nothing() {
    let store = Store::new();
    let setup = Setup::small(&store);
    setup.engine().keep("abc");
    let before = store.objects();
    let reader = setup.engine();
    assert_eq!(reader.serve("abc"), 3);
    reader.cache.clear();
    reader.settle();
    assert_eq!(reader.serve("abc"), 0);
    assert_eq!(store.objects(), before);
    assert_eq!(reader.stats().puts, 0);
}

#[test]
fn a_reset_before_the_start_shares_nothing() {
    let store = Store::new();
    let setup = Setup::small(&store);
    setup.engine().keep("abc");
    let engine = setup.unconnected();
    engine.cache.clear();
    engine
        .below
        .connect(&engine.arena, &setup.identity)
        .unwrap();
    engine.store("xyz");
    engine.settle();
    assert_eq!(engine.serve("abc"), 0);
    assert_eq!(store.packs().len(), 1);
}

#[test]
fn only_what_a_second_request_has_passed_is_written_by_expected_saving() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.admit = Admit::Auto;
    setup.slots = 200;
    let engine = setup.engine();
    let arrive = |engine: &Engine, prompt: &str| {
        let arrival = Arrival {
            now: 0,
            tokens: 16 * prompt.len() as u64,
            limit: prompt.len(),
            hints: Hints::NONE,
        };
        engine
            .cache
            .admit(engine.namespace, &keys(prompt), arrival)
            .unwrap();
    };
    for prompt in ["abcd", "efgh", "ijkl"] {
        arrive(&engine, prompt);
        engine.store(prompt);
    }
    engine.settle();
    assert_eq!(store.packs().len(), 0);
    assert_eq!(
        engine.stats().unproven,
        3,
        "what hangs from a page is not asked for"
    );
    arrive(&engine, "abcdxy");
    engine.store("abcdxy");
    engine.settle();
    let other = setup.engine();
    assert_eq!(other.ask("abcdxy"), 4);
    assert_eq!(other.ask("efgh"), 0);
}

#[test]
fn a_second_connection_is_refused() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let engine = setup.engine();
    assert!(
        engine
            .below
            .connect(&engine.arena, &setup.identity)
            .is_err()
    );
    engine.keep("abc");
}

#[test]
fn directories_are_shared_like_buckets() {
    let directory = tempfile::tempdir().unwrap();
    let url =
        format!("file://{}", directory.path().join("shared dir").display()).replace(' ', "%20");
    let setup = Setup::at(RemotePlace::of_url(&url).unwrap());
    setup.engine().keep("abcd");
    let other = Setup::at(RemotePlace::of_url(&url).unwrap()).engine();
    assert_eq!(other.serve("abcde"), 4);
    // The directory vanishes: what was known is gone.
    std::fs::remove_dir_all(directory.path().join("shared dir")).unwrap();
    let third = Setup::at(RemotePlace::of_url(&url).unwrap()).engine();
    assert_eq!(third.serve("abcd"), 0);
}

#[test]
fn urls_that_name_no_store_are_refused_and_secrets_are_not_repeated() {
    for url in [
        "",
        "s3",
        "s3://",
        "ftp://host/a",
        "https://bucket/x",
        "file://host/dir",
        "file:relative",
        "file:///",
        "file:///tmp/..//",
        "s3://bucket:9000/x",
        "s3://name:geheim@bucket/x",
        "s3://bucket/x?secret=geheim",
        "az://container/x#geheim",
    ] {
        let error = RemotePlace::of_url(url).unwrap_err().to_string();
        assert!(
            error.contains("expected") && !error.contains("geheim"),
            "{url}: {error}"
        );
    }
    let error = RemotePlace::of_url("file:///no/such/parent/dir")
        .unwrap_err()
        .to_string();
    assert!(error.contains("expected a directory"), "{error}");
}
