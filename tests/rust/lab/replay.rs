//! The lab: published figures, naive models of each LRU policy, budgets, bounds, broken traces.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::Path;

use hybrid_pages_lab::{BOUND, Budget, ReadOptions, ReplayRow, Trace, policies, replay};
use proptest::prelude::*;

const OPTIONS: ReadOptions = ReadOptions {
    block_tokens: None,
    skip_bad: false,
};

fn conversation() -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/mooncake_conversation_trace.jsonl.zst");
    Trace::open(&path, OPTIONS).unwrap()
}

fn go_on(_: &ReplayRow) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn rows(trace: &Trace, policies: &[&str], budgets: &[f64], ratio: u32) -> Vec<ReplayRow> {
    let policies: Vec<_> = policies.iter().map(|&name| name.to_owned()).collect();
    let budgets: Vec<_> = budgets.iter().copied().map(Budget::Fraction).collect();
    replay(
        std::slice::from_ref(trace),
        &policies,
        &budgets,
        ratio,
        &go_on,
    )
    .unwrap()
}

#[test]
fn lru_policies_have_their_published_hit_rates() {
    let budgets = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
    let published = [
        (
            "page-lru",
            [0.045, 0.053, 0.080, 0.208, 0.291, 0.357, 0.370],
        ),
        (
            "align-lru",
            [0.064, 0.135, 0.224, 0.313, 0.343, 0.349, 0.350],
        ),
        (
            "junction-lru",
            [0.064, 0.138, 0.227, 0.320, 0.351, 0.357, 0.359],
        ),
    ];
    let trace = conversation();
    assert_eq!(
        (trace.requests(), trace.distinct_blocks()),
        (12_031, 170_899)
    );
    for (name, rates) in published {
        for (row, rate) in rows(&trace, &[name], &budgets, 3).iter().zip(rates) {
            let found = row.hit_rate();
            assert!(
                (found - rate).abs() < 0.003,
                "{name}: expected {rate}, found {found}"
            );
        }
    }
}

#[test]
fn reuse_beats_the_others_where_room_is_scarce_and_the_bound_beats_it() {
    let trace = conversation();
    let found = rows(
        &trace,
        &["junction-lru", "page-lru", "reuse", BOUND],
        &[0.005, 0.02, 0.5],
        3,
    );
    let rate = |policy: usize, budget: usize| found[policy * 3 + budget].hit_rate();
    assert!(rate(2, 0) > 1.8 * rate(0, 0));
    assert!(rate(2, 1) > rate(0, 1));
    assert!(rate(2, 2) > 0.98 * rate(1, 2));
    for budget in 0..3 {
        assert!(rate(3, budget) > rate(2, budget));
    }
}

#[test]
fn equal_hashes_after_different_prefixes_are_different_blocks() {
    let text = "{\"timestamp\":0,\"input_length\":1024,\"hash_ids\":[1,2]}\n\
                {\"timestamp\":1,\"input_length\":1024,\"hash_ids\":[3,2]}\n";
    assert_eq!(
        Trace::read(text.as_bytes(), OPTIONS)
            .unwrap()
            .distinct_blocks(),
        4
    );
}

/// A prompt as its tokens and its hashes.
type Prompt = (usize, Vec<u64>);

/// Prompts that share prefixes often, with tokens that end inside and at the end of blocks.
fn prompts() -> impl Strategy<Value = Vec<Prompt>> {
    let prompt = (prop::collection::vec(0..2_u64, 1..7), 0..3_usize)
        .prop_map(|(hashes, rest)| ((hashes.len() * 512 + [0, 1, 300][rest]), hashes));
    prop::collection::vec(prompt, 1..80)
}

fn trace_of(prompts: &[Prompt]) -> Trace {
    let line = |(at, (tokens, hashes)): (usize, &Prompt)| {
        format!(
            "{{\"timestamp\":{},\"input_length\":{tokens},\"output_length\":9,\"hash_ids\":{hashes:?}}}\n",
            at * 1000
        )
    };
    let text: String = prompts.iter().enumerate().map(line).collect();
    Trace::read(text.as_bytes(), OPTIONS).unwrap()
}

/// Entries by prefix with the time of their last use: exactly the published words.
fn naive(prompts: &[Prompt], name: &str, ratio: u64, budget: u64) -> u64 {
    let mut used: HashMap<(Vec<u64>, bool), u64> = HashMap::new();
    let (mut clock, mut tokens_hit) = (0, 0);
    for (tokens, hashes) in prompts {
        let k = tokens / 512;
        let at = |depth: usize, checkpoint: bool| (hashes[..depth].to_vec(), checkpoint);
        let m = (1..=k)
            .take_while(|&d| used.contains_key(&at(d, false)))
            .count();
        let limit = (tokens - 1) / 512;
        let h = (1..=m.min(limit))
            .rev()
            .find(|&d| used.contains_key(&at(d, true)))
            .unwrap_or(0);
        tokens_hit += h as u64 * 512;
        let fresh: HashSet<usize> = match name {
            "page-lru" => (h + 1..=k).collect(),
            "align-lru" => [k].into(),
            _ => [k, m].into_iter().filter(|&d| d > h).collect(),
        };
        for depth in (1..=k).rev() {
            let touch =
                (fresh.contains(&depth) && depth > h && !used.contains_key(&at(depth, true)))
                    || (depth == h && h > 0);
            for checkpoint in [true, false] {
                if !checkpoint || touch {
                    clock += 1;
                    used.insert(at(depth, checkpoint), clock);
                }
            }
        }
        let size = |used: &HashMap<(Vec<u64>, bool), u64>| -> u64 {
            used.keys()
                .map(|(_, checkpoint)| if *checkpoint { ratio } else { 1 })
                .sum()
        };
        while size(&used) > budget {
            let oldest = used
                .iter()
                .min_by_key(|(_, time)| **time)
                .map(|(key, _)| key.clone())
                .unwrap();
            used.remove(&oldest);
        }
    }
    tokens_hit
}

proptest! {
    #[test]
    fn lru_policies_do_what_a_naive_model_does(prompts in prompts(), budget in 4..60_u64, ratio in 1..4_u32) {
        let trace = trace_of(&prompts);
        for name in ["page-lru", "align-lru", "junction-lru"] {
            let policies = [name.to_owned()];
            let row = &replay(std::slice::from_ref(&trace), &policies, &[Budget::Size(budget)], ratio, &go_on).unwrap()[0];
            prop_assert_eq!(row.hit_tokens, naive(&prompts, name, ratio.into(), budget), "{}", name);
        }
    }

    #[test]
    fn every_policy_keeps_its_budget_repeats_itself_and_stays_below_the_bound(
        prompts in prompts(), budget in 0..60_u64, ratio in 1..4_u32,
    ) {
        let trace = trace_of(&prompts);
        let policies: Vec<_> = policies().iter().copied().chain([BOUND]).map(str::to_owned).collect();
        let run = || replay(std::slice::from_ref(&trace), &policies, &[Budget::Size(budget)], ratio, &go_on).unwrap();
        let (first, second) = (run(), run());
        let most = first.last().unwrap().hit_tokens;
        for (row, again) in first.iter().zip(&second) {
            prop_assert_eq!((row.hit_tokens, row.written_size), (again.hit_tokens, again.written_size));
            prop_assert!(row.most_size <= budget, "{} took {}", &row.policy, row.most_size);
            prop_assert!(row.hit_tokens <= most, "{} beats the bound", &row.policy);
        }
    }
}
