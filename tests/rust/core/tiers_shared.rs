//! Tiers that others share: they ask before they know, are weighed against computing, and may take only what is
//! proven to be used again.

use crate::tiers_support;

use std::time::Duration;

use hybrid_pages::cache::{Arrival, RestoreProgress};
use hybrid_pages::error::Error;
use hybrid_pages::ids::ClassKind;
use hybrid_pages::policy::Hints;
use tiers_support::cache_support::{class, keys, pages, whole};
use tiers_support::{Engine, Handle, LARGE, Size, hybrid};

/// An engine over a tier that has these prompts, and has to ask for them.
fn asking(prompts: &[&str]) -> (Engine, Handle) {
    let (engine, shelf) = Engine::hybrid(64);
    prompts.iter().for_each(|prompt| engine.store_below(prompt));
    drop(engine);
    shelf.lock().asked = Some(Default::default());
    (Engine::new(&hybrid(), 64, &[(shelf.clone(), LARGE)]), shelf)
}

fn arrival(blocks: usize) -> Arrival {
    Arrival {
        now: 0,
        tokens: blocks as u64,
        limit: blocks,
        hints: Hints::NONE,
    }
}

/// A request as an engine runs it: it arrives, and its prompt is stored.
fn serve(engine: &Engine, prompt: &str) {
    arrive(engine, prompt);
    engine.store(prompt, &whole(prompt));
    engine.cache.poll();
}

fn arrive(engine: &Engine, prompt: &str) {
    let admission = engine
        .cache
        .admit(engine.namespace, &keys(prompt), arrival(prompt.len()));
    assert!(admission.is_ok());
    engine.cache.poll();
}

/// A tier that waits for proof.
fn proving(size: Size) -> (Engine, Handle) {
    let shelf = Handle::default();
    shelf.lock().waits_for_proof = true;
    let engine = Engine::new(&hybrid(), 64, &[(shelf.clone(), size)]);
    (engine, shelf)
}

#[test]
fn a_tier_that_asks_is_asked_about_the_whole_prompt_at_once() {
    let (engine, shelf) = asking(&["abc"]);
    let hit = engine.hit("abcd");
    assert_eq!((hit.blocks, hit.pages, hit.asking), (0, 0, true));
    assert_eq!(engine.cache.stats().nodes, 0, "nothing is known yet");
    assert!(!engine.promote("abcd"));
    assert!(engine.restore("abcd", 0).is_none());
    assert_eq!(
        shelf.lock().answer(),
        8,
        "pages and checkpoints of 4 blocks"
    );
    let hit = engine.hit("abcd");
    assert_eq!((hit.blocks, hit.pages, hit.asking), (3, 3, false));
    let mut restore = engine.restore("abcd", 0).unwrap();
    assert_eq!(engine.take_all("abcd", &mut restore).len(), 4);
    assert_eq!(engine.load("abcd"), 3);
}

#[test]
fn what_is_known_counts_while_a_tier_asks() {
    let (engine, shelf) = asking(&["abcdef"]);
    engine.store_below("abc");
    let hit = engine.hit("abcdef");
    assert_eq!((hit.blocks, hit.host, hit.asking), (3, 3, true));
    assert_eq!(engine.load("abcdef"), 3);
    assert!(engine.restore("abcdef", 0).is_none());
    // It was not asked for what was just put there.
    assert_eq!(shelf.lock().answer(), 2 * 3);
    assert_eq!(engine.depths("abcdef"), (6, 3));
    assert!(engine.promote("abcdef"));
    engine.cache.poll();
    assert_eq!(engine.load("abcdef"), 6);
}

#[test]
fn nobody_waits_for_what_could_not_be_deeper() {
    let (engine, shelf) = asking(&[]);
    shelf.lock().declines = vec![hybrid_pages::policy::EntryKind::Page];
    engine.store("abc", &whole("abc"));
    let hit = engine.hit("abc");
    assert_eq!((hit.blocks, hit.asking), (3, false));
    assert!(engine.hit("abcd").asking);
}

#[test]
fn an_answer_of_nothing_ends_the_asking() {
    let (engine, shelf) = asking(&[]);
    assert!(engine.hit("xyz").asking);
    assert!(engine.hit("xyz").asking, "until the answer has come");
    shelf.lock().answer();
    let hit = engine.hit("xyz");
    assert_eq!((hit.blocks, hit.asking), (0, false));
}

#[test]
fn without_pages_every_block_is_asked_for() {
    let classes = [
        class(ClassKind::Window, 2, 1),
        class(ClassKind::Recurrent, 0, 1),
    ];
    let shelf = Handle::default();
    let below = [(shelf.clone(), LARGE)];
    let engine = Engine::new(&classes, 16, &below);
    assert_eq!(engine.store("abc", &[(0, 1), (0, 2), (1, 2)]), 3);
    engine.cache.poll();
    drop(engine);
    shelf.lock().asked = Some(Default::default());
    let engine = Engine::new(&classes, 16, &below);
    assert!(engine.hit("abcd").asking);
    assert_eq!(shelf.lock().answer(), 8);
    let hit = engine.hit("abcd");
    assert_eq!((hit.blocks, hit.asking), (3, false));
}

#[test]
fn each_tier_asks_for_itself() {
    let (near, far) = (Handle::default(), Handle::default());
    let below = [(near.clone(), LARGE), (far.clone(), LARGE)];
    let engine = Engine::new(&hybrid(), 64, &below);
    engine.store_below("abc");
    drop(engine);
    near.lock().entries.retain(|key, _| key.block_index < 2);
    far.lock().asked = Some(Default::default());
    let engine = Engine::new(&hybrid(), 64, &below);
    let hit = engine.hit("abc");
    assert_eq!((hit.pages, hit.asking), (2, true));
    far.lock().answer();
    assert_eq!(
        (engine.hit("abc").blocks, engine.hit("abc").asking),
        (3, false)
    );
    assert!(engine.promote("abc"));
    engine.cache.poll();
    assert_eq!(engine.load("abc"), 3);
}

/// One tier of a pace that has `abcdef`, with a checkpoint after 2 and 6 blocks; the host has the first two.
fn weighed(pace: [u64; 3]) -> (Engine, Handle) {
    let (engine, shelf) = Engine::hybrid(64);
    engine.store("abcdef", &[pages(0..6), vec![(1, 1), (1, 5)]].concat());
    engine.cache.poll();
    drop(engine);
    shelf.lock().pace = Some(pace.map(Duration::from_micros));
    let engine = Engine::new(&hybrid(), 64, &[(shelf.clone(), LARGE)]);
    assert!(engine.promote("ab"));
    engine.cache.poll();
    assert_eq!(engine.depths("abcdef"), (6, 2));
    (engine, shelf)
}

#[test]
fn what_takes_longer_to_read_than_to_compute_is_not_read() {
    // 4 pages of a slot and a checkpoint of two, to be read together.
    for (pace, time) in [
        ([400, 0, 0], 400),
        ([0, 80, 0], 400),
        ([0, 0, 1], 6 * 32),
        ([100, 10, 1], 100 + 50 + 6 * 32),
    ] {
        for worth in [false, true] {
            let computing = if worth { time + 1 } else { time - 1 };
            let rate = 4e6 / computing as f64;

            let (engine, _shelf) = weighed(pace);
            engine.cache.set_compute_rate(Some(rate)).unwrap();
            assert_eq!(engine.promote("abcdef"), worth, "{pace:?}");
            engine.cache.poll();
            assert_eq!(engine.load("abcdef"), if worth { 6 } else { 2 });
            assert_eq!(engine.cache.restores().not_worth, u64::from(!worth));

            let (engine, _shelf) = weighed(pace);
            engine.cache.set_compute_rate(Some(rate)).unwrap();
            assert_eq!(engine.restore("abcdef", 2).is_some(), worth);
            assert_eq!(engine.cache.restores().not_worth, u64::from(!worth));
        }
    }
}

#[test]
fn what_would_not_come_in_time_is_read_less_deep() {
    // The host has 2 blocks. 2 more pages of 32 bytes and 2 more checkpoints of 64 are below, at 4 and 6.
    for (bytes, depth) in [
        (6 * 32, 6),
        (6 * 32 - 1, 4),
        (4 * 32, 4),
        (4 * 32 - 1, 2),
        (0, 2),
    ] {
        let (engine, shelf) = Engine::hybrid(64);
        engine.store(
            "abcdef",
            &[pages(0..6), vec![(1, 1), (1, 3), (1, 5)]].concat(),
        );
        engine.cache.poll();
        drop(engine);
        shelf.lock().in_time = Some(u64::MAX);
        let engine = Engine::new(&hybrid(), 64, &[(shelf.clone(), LARGE)]);
        assert!(engine.promote("ab"));
        engine.cache.poll();
        shelf.lock().in_time = Some(bytes);
        assert_eq!(engine.promote("abcdef"), depth > 2, "{bytes}");
        engine.cache.poll();
        assert_eq!(engine.load("abcdef"), depth, "{bytes}");
        assert_eq!(engine.cache.restores().not_worth, u64::from(depth < 6));
    }
}

#[test]
fn only_what_the_engine_lacks_is_weighed() {
    // Five entries are read for four blocks; from the fifth block on, two for one.
    let (engine, _shelf) = weighed([0, 1000, 0]);
    engine.cache.set_compute_rate(Some(700.0)).unwrap();
    assert!(engine.restore("abcdef", 5).is_none());
    assert_eq!(engine.cache.restores().not_worth, 1);
    assert!(engine.restore("abcdef", 2).is_some());
    // What lies before the first is not read, though the host lacks it.
    let (engine, shelf) = weighed([0, 1000, 0]);
    drop(engine);
    let engine = Engine::new(&hybrid(), 64, &[(shelf, LARGE)]);
    engine.cache.set_compute_rate(Some(400.0)).unwrap();
    assert!(engine.restore("abcdef", 4).is_some());
    assert!(
        !engine
            .cache
            .promote(engine.namespace, &keys("abcdef"), 4)
            .unwrap()
    );
}

#[test]
fn nothing_is_weighed_while_the_rate_is_unknown_and_a_rate_can_be_forgotten() {
    let (engine, _shelf) = weighed([1_000_000, 0, 0]);
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let refused = engine.cache.set_compute_rate(Some(rate));
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    }
    engine.cache.set_compute_rate(Some(1e6)).unwrap();
    assert!(engine.restore("abcdef", 0).is_none());
    engine.cache.set_compute_rate(None).unwrap();
    assert!(engine.restore("abcdef", 0).is_some());
    assert_eq!(engine.cache.restores().not_worth, 1);
}

#[test]
fn a_nearer_tier_serves_what_is_not_worth_reading_from_far() {
    let (near, far) = (Handle::default(), Handle::default());
    let below = [(near.clone(), LARGE), (far.clone(), LARGE)];
    let engine = Engine::new(&hybrid(), 64, &below);
    engine.store("abcdef", &[pages(0..6), vec![(1, 1), (1, 5)]].concat());
    engine.cache.poll();
    drop(engine);
    near.lock().entries.retain(|key, _| key.block_index < 3);
    far.lock().pace = Some([Duration::from_secs(1), Duration::ZERO, Duration::ZERO]);
    let engine = Engine::new(&hybrid(), 64, &below);
    engine.cache.set_compute_rate(Some(100.0)).unwrap();
    assert_eq!(engine.depths("abcdef"), (6, 0));
    let mut restore = engine.restore("abcdef", 0).unwrap();
    assert_eq!(restore.blocks(), 2);
    let depths = [
        ("host".to_owned(), 0),
        ("memory".to_owned(), 2),
        ("memory".to_owned(), 2),
    ];
    assert_eq!(restore.depths(), depths);
    assert_eq!(engine.take_all("abcdef", &mut restore).len(), 3);
    assert_eq!(restore.progress(), RestoreProgress::Done);
    assert_eq!(engine.cache.tiers()[1].read, 0);
    // Slow enough an engine reads all of it.
    engine.cache.set_compute_rate(Some(3.0)).unwrap();
    let restore = engine.restore("abcdef", 2).unwrap();
    let depths = restore.depths().iter().map(|&(_, blocks)| blocks);
    assert!(depths.eq([2, 2, 6]));
}

#[test]
fn one_shot_prompts_stay_out_and_what_is_shared_goes_down_when_it_is() {
    let (engine, shelf) = proving(LARGE);
    serve(&engine, "abcde");
    serve(&engine, "uvwxy");
    assert_eq!(shelf.places(), []);
    assert!(engine.tier().declined > 0);
    // A second request that leaves the first after three blocks.
    arrive(&engine, "abcxy");
    assert_eq!(shelf.places(), pages(0..3), "at once, without a commit");
    serve(&engine, "abcde");
    assert_eq!((shelf.count("abcde"), shelf.count("uvwxy")), (6, 0));
    assert_eq!(engine.cache.stats().leased_slots, 0);
}

#[test]
fn requests_at_the_same_time_prove_each_other() {
    let (engine, shelf) = proving(LARGE);
    arrive(&engine, "abc");
    arrive(&engine, "abx");
    engine.store_below("abc");
    assert_eq!(shelf.places(), pages(0..2));
}

#[test]
fn what_a_request_stores_later_does_not_prove_what_it_stored_before() {
    let (engine, shelf) = proving(LARGE);
    arrive(&engine, "abc");
    for end in 1..=5 {
        let prompt = &"abcde"[..end];
        engine.store(prompt, &whole(prompt));
        engine.cache.poll();
    }
    let finished = engine.cache.finish(engine.namespace, &keys("abcde"), 3, 2);
    assert_eq!((finished, shelf.places()), (Ok(()), vec![]));
    // The next turn does.
    arrive(&engine, "abcdefg");
    assert_eq!(shelf.count("abcde"), 10);
}

#[test]
fn what_was_asked_to_be_retained_is_proven() {
    let (engine, shelf) = proving(LARGE);
    let hints = Hints {
        retain: 1000,
        ..Hints::NONE
    };
    arrive(&engine, "abc");
    let cache = &engine.cache;
    let lease = cache.reserve_hinted(engine.namespace, &keys("abc"), &whole("abc"), &hints);
    engine.commit("abc", &mut lease.unwrap());
    engine.cache.poll();
    assert_eq!(shelf.count("abc"), 4);
}

#[test]
fn a_full_queue_takes_what_is_proven_with_the_next_request() {
    let (engine, shelf) = proving(Size {
        slots: 100,
        queue: 2,
    });
    serve(&engine, "abc");
    shelf.pause();
    arrive(&engine, "abc");
    assert_eq!(shelf.lock().under_way(), 2);
    arrive(&engine, "abc");
    assert_eq!(shelf.lock().under_way(), 2, "nothing twice");
    shelf.resume();
    engine.cache.poll();
    arrive(&engine, "abcd");
    arrive(&engine, "abcd");
    assert_eq!(shelf.count("abc"), 4);
}

#[test]
fn a_tier_that_takes_everything_is_offered_nothing_again() {
    let (near, far) = (Handle::default(), Handle::default());
    far.lock().waits_for_proof = true;
    let below = [(near.clone(), LARGE), (far.clone(), LARGE)];
    let engine = Engine::new(&hybrid(), 64, &below);
    near.lock().declines = vec![hybrid_pages::policy::EntryKind::Page];
    serve(&engine, "abc");
    near.lock().declines.clear();
    let before = engine.cache.tiers()[0].declined;
    arrive(&engine, "abc");
    assert_eq!((near.places(), far.count("abc")), (vec![], 4));
    assert_eq!(engine.cache.tiers()[0].declined, before);
}

#[test]
fn a_clear_forgets_what_was_proven() {
    let (mut engine, shelf) = proving(LARGE);
    serve(&engine, "abc");
    arrive(&engine, "abc");
    assert_eq!(shelf.count("abc"), 4);
    engine.cache.clear();
    engine.weights += 1;
    serve(&engine, "abc");
    assert_eq!(shelf.places(), []);
}

#[test]
fn prompts_of_unlike_lengths_whose_last_keys_are_equal_are_asked_about_apart() {
    let recurrent = vec![class(ClassKind::Recurrent, 0, 1)];
    for (classes, asks) in [(&recurrent, false), (&recurrent, true), (&hybrid(), true)] {
        let shelf = Handle::default();
        shelf.lock().asked = asks.then(Default::default);
        let engine = Engine::new(classes, 64, &[(shelf.clone(), LARGE)]);
        let long = keys(&"x".repeat(700));
        // No chained hashes: whoever calls the cache may give it any keys.
        for blocks in [700, 1, 300, 700, 2, 257, 256] {
            let prompt = &long[700 - blocks..];
            let hit = engine.cache.lookup(engine.namespace, prompt).unwrap();
            assert_eq!((hit.blocks, hit.asking), (0, asks), "{blocks} blocks");
        }
        assert!(engine.cache.failure().is_none());
    }
}
