//! Hits of `reuse` in a live cache on a real trace: as much as in the lab, and more than the others.

use crate::live_cache;

use std::io::Read;
use std::ops::ControlFlow;

use hybrid_pages::ids::{ClassKind, PrefixKey};
use hybrid_pages_lab::{Budget, ReadOptions, Trace, policies, replay};
use live_cache::{Prompt, live};

use ClassKind::{Attention, Recurrent};

/// The first lines of the conversation trace.
fn conversation(lines: usize) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/mooncake_conversation_trace.jsonl.zst");
    let file = std::fs::File::open(path).unwrap();
    let mut text = String::new();
    ruzstd::decoding::StreamingDecoder::new(file)
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    text.lines()
        .take(lines)
        .flat_map(|line| [line, "\n"])
        .collect()
}

fn prompts(text: &str) -> Vec<Prompt> {
    let prompt = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| line[name].as_u64().unwrap();
        let tokens = number("input_length");
        let mut chain = blake3::Hasher::new();
        let hashes = line["hash_ids"].as_array().unwrap();
        let mut key = |id: &serde_json::Value| {
            chain.update(&id.as_u64().unwrap().to_le_bytes());
            PrefixKey::new(chain.finalize().as_bytes()).unwrap()
        };
        Prompt {
            now: number("timestamp"),
            tokens,
            output_tokens: number("output_length"),
            keys: hashes
                .iter()
                .take(tokens as usize / 512)
                .map(&mut key)
                .collect(),
        }
    };
    text.lines().map(prompt).collect()
}

const LINES: usize = 4_000;

fn lab(text: &str, name: &str, ratio: u32, units: u64) -> u64 {
    let trace = Trace::read(text.as_bytes(), ReadOptions::default()).unwrap();
    let rows = replay(
        &[trace],
        &[name.to_owned()],
        &[Budget::Size(units)],
        ratio,
        &|_| ControlFlow::Continue(()),
    );
    rows.unwrap()[0].hit_tokens
}

#[test]
fn reuse_hits_in_a_live_cache_what_it_hits_in_the_lab_whatever_the_slots_and_the_steps() {
    let text = conversation(LINES);
    let prompts = prompts(&text);
    for (units, kinds, at_once) in [
        (1_200, [(Attention, 1), (Recurrent, 3)], 1),
        (1_200, [(Attention, 24), (Recurrent, 72)], 4),
        (5_000, [(Recurrent, 21), (Attention, 7)], 8),
    ] {
        let slots = units * kinds.iter().map(|&(_, slots)| slots).min().unwrap();
        let found = live(&prompts, "reuse", &kinds, slots, at_once) as f64;
        let expected = lab(&text, "reuse", 3, units as u64) as f64;
        assert!(
            (found / expected - 1.0).abs() < 0.05,
            "{kinds:?}: the lab hits {expected}, the cache {found}"
        );
    }
}

#[test]
fn reuse_beats_the_others_in_a_live_cache_with_or_without_pages() {
    policies();
    let prompts = prompts(&conversation(LINES));
    for (slots, kinds, share) in [
        (1_200 * 24, &[(Attention, 24), (Recurrent, 72)][..], 1.4),
        (1_200, &[(Recurrent, 3)][..], 1.02),
    ] {
        let hits = |name| live(&prompts, name, kinds, slots, 4) as f64;
        let most = ["page-lru", "junction-lru"]
            .map(hits)
            .into_iter()
            .fold(0.0, f64::max);
        let found = hits("reuse");
        assert!(
            found > share * most,
            "{kinds:?}: {found}, the best other {most}"
        );
    }
}

#[test]
fn without_checkpoints_reuse_is_junction_lru() {
    policies();
    let prompts = prompts(&conversation(1_000));
    let hits = |name| live(&prompts, name, &[(Attention, 2)], 2_000, 4);
    assert_eq!(hits("reuse"), hits("junction-lru"));
}
