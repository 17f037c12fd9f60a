//! Entries outlive the process, and come back with every byte.

use crate::support;

use support::cache_support::keys;
use support::{Setup, geometry};

#[test]
fn what_was_written_comes_back_after_a_restart() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    let engine = setup.engine();
    engine.keep("abc");
    engine.keep("xyzw");
    let stats = engine.stats();
    assert_eq!(
        (stats.writes, stats.durable, stats.failures),
        (9, 9, [0; 17])
    );
    assert!(stats.persistent);
    drop(engine);
    let engine = setup.engine();
    assert_eq!(engine.stats().left_over, 9);
    let hit = engine.hit("abcd");
    assert_eq!((hit.blocks, hit.host), (3, 0));
    assert_eq!(engine.restore("abcd"), 3);
    assert_eq!(engine.restore("xyzwv"), 4);
    let stats = engine.stats();
    assert_eq!(
        (stats.reads, stats.left_over, stats.failures),
        (9, 0, [0; 17])
    );
    assert_eq!(engine.restore("other"), 0);
}

#[test]
fn tails_come_back_after_a_restart_and_are_found_by_their_lengths() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    let engine = setup.engine();
    for prompt in ["abC", "abE", "G"] {
        engine.keep(prompt);
    }
    drop(engine);
    let engine = setup.engine();
    assert_eq!(engine.stats().left_over, 2 + 3 * 2);
    let lengths = || {
        let found = engine
            .cache
            .tail_lengths(engine.namespace, &keys("ab"), 0, true);
        found.unwrap().behind
    };
    assert_eq!(lengths(), [(0, vec![7])]);
    assert_eq!(engine.hit("ab").pages, 2);
    assert_eq!(lengths(), [(0, vec![7]), (2, vec![3, 5])]);
    let has = |prompt: &str| {
        let (tail, before) = keys(prompt)
            .split_last()
            .map(|(tail, it)| (*tail, it.len()))
            .unwrap();
        let has = engine.cache.has_tails(engine.namespace, before, &[tail]);
        has.unwrap()
    };
    assert_eq!(has("abE"), (vec![true], false));
    assert_eq!(has("abD"), (vec![false], false));
    assert_eq!(has("E"), (vec![false], false));
    // To be asked whether it has them changes nothing: they are still left over.
    assert_eq!(engine.stats().left_over, 2 + 3 * 2 - 2);
    assert_eq!(engine.restore("abE"), 3);
    assert_eq!(engine.restore("G"), 1);
    assert_eq!(engine.restore("abD"), 0);
    assert_eq!(engine.stats().failures, [0; 17]);
    engine.cache.clear();
    assert_eq!(lengths(), []);
}

#[test]
fn entries_of_many_pieces_come_back() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    setup.geometry = geometry(3 << 20, (2 << 20) + 12_345, 3);
    setup.slot_bytes = 3 * 500_000;
    let engine = setup.engine();
    engine.keep("ab");
    drop(engine);
    let engine = setup.engine();
    assert_eq!(engine.restore("ab"), 2);
}

#[test]
#[should_panic(expected = "other bytes")]
fn a_restore_that_gives_other_bytes_fails_these_tests() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    setup.engine().keep("abc");
    let mut engine = setup.engine();
    engine.weights += 1;
    engine.restore("abc");
}

#[test]
fn an_engine_that_does_nothing_more_leaves_nothing_unwritten() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    let engine = setup.engine();
    engine.store("abc");
    // Nobody calls the cache.
    while engine.stats().durable < 4 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
