//! A store that lies, hangs, fails or is full costs at most a recompute.

use crate::support;

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use hybrid_pages_remote::{RemoteFailure, RemotePlace, RemoteStats};
use support::{Engine, Fault, LIMIT, Setup, Store, geometry};

const DEADLINE: Duration = Duration::from_millis(150);

/// A store that has 'abcdef', and an engine that knows it.
fn stocked() -> (std::sync::Arc<Store>, Setup, Engine) {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.engine().keep("abcdef");
    setup.options.deadline = DEADLINE;
    let engine = setup.engine();
    assert_eq!(engine.ask("abcdef"), 6);
    (store, setup, engine)
}

fn failures(stats: &RemoteStats) -> Vec<&'static str> {
    let all = RemoteFailure::ALL.iter();
    all.filter(|reason| stats.failed(**reason) > 0)
        .map(|reason| reason.name())
        .collect()
}

#[test]
fn wrong_bytes_are_never_loaded() {
    for (fault, reason) in [
        (Fault::Flips, "checksum"),
        (Fault::Swaps, "checksum"),
        (Fault::Short, "short"),
        (Fault::Fails, "read"),
        (Fault::Gone, "gone"),
        (Fault::Hangs, "deadline"),
    ] {
        let (store, setup, engine) = stocked();
        *store.other.lock().unwrap() = vec![7; 1 << 20].into();
        store.set(|faults| faults.gets = fault);
        // `restore` compares every byte of what it gets.
        let depth = engine.restore("abcdef");
        assert!(depth < 6, "{fault:?}");
        engine.until("ended", |engine| engine.stats().reading == 0);
        assert_eq!(failures(&engine.stats()), [reason], "{fault:?}");
        // What is computed instead is stored, and found again.
        store.set(|faults| faults.gets = Fault::None);
        engine.store_whole("abcdef");
        assert_eq!(engine.load("abcdef"), 6);
        engine.settle();
        let other = setup.engine();
        other.until("healed", |other| {
            other.ask("abcdef") == 6 && other.serve("abcdef") == 6
        });
    }
}

#[test]
fn a_store_that_lies_is_left_alone_and_heard_again() {
    let prompts = ["abc", "def", "ghi", "xyz"];
    for fault in [Fault::Swaps, Fault::Short] {
        let store = Store::new();
        let setup = Setup::small(&store);
        for prompt in prompts {
            setup.engine().keep(prompt);
        }
        let engine = setup.engine();
        engine.until("known", |engine| {
            prompts.into_iter().all(|prompt| engine.ask(prompt) == 3)
        });
        *store.other.lock().unwrap() = vec![7; 1 << 20].into();
        store.set(|faults| faults.gets = fault);
        for (lies, prompt) in prompts[..3].iter().enumerate() {
            assert!(!engine.stats().out, "{fault:?}: after {lies} lies");
            engine.restore(prompt);
            engine.until("ended", |engine| engine.stats().reading == 0);
        }
        assert_eq!(engine.stats().outages, 1, "{fault:?}");
        // The fourth is whole, and found once the store is heard again.
        store.set(|faults| faults.gets = Fault::None);
        engine.until("heard", |engine| engine.serve("xyz") == 3);
        assert!(!engine.stats().out, "{fault:?}");
    }
}

#[test]
fn one_damaged_pack_is_no_outage() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    // Its entries take more than three requests.
    (setup.geometry, setup.slot_bytes, setup.slots) = (geometry(2 << 20, 9_001, 2), 1 << 20, 60);
    setup.engine().keep("abcdef");
    let engine = setup.engine();
    engine.until("known", |engine| engine.ask("abcdef") == 6);
    assert_eq!(store.packs().len(), 1);
    *store.other.lock().unwrap() = vec![7; 64 << 20].into();
    store.set(|faults| faults.gets = Fault::Swaps);
    let before = engine.stats().gets;
    assert_eq!(engine.restore("abcdef"), 0);
    engine.until("ended", |engine| engine.stats().reading == 0);
    let stats = engine.stats();
    assert!(stats.gets >= before + 3, "{stats:?}");
    assert!(stats.failed(RemoteFailure::Checksum) >= 3, "{stats:?}");
    assert_eq!(stats.outages, 0);
}

#[test]
fn tables_that_lie_are_refused() {
    for (fault, reason) in [
        (Fault::Flips, "table"),
        (Fault::Swaps, "table"),
        (Fault::Short, "table"),
        (Fault::Fails, "read"),
        (Fault::Hangs, "deadline"),
    ] {
        let store = Store::new();
        let mut setup = Setup::small(&store);
        setup.engine().keep("abc");
        let pack = store.packs().remove(0).1;
        setup.engine().keep("xyz");
        *store.other.lock().unwrap_or_else(PoisonError::into_inner) = pack;
        store.set(|faults| faults.gets = fault);
        setup.options.deadline = DEADLINE;
        let engine = setup.engine();
        assert_eq!(engine.serve("xyz"), 0, "{fault:?}");
        engine.until("told", |engine| failures(&engine.stats()).contains(&reason));
    }
}

#[test]
fn every_damaged_pack_is_refused_or_its_entries_are() {
    let store = Store::new();
    let setup = Setup::small(&store);
    setup.engine().keep("abc");
    let (name, whole) = store.packs().remove(0);
    for at in (0..whole.len()).step_by(whole.len() / 97) {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 0x20;
        store.write(&name, bytes);
        let engine = setup.engine();
        assert!(engine.serve("abc") < 3, "byte {at}");
        assert!(engine.stats().failures.iter().sum::<u64>() > 0, "byte {at}");
    }
    for length in [0, 1, 95, 300, whole.len() - 1] {
        store.write(&name, whole.slice(..length));
        let engine = setup.engine();
        assert_eq!(engine.serve("abc"), 0, "{length} bytes");
        assert!(
            engine.stats().failed(RemoteFailure::Table) > 0,
            "{length} bytes"
        );
    }
    store.write(&name, [&whole[..], b"more"].concat());
    assert_eq!(setup.engine().serve("abc"), 0);
    store.write(&name, whole);
    assert_eq!(setup.engine().serve("abc"), 3);
}

#[test]
fn packs_whose_names_were_swapped_are_refused() {
    let store = Store::new();
    let setup = Setup::small(&store);
    setup.engine().keep("abc");
    setup.engine().keep("xyz");
    let packs = store.packs();
    let ((first, a), (second, b)) = (&packs[0], &packs[1]);
    assert_eq!(a.len(), b.len());
    store.write(first, b.clone());
    store.write(second, a.clone());
    let engine = setup.engine();
    assert_eq!((engine.serve("abc"), engine.serve("xyz")), (0, 0));
    assert_eq!(engine.stats().failed(RemoteFailure::Table), 2);
}

#[test]
fn a_pack_that_leaves_is_missed() {
    let (store, _, engine) = stocked();
    store
        .packs()
        .iter()
        .for_each(|(name, _)| store.delete(name));
    assert_eq!(engine.restore("abcdef"), 0);
    assert_eq!(failures(&engine.stats()), ["gone"]);
    assert_eq!(engine.ask("abcdef"), 0);
}

#[test]
fn foreign_objects_are_left_alone() {
    let (store, setup, engine) = stocked();
    let name = store.packs()[0].0.to_string();
    let folder = name.rsplit_once('/').unwrap().0;
    for other in ["readme", "x.pack", "0-0-0-0.pack", "ff.gone", "a/b.pack"] {
        store.write(&format!("{folder}/{other}").into(), "hello");
    }
    assert_eq!(setup.engine().serve("abcdef"), 6);
    assert_eq!(engine.serve("abcdef"), 6);
}

#[test]
fn a_store_that_hangs_costs_the_deadline_and_then_nothing() {
    let (store, _, engine) = stocked();
    store.set(|faults| {
        (faults.gets, faults.lists, faults.puts) = (Fault::Hangs, Fault::Hangs, Fault::Hangs);
    });
    let begun = Instant::now();
    assert_eq!(engine.restore("abcdef"), 0);
    assert!(begun.elapsed() >= DEADLINE, "it waited");
    engine.until("left alone", |engine| {
        engine.ask("other");
        engine.stats().out
    });
    // While it is out nobody asks it.
    let gets = engine.stats().gets;
    assert_eq!(engine.restore("abcdef"), 0);
    assert_eq!(engine.stats().gets, gets);
    assert!(engine.stats().outages > 0);
    // It comes back by itself.
    store.set(|faults| *faults = Default::default());
    engine.until("back", |engine| !engine.stats().out);
    engine.until("found", |engine| engine.ask("abcdef") == 6);
    assert_eq!(engine.serve("abcdef"), 6);
}

#[test]
fn a_store_that_fails_is_left_alone_and_tried_again() {
    let (store, _, engine) = stocked();
    store.set(|faults| (faults.gets, faults.lists) = (Fault::Fails, Fault::Fails));
    engine.until("left alone", |engine| {
        engine.ask("other");
        engine.stats().out
    });
    let lists = engine.stats().lists;
    engine.until("tried again", |engine| engine.stats().lists > lists + 1);
    assert!(engine.stats().out);
    store.set(|faults| *faults = Default::default());
    engine.until("back", |engine| !engine.stats().out);
    assert!(engine.stats().outages == 1, "{:?}", engine.stats());
    let notes = engine.below.take_notes().join("\n");
    assert!(notes.contains("left alone"), "{notes}");
    assert!(
        !notes.contains("abcdef") && !notes.contains("Signature"),
        "{notes}"
    );
}

#[test]
fn a_store_that_takes_no_writes_still_serves_reads() {
    let (store, setup, engine) = stocked();
    store.set(|faults| faults.puts = Fault::Fails);
    for prompt in ["g", "h", "i", "j", "k"] {
        engine.store(prompt);
        engine.settle();
    }
    let stats = engine.stats();
    assert!(
        stats.failed(RemoteFailure::Write) > 0 && stats.dropped > 0,
        "{stats:?}"
    );
    assert_eq!(engine.serve("abcdef"), 6);
    store.set(|faults| *faults = Default::default());
    engine.until("written", |engine| {
        engine.store("lmn");
        engine.settle();
        engine.stats().writes > 0
    });
    engine.keep("opq");
    assert_eq!(setup.engine().serve("opq"), 3);
}

#[test]
fn a_write_that_takes_too_long_fails() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.write_limit = DEADLINE;
    store.set(|faults| faults.puts = Fault::Hangs);
    let engine = setup.engine();
    engine.store("abc");
    engine.settle();
    assert_eq!(failures(&engine.stats()), ["write"]);
    assert_eq!(engine.tier().failed_writes, 4);
    assert_eq!(engine.load("abc"), 3, "the host has it all the same");
}

#[test]
fn slots_that_change_while_they_are_written_are_not_shared() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.pack_age = Duration::from_millis(200);
    let engine = setup.engine();
    let mut lease = engine.reserve("a", &support::cache_support::whole("a"));
    let slots = lease.entries()[0].slots.clone();
    engine.commit("a", &mut lease);
    engine
        .arena
        .write(slots[0], &vec![1; engine.arena.slot_bytes()])
        .unwrap();
    engine.settle();
    assert_eq!(engine.stats().failed(RemoteFailure::Source), 1);
    assert_eq!(setup.engine().serve("a"), 0);
}

/// Engines over a directory, and the one pack that is in it.
fn directory(prompt: &str) -> (tempfile::TempDir, Setup, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    let setup = Setup::at(RemotePlace::of_url(&url).unwrap());
    setup.engine().keep(prompt);
    let pack = files(folder.path()).remove(0);
    (folder, setup, pack)
}

fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_damaged_pack_of_a_directory_is_refused_or_its_entries_are() {
    let (_folder, setup, pack) = directory("abc");
    let whole = std::fs::read(&pack).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 37) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        std::fs::write(&pack, bytes).unwrap();
        let engine = setup.engine();
        assert!(engine.serve("abc") < 3, "byte {at}");
        assert!(engine.stats().failures.iter().sum::<u64>() > 0, "byte {at}");
    }
    for length in [0, 1, 95, 300, whole.len() - 1] {
        std::fs::write(&pack, &whole[..length]).unwrap();
        assert_eq!(setup.engine().serve("abc"), 0, "{length} bytes");
    }
    std::fs::write(&pack, &whole).unwrap();
    assert_eq!(setup.engine().serve("abc"), 3);
    // It gets shorter, or leaves, when its table is known already.
    for (length, reason) in [(Some(whole.len() - 1), "short"), (None, "gone")] {
        std::fs::write(&pack, &whole).unwrap();
        let engine = setup.engine();
        engine.until("found", |engine| engine.ask("abc") == 3);
        match length {
            Some(length) => std::fs::write(&pack, &whole[..length]).unwrap(),
            None => std::fs::remove_file(&pack).unwrap(),
        }
        assert!(engine.restore("abc") < 3);
        engine.until("ended", |engine| engine.stats().reading == 0);
        assert_eq!(failures(&engine.stats()), [reason]);
    }
}

#[test]
fn slots_that_change_while_they_are_written_to_a_directory_are_left_out() {
    let (folder, mut setup, _) = directory("abc");
    setup.options.pack_age = Duration::from_millis(200);
    let engine = setup.engine();
    let mut lease = engine.reserve("xy", &support::cache_support::whole("xy"));
    let slots = lease.entries()[1].slots.clone();
    engine.commit("xy", &mut lease);
    engine
        .arena
        .write(slots[0], &vec![1; engine.arena.slot_bytes()])
        .unwrap();
    engine.settle();
    let stats = engine.stats();
    assert_eq!((stats.failed(RemoteFailure::Source), stats.writes), (1, 2));
    let names = files(folder.path());
    assert_eq!(names.len(), 2, "nothing but packs: {names:?}");
    assert!(setup.engine().serve("xy") < 2);
    assert_eq!(setup.engine().serve("abc"), 3);
}

#[test]
fn a_directory_that_takes_no_writes_serves_reads() {
    let (folder, setup, pack) = directory("abc");
    let engine = setup.engine();
    assert_eq!(engine.serve("abc"), 3);
    // A file where the folder of the packs was.
    let packs = pack.parent().unwrap();
    let aside = folder.path().join("aside");
    std::fs::rename(packs, &aside).unwrap();
    std::fs::write(packs, b"").unwrap();
    engine.store("xyz");
    engine.settle();
    assert_eq!(engine.stats().failed(RemoteFailure::Write), 4);
    assert_eq!(engine.stats().writes, 0);
    std::fs::remove_file(packs).unwrap();
    std::fs::rename(&aside, packs).unwrap();
    assert_eq!(setup.engine().serve("abc"), 3);
}

#[test]
fn a_store_that_dies_in_the_middle_leaves_the_cache_whole() {
    for fault in [Fault::Fails, Fault::Hangs, Fault::Gone, Fault::Flips] {
        let (store, setup, engine) = stocked();
        let prompts: Vec<String> = (0..30)
            .map(|n| format!("{}pq", char::from(b'!' + n)))
            .collect();
        for (n, prompt) in prompts.iter().enumerate() {
            if n == 10 {
                store
                    .set(|faults| (faults.gets, faults.lists, faults.puts) = (fault, fault, fault));
            }
            if n == 20 {
                store.set(|faults| *faults = Default::default());
            }
            engine.serve(prompt);
            engine.store(prompt);
            engine.audit();
        }
        engine.until("ended", |engine| engine.stats().writing == 0);
        drop(engine);
        let other = setup.engine();
        for prompt in &prompts[..10] {
            other.until("listed", |other| !other.hit(prompt).asking);
            other.serve(prompt);
        }
    }
}

#[test]
fn every_copy_ends_when_a_task_panics() {
    let (store, setup, engine) = stocked();
    store.set(|faults| faults.gets = Fault::Panics);
    assert_eq!(engine.restore("abcdef"), 0);
    engine.until("ended", |engine| engine.stats().reading == 0);
    assert_eq!(failures(&engine.stats()), ["panic"]);
    store.set(|faults| (faults.gets, faults.puts) = (Fault::None, Fault::Panics));
    engine.store("xyz");
    engine.until("ended", |engine| engine.stats().writing == 0);
    assert_eq!(engine.stats().writes, 0);
    store.set(|faults| (faults.puts, faults.lists) = (Fault::None, Fault::Panics));
    let lists = engine.stats().lists;
    engine.until("listed", |engine| {
        engine.ask("other");
        engine.stats().lists > lists
    });
    assert_eq!(failures(&engine.stats()), ["panic"]);
    let notes = engine.below.take_notes().join("\n");
    assert!(notes.contains("panicked"), "{notes}");
    // It goes on when the client does.
    store.set(|faults| *faults = Default::default());
    engine.until("found", |engine| engine.serve("abcdef") == 6);
    engine.until("written", |engine| {
        engine.store("mno");
        engine.settle();
        engine.stats().writes > 0
    });
    assert_eq!(setup.engine().serve("mno"), 3);
}

#[test]
fn a_reset_takes_back_what_was_written_though_the_client_panics() {
    let store = Store::new();
    let setup = Setup::small(&store);
    let engine = setup.engine();
    engine.keep("abc");
    store.set(|faults| faults.puts = Fault::Panics);
    engine.cache.clear();
    engine.until("panicked", |engine| {
        engine.stats().failed(RemoteFailure::Panic) > 0
    });
    store.set(|faults| *faults = Default::default());
    engine.settle();
    assert_eq!(store.packs().len(), 0);
    assert_eq!(setup.engine().serve("abc"), 0);
}

#[test]
fn closing_ends_what_hangs_and_touches_no_slots_afterwards() {
    let (store, _, engine) = stocked();
    store.set(|faults| (faults.gets, faults.puts) = (Fault::Hangs, Fault::Hangs));
    engine.store("xyz");
    engine
        .cache
        .promote(engine.namespace, &support::cache_support::keys("abcdef"), 0)
        .unwrap();
    let begun = Instant::now();
    engine.below.close();
    engine.below.close();
    assert!(begun.elapsed() < LIMIT);
    assert_eq!((engine.stats().reading, engine.stats().writing), (0, 0));
    engine.cache.poll();
    assert_eq!(engine.ask("abcdef"), 0);
    store.set(|faults| *faults = Default::default());
    assert_eq!(engine.restore("abcdef"), 0);
    engine.store("mno");
    assert_eq!(engine.load("mno"), 3);
}

#[test]
fn slow_answers_within_the_deadline_count() {
    let (store, mut setup, _) = stocked();
    setup.options.deadline = Duration::from_secs(20);
    let slow = Fault::Slow(Duration::from_millis(30));
    store.set(|faults| (faults.gets, faults.lists) = (slow, slow));
    let engine = setup.engine();
    engine.until("found", |engine| engine.ask("abcdef") == 6);
    assert_eq!(engine.serve("abcdef"), 6);
    assert!(engine.stats().latency_us >= 30_000);
}
