//! A remote store below the host in the lab: what goes up, what comes down, and when that pays.

use std::ops::ControlFlow;

use hybrid_pages_lab::{
    Budget, NetworkLink, ReadOptions, RemoteUse, ReplayRow, ReplayedTier, Trace, replay_over,
};

/// A page takes a second, a checkpoint two, and a block is computed in four.
const LINK: NetworkLink = NetworkLink {
    latency: 0.5,
    bandwidth: 1000.0,
    page_bytes: 1000,
    checkpoint_bytes: 2000,
    speed: 128.0,
};

/// Requests with prompts of these blocks, a second apart.
fn trace(prompts: &[&[u32]]) -> Trace {
    let line = |(at, blocks): (usize, &&[u32])| {
        let (now, tokens) = (at * 1000, blocks.len() * 512 + 1);
        format!("{{\"timestamp\": {now}, \"input_length\": {tokens}, \"hash_ids\": {blocks:?}}}\n")
    };
    let text: String = prompts.iter().enumerate().map(line).collect();
    Trace::read(text.as_bytes(), ReadOptions::default()).unwrap()
}

/// By `auto` and by `all`, under a host of such a size.
fn rows(trace: &Trace, host: u64, link: NetworkLink) -> [ReplayRow; 2] {
    let found = replay_over(
        std::slice::from_ref(trace),
        &["align-lru".to_owned()],
        &[Budget::Size(host)],
        2,
        Some(&ReplayedTier::Remote(link)),
        &|_| ControlFlow::Continue(()),
    );
    let found: [ReplayRow; 2] = found.unwrap().try_into().unwrap();
    assert_eq!(
        found.each_ref().map(|row| row.admit),
        [Some(RemoteUse::Auto), Some(RemoteUse::All)]
    );
    found
}

#[test]
fn all_finds_at_once_what_auto_finds_after_a_second_request() {
    let trace = trace(&[&[1, 2], &[9], &[1, 2], &[8], &[1, 2]]);
    let [auto, all] = rows(&trace, 0, LINK).map(|row| row.traffic);
    // Two pages and a checkpoint, .5 + 2 + 2 seconds; computing takes 8.
    assert_eq!(
        (auto.hit_tokens, auto.up_bytes, auto.down_bytes),
        (1024, 4000, 4000)
    );
    assert_eq!(
        (all.hit_tokens, all.up_bytes, all.down_bytes),
        (2048, 4000 + 6000, 8000)
    );
    assert_eq!((auto.saved_seconds, all.saved_seconds), (3.5, 7.0));
    assert_eq!((auto.slow_tokens, all.slow_tokens), (0, 0));
}

#[test]
fn what_is_slower_to_fetch_is_computed_by_auto_and_fetched_by_all() {
    let trace = trace(&[&[1], &[1], &[1]]);
    let slow = NetworkLink {
        latency: 1.25,
        ..LINK
    };
    let [auto, all] = rows(&trace, 0, slow).map(|row| row.traffic);
    assert_eq!(
        (auto.hit_tokens, auto.slow_tokens, auto.down_bytes),
        (0, 512, 0)
    );
    assert_eq!(
        (all.hit_tokens, all.slow_tokens, all.down_bytes),
        (1024, 1024, 6000)
    );
    assert_eq!((auto.saved_seconds, all.saved_seconds), (0.0, -0.5));
}

#[test]
fn only_what_the_host_lacks_comes_down() {
    // [9] takes a page and a checkpoint of the host's five units: the first two pages stay in the others.
    let trace = trace(&[&[1, 2], &[1, 2, 3], &[9], &[1, 2, 3, 4]]);
    let [_, all] = rows(&trace, 5, LINK).map(|row| row.traffic);
    assert_eq!((all.hit_tokens, all.down_bytes), (3 * 512, 1000 + 2000));
}

#[test]
fn the_break_even_is_the_first_token_that_pays() {
    // .5 + 2 seconds to begin with, then 1/128 - 1/512 a token.
    assert_eq!(LINK.break_even(512), Some(427));
    let slow = NetworkLink {
        bandwidth: 250.0,
        ..LINK
    };
    assert_eq!(slow.break_even(512), None);
}

#[test]
fn numbers_that_no_link_has_are_rejected() {
    for link in [
        NetworkLink {
            latency: -1.0,
            ..LINK
        },
        NetworkLink {
            bandwidth: 0.0,
            ..LINK
        },
        NetworkLink {
            page_bytes: 0,
            ..LINK
        },
        NetworkLink {
            speed: f64::NAN,
            ..LINK
        },
    ] {
        let error = link.check().unwrap_err().to_string();
        assert!(error.contains("expected"), "{error}");
    }
}
