//! A disk below the host in the lab: what it adds, what is written to it, and what selection is worth.

use std::ops::ControlFlow;
use std::path::Path;

use hybrid_pages_lab::{Budget, ReadOptions, ReplayRow, ReplayedTier, Trace, replay, replay_over};

fn conversation() -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/mooncake_conversation_trace.jsonl.zst");
    Trace::open(&path, ReadOptions::default()).unwrap()
}

fn row(trace: &Trace, host: f64, disk: Option<(f64, &str)>) -> ReplayRow {
    let below = disk.map(|(share, policy)| ReplayedTier::Disk {
        budget: Budget::Fraction(share),
        policy: policy.to_owned(),
    });
    let rows = replay_over(
        std::slice::from_ref(trace),
        &["reuse".to_owned()],
        &[Budget::Fraction(host)],
        3,
        below.as_ref(),
        &|_| ControlFlow::Continue(()),
    );
    rows.unwrap().remove(0)
}

/// Requests with prompts of these blocks, a second apart.
fn trace(prompts: &[&[u32]]) -> Trace {
    let line = |(at, blocks): (usize, &&[u32])| {
        let (now, tokens) = (at * 1000, blocks.len() * 512 + 1);
        format!(
            "{{\"timestamp\": {now}, \"input_length\": {tokens}, \"output_length\": 1, \"hash_ids\": {blocks:?}}}\n"
        )
    };
    let text: String = prompts.iter().enumerate().map(line).collect();
    Trace::read(text.as_bytes(), ReadOptions::default()).unwrap()
}

#[test]
fn a_disk_without_room_changes_nothing() {
    let trace = conversation();
    let plain = replay(
        std::slice::from_ref(&trace),
        &["reuse".to_owned()],
        &[Budget::Fraction(0.02)],
        3,
        &|_| ControlFlow::Continue(()),
    );
    let plain = plain.unwrap().remove(0);
    let none = row(&trace, 0.02, Some((0.0, "lru")));
    assert_eq!(none.hit_tokens, plain.hit_tokens);
    assert_eq!(
        (none.disk_hit_tokens, none.disk_written_size, none.disk_size),
        (0, 0, 0)
    );
}

#[test]
fn what_the_host_has_lost_is_found_on_the_disk() {
    // The host holds one prompt of two blocks with its checkpoint.
    let trace = trace(&[&[1, 2], &[3, 4], &[1, 2, 5]]);
    let found = row(&trace, 0.25, Some((1.0, "lru")));
    assert_eq!(found.budget_size, 5);
    assert_eq!((found.hit_tokens, found.disk_hit_tokens), (1024, 1024));
    assert_eq!(found.disk_read_size, 2 + 3, "two pages and a checkpoint");
    let alone = row(&trace, 0.25, None);
    assert_eq!((alone.hit_tokens, alone.disk_hit_tokens), (0, 0));
}

#[test]
fn while_there_is_room_everything_is_written() {
    let trace = conversation();
    let all = row(&trace, 0.02, Some((1.0, "lru")));
    let selected = row(&trace, 0.02, Some((1.0, "reuse")));
    assert_eq!(all.disk_written_size, selected.disk_written_size);
    assert_eq!(all.hit_tokens, selected.hit_tokens);
    assert!(all.disk_written_size >= trace.distinct_blocks() as u64);
}

#[test]
fn a_full_disk_that_selects_writes_less_and_finds_as_much() {
    let trace = conversation();
    for (disk, writes, hits) in [(0.05, 0.80, 1.05), (0.1, 0.85, 0.99), (0.2, 0.90, 0.99)] {
        let all = row(&trace, 0.005, Some((disk, "lru")));
        let selected = row(&trace, 0.005, Some((disk, "reuse")));
        let ratio = |a: u64, b: u64| a as f64 / b as f64;
        let written = ratio(selected.disk_written_size, all.disk_written_size);
        let found = ratio(selected.hit_tokens, all.hit_tokens);
        assert!(written < writes, "{disk}: {written} of the writes");
        assert!(found > hits, "{disk}: {found} of the hits");
    }
}
