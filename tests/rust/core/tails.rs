//! Tails: prefixes that end inside a block. Prompts are strings, one letter per block, and a capital letter at the end
//! is a tail: of one token, if it is an A.

use crate::tiers_support;

use hybrid_pages::cache::{Cache, CacheConfig, TailLengths};
use hybrid_pages::error::Error;
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use tiers_support::cache_support::{
    CHECKPOINT, PAGE, Small, class, commit, config, keys, pages, whole,
};
use tiers_support::{Engine, Handle, LARGE, hybrid};

/// The numbers of tokens of tails behind the boundaries of a prompt, from `first` on.
fn lengths(cache: &Cache, namespace: NamespaceId, prompt: &str, first: usize) -> TailLengths {
    cache
        .tail_lengths(namespace, &keys(prompt), first, true)
        .unwrap()
}

fn behind(small: &Small, prompt: &str, first: usize) -> Vec<(usize, Vec<u32>)> {
    let found = lengths(&small.cache, small.namespace, prompt, first);
    assert!(!found.asking);
    found.behind
}

fn refused<T>(result: Result<T, Error>, part: &str) {
    let told = match result.map(drop) {
        Err(Error::InvalidArgument(told)) => told,
        other => panic!("expected a refusal, found {other:?}"),
    };
    assert!(told.contains(part), "{told}");
}

#[test]
fn a_key_of_31_bytes_is_a_tails_and_tells_its_tokens_and_where_it_hangs() {
    let whole = keys("ab")[1];
    assert_eq!((whole.tail_tokens(), whole.stem()), (None, None));
    for before in [None, Some(&whole)] {
        let key = PrefixKey::tail(before, &[9; 19], 783).unwrap();
        assert_eq!(key.as_bytes().len(), 31);
        assert_eq!(key.tail_tokens(), Some(783));
        assert_eq!(key.stem(), Some(before.map_or(0, PrefixKey::short)));
        assert_eq!(PrefixKey::new(key.as_bytes()), Ok(key));
        refused(PrefixKey::tail(Some(&key), &[9; 32], 1), "another tail");
        refused(PrefixKey::tail(before, &[9; 32], 0), "found none");
        refused(PrefixKey::tail(before, &[9; 18], 1), "19 bytes, found 18");
    }
    refused(
        PrefixKey::new(&[&[9; 27][..], &[0; 4]].concat()),
        "at least 1 token",
    );
}

#[test]
fn a_tail_is_hit_behind_its_block_alone() {
    let small = Small::hybrid(16);
    small.store_prompt("abT");
    assert_eq!(small.depth("abT"), 3);
    assert_eq!(small.read("abT").blocks(), 3);
    assert_eq!(small.depth("abS"), 0, "of two pages without a checkpoint");
    assert_eq!(small.depth("acT"), 0);
    assert_eq!(small.depth("ab"), 0);
    assert_eq!(small.depth("T"), 0);
    small.store_prompt("A");
    assert_eq!((small.depth("A"), small.depth("B")), (1, 0));
    // Without its page before it, a tail is out of reach.
    small.cache.invalidate(&small.read("abT")).unwrap();
    assert_eq!(small.hit("abT").pages, 0);
    assert_eq!(behind(&small, "ab", 0), [(0, vec![1])]);
}

#[test]
fn a_tail_without_its_checkpoint_or_page_is_no_hit() {
    let small = Small::hybrid(16);
    small.store("abT", &pages(0..3));
    assert_eq!((small.depth("abT"), small.hit("abT").pages), (0, 3));
    small.store("abT", &[(1, 2)]);
    assert_eq!(small.depth("abT"), 3);
    assert_eq!(small.store("abS", &[(1, 2)]), 0, "a state without its page");
    assert_eq!(small.depth("abS"), 0);
}

#[test]
fn at_a_tail_a_window_needs_a_page_more() {
    let classes = [
        PAGE,
        class(ClassKind::Window, 2, 1),
        class(ClassKind::Recurrent, 0, 1),
    ];
    for first in 0..4 {
        let small = Small::new(&classes, 64);
        let mut entries = pages(0..4);
        entries.extend((first..4).map(|block| (1, block)));
        entries.push((2, 3));
        small.store("abcT", &entries);
        assert_eq!(
            small.depth("abcT"),
            if first <= 1 { 4 } else { 0 },
            "{first}"
        );
        small.store("abcd", &entries);
        assert_eq!(
            small.depth("abcd"),
            if first <= 2 { 4 } else { 0 },
            "{first}"
        );
        if first <= 1 {
            // The lease has what the hit needs: pages from 1 on, for a window of two blocks.
            let places = |prompt| -> Vec<usize> {
                let lease = small.read(prompt);
                let windows = lease
                    .entries()
                    .iter()
                    .filter(|entry| entry.class_index == 1);
                windows.map(|entry| entry.block_index).collect()
            };
            assert_eq!(places("abcT"), [1, 2, 3]);
            assert_eq!(places("abcd"), [2, 3]);
        }
    }
}

#[test]
fn the_index_knows_the_lengths_of_tails_until_the_last_one_is_gone() {
    let small = Small::hybrid(64);
    assert_eq!(behind(&small, "", 0), []);
    for prompt in ["B", "A", "aD", "abT", "abC", "abD", "acX"] {
        small.store(prompt, &whole(prompt));
    }
    let all = vec![(0, vec![1, 2]), (1, vec![4]), (2, vec![3, 4, 20])];
    assert_eq!(behind(&small, "abc", 0), all);
    assert_eq!(behind(&small, "abT", 0), all);
    assert_eq!(behind(&small, "abc", 2), all[2..]);
    assert_eq!(behind(&small, "abc", 3), []);
    assert_eq!(behind(&small, "ad", 1), all[1..2]);
    let has = |blocks, prompt: &str| {
        let tail = *keys(prompt).last().unwrap();
        small
            .cache
            .has_tails(small.namespace, blocks, &[tail])
            .unwrap()
            .0[0]
    };
    assert!(has(0, "A") && has(2, "abT") && !has(0, "C") && !has(2, "abA"));
    // Another namespace has none of them.
    let other = small.cache.namespace(b"adapter").unwrap();
    assert_eq!(
        lengths(&small.cache, other, "abc", 0),
        TailLengths::default()
    );
    // Two tails of one length: the length is known until both are gone.
    let [one, two] = [[1; 32], [2; 32]].map(|digest| PrefixKey::tail(None, &digest, 9).unwrap());
    for key in [one, two] {
        commit(
            &mut small
                .cache
                .reserve(small.namespace, &[key], &[(0, 0), (1, 0)])
                .unwrap(),
        );
    }
    for (key, left) in [(one, vec![1, 2, 9]), (two, vec![1, 2])] {
        assert_eq!(behind(&small, "", 0), [(0, vec![1, 2, 9])]);
        let lease = small
            .cache
            .acquire(small.namespace, &[key], 0)
            .unwrap()
            .unwrap();
        small.cache.invalidate(&lease).unwrap();
        assert_eq!(behind(&small, "", 0), [(0, left)]);
    }
    small.cache.clear();
    assert_eq!(behind(&small, "abc", 0), []);
}

#[test]
fn nothing_hangs_from_a_tail_and_a_tail_hangs_from_its_block() {
    let small = Small::hybrid(16);
    small.store_prompt("abT");
    let [prefix, tail, other] = [keys("ab"), keys("abT"), keys("abTc")];
    let below: Vec<PrefixKey> = [&tail[..], &other[3..]].concat();
    let of_other: Vec<PrefixKey> = [&prefix[..1], &tail[2..]].concat();
    let (cache, namespace) = (&small.cache, small.namespace);
    for entries in [&[(0, 3)][..], &[(0, 2), (0, 3)], &[(0, 0), (0, 3)]] {
        refused(cache.reserve(namespace, &below, entries), "key of block 2");
    }
    refused(cache.lookup(namespace, &below), "the last of 4 keys");
    refused(cache.restore(namespace, &below, 0), "the last of 4 keys");
    refused(cache.reserve(namespace, &of_other, &[(0, 1)]), "tail_key()");
    refused(cache.lookup(namespace, &of_other), "tail_key()");
    for keys in [&prefix[..], &[], &below, &of_other] {
        assert!(cache.supersede(namespace, keys).is_err());
        assert!(cache.continue_tail(namespace, keys).is_err());
    }
    assert_eq!(small.depth("abT"), 3);
    assert_eq!(cache.stats().nodes, 3);
    // What is stored before the tail does not look at it.
    assert_eq!(
        commit(&mut cache.reserve(namespace, &below, &[(1, 1)]).unwrap()),
        1
    );
}

#[test]
fn a_follower_hears_of_no_tail() {
    use hybrid_pages::cache::{Changes, Medium};
    let small = Small::hybrid(16);
    small.cache.follow().unwrap();
    small.store_prompt("abT");
    assert_eq!(small.cache.changes(Medium::Host, false), Changes::default());
    small.store("ab", &[(1, 1)]);
    let stored = small.cache.changes(Medium::Host, false).stored;
    let blocks: Vec<PrefixKey> = stored[0].blocks.iter().map(|block| block.0).collect();
    assert_eq!((stored.len(), blocks), (1, keys("ab")));
    small.cache.clear();
    assert_eq!(small.cache.changes(Medium::Host, false).removed.len(), 2);
}

// ---- what goes first

fn tight(policy: &str, slots: usize) -> (Cache, NamespaceId) {
    let config = CacheConfig {
        policy: policy.into(),
        ..config(&[PAGE, CHECKPOINT], slots)
    };
    let cache = Cache::new(&config).unwrap();
    let namespace = cache.namespace(b"engine").unwrap();
    (cache, namespace)
}

/// Which of three conversations' ends are there after a fourth prompt has taken the room of one; `told` says what
/// became of the ends, of which the last was used last.
fn left(policy: &str, told: impl Fn(&Cache, NamespaceId)) -> Vec<&'static str> {
    let (cache, namespace) = tight(policy, 6);
    let store = |prompt: &str| {
        let mut lease = cache
            .reserve(namespace, &keys(prompt), &whole(prompt))
            .unwrap();
        assert_eq!(commit(&mut lease), 2);
    };
    let ends = ["A", "B", "C"];
    ends.into_iter().for_each(store);
    told(&cache, namespace);
    store("x");
    assert_eq!(cache.audit(), None);
    let there = |prompt: &&str| cache.lookup(namespace, &keys(prompt)).unwrap().blocks == 1;
    ends.into_iter().filter(there).collect()
}

#[test]
fn a_superseded_end_goes_first_whatever_was_used_last() {
    for policy in ["lru", "reuse"] {
        assert_eq!(
            left(policy, |_, _| ()),
            ["B", "C"],
            "{policy}: the oldest goes first"
        );
        for (prompt, others) in [("B", ["A", "C"]), ("C", ["A", "B"])] {
            let told = |cache: &Cache, namespace| {
                let keys = keys(prompt);
                cache.continue_tail(namespace, &keys).unwrap();
                cache.supersede(namespace, &keys).unwrap();
            };
            assert_eq!(left(policy, told), others, "{policy}");
        }
        // Nobody has to have gone on from it: a request may have passed it.
        let passed = |cache: &Cache, namespace| cache.supersede(namespace, &keys("C")).unwrap();
        assert_eq!(left(policy, passed), ["A", "B"], "{policy}");
    }
}

#[test]
fn an_end_that_two_requests_went_on_from_keeps_its_worth() {
    for policy in ["lru", "reuse"] {
        let told = |cache: &Cache, namespace| {
            let keys = keys("C");
            for _ in 0..2 {
                cache.continue_tail(namespace, &keys).unwrap();
                cache
                    .acquire(namespace, &keys, 0)
                    .unwrap()
                    .unwrap()
                    .release();
                cache.supersede(namespace, &keys).unwrap();
            }
        };
        let left = left(policy, told);
        assert!(left.contains(&"C"), "{policy}: {left:?}");
    }
}

/// Whether the checkpoint after "ab", and the older end "A", are there after a prompt has taken the room of one entry,
/// where a request went on from "abT" and what `others` end in hangs from "ab", too.
fn passed(policy: &str, others: &[&str], goes_on: bool) -> (bool, bool) {
    let (cache, namespace) = tight(policy, 8 + 2 * others.len());
    let store = |prompt: &str, entries: &[(usize, usize)]| {
        commit(&mut cache.reserve(namespace, &keys(prompt), entries).unwrap());
    };
    store("A", &[(0, 0), (1, 0)]);
    store("ab", &[(0, 0), (0, 1), (1, 1)]);
    for end in others.iter().chain(&["abT"]) {
        store(end, &[(0, 2), (1, 2)]);
    }
    if goes_on {
        cache.continue_tail(namespace, &keys("abT")).unwrap();
    }
    store("B", &[(0, 0), (1, 0)]);
    let depth = |prompt| cache.lookup(namespace, &keys(prompt)).unwrap().blocks;
    (depth("ab") == 2, depth("A") == 1)
}

#[test]
fn checkpoints_before_an_end_that_is_gone_on_from_go_first_unless_others_go_on_there() {
    for policy in ["lru", "reuse"] {
        assert_eq!(passed(policy, &[], false), (true, false), "{policy}");
        assert_eq!(passed(policy, &[], true), (false, true), "{policy}");
        assert_eq!(passed(policy, &["abU"], true), (true, false), "{policy}");
    }
}

#[test]
fn a_superseded_end_that_is_used_again_is_like_the_others() {
    for policy in ["lru", "reuse"] {
        let told = |cache: &Cache, namespace| {
            let keys = keys("C");
            cache.supersede(namespace, &keys).unwrap();
            cache.continue_tail(namespace, &keys).unwrap();
            cache
                .acquire(namespace, &keys, 0)
                .unwrap()
                .unwrap()
                .release();
        };
        assert!(left(policy, told).contains(&"C"), "{policy}");
    }
}

// ---- tiers below

#[test]
fn tails_of_an_earlier_process_are_found_with_their_lengths() {
    let (engine, shelf) = Engine::hybrid(64);
    for prompt in ["C", "abT"] {
        engine.store_below(prompt);
    }
    drop(engine);
    let engine = Engine::new(&hybrid(), 64, &[(shelf, LARGE)]);
    let found = |prompt, first| lengths(&engine.cache, engine.namespace, prompt, first).behind;
    assert_eq!(found("", 0), [(0, vec![3])]);
    // The pages are not known before a lookup.
    assert_eq!(found("abc", 0), [(0, vec![3])]);
    assert_eq!(engine.hit("abc").pages, 2);
    assert_eq!(found("abc", 0), [(0, vec![3]), (2, vec![20])]);
    let tail = &keys("abT")[2..];
    assert_eq!(
        engine.cache.has_tails(engine.namespace, 2, tail),
        Ok((vec![true], false))
    );
    assert_eq!(
        engine.cache.has_tails(engine.namespace, 1, tail),
        Ok((vec![false], false))
    );
    assert_eq!(engine.depths("abT"), (3, 0));
    let mut restore = engine.restore("abT", 0).unwrap();
    assert_eq!(engine.take_all("abT", &mut restore).len(), 4);
    assert_eq!(engine.load("abT"), 3);
    assert!(engine.promote("C"));
    engine.cache.poll();
    assert_eq!(engine.load("C"), 1);
}

#[test]
fn a_read_is_weighed_against_the_tokens_of_a_tail() {
    use std::time::Duration;
    // A block takes 100 ms, and the read 50.
    for (tail, tokens, worth) in [
        ("A", None, true),
        ("A", Some(26), false),
        ("L", Some(26), false),
        ("N", Some(26), true),
        ("Z", Some(26), true),
        ("Z", Some(2), true),
    ] {
        let (engine, shelf) = Engine::hybrid(64);
        engine.store_below(tail);
        drop(engine);
        shelf.lock().pace = Some([Duration::from_millis(50), Duration::ZERO, Duration::ZERO]);
        let engine = Engine::new(&hybrid(), 64, &[(shelf, LARGE)]);
        engine.cache.set_compute_rate(Some(10.0)).unwrap();
        if let Some(tokens) = tokens {
            engine.cache.set_block_tokens(tokens).unwrap();
        }
        assert_eq!(engine.promote(tail), worth, "{tail} of {tokens:?}");
        refused(engine.cache.set_block_tokens(0), "at least 1");
    }
}

#[test]
fn a_tier_that_asks_is_asked_about_all_candidates_at_once() {
    let (engine, shelf) = Engine::hybrid(64);
    engine.store_below("abT");
    drop(engine);
    shelf.lock().asked = Some(Default::default());
    let engine = Engine::new(&hybrid(), 64, &[(shelf.clone(), LARGE)]);
    let tails = ["abS", "abT", "abU"].map(|prompt| keys(prompt)[2]);
    let has = || engine.cache.has_tails(engine.namespace, 2, &tails).unwrap();
    assert_eq!(has(), (vec![false; 3], true));
    assert_eq!(shelf.lock().answer(), 3);
    assert_eq!(has(), (vec![false, true, false], false));
}

#[test]
fn a_tier_that_waits_for_proof_takes_a_tail_when_a_request_goes_on_from_it() {
    let shelf = Handle::default();
    shelf.lock().waits_for_proof = true;
    let engine = Engine::new(&hybrid(), 64, &[(shelf.clone(), LARGE)]);
    engine.store("C", &whole("C"));
    engine.cache.poll();
    assert_eq!(shelf.count("C"), 0);
    engine
        .cache
        .continue_tail(engine.namespace, &keys("C"))
        .unwrap();
    engine.cache.poll();
    assert_eq!(shelf.count("C"), 2);
}
