//! Hints in traces: sessions help where they tell something, and cost next to nothing where they are wrong.

use std::io::Read;
use std::ops::ControlFlow;

use hybrid_pages::error::Error;
use hybrid_pages_lab::{Budget, LabError, ReadOptions, SessionIds, Trace, replay};

const SHARES: [f64; 2] = [0.01, 0.05];

/// The conversation trace, its rows changed.
fn conversation(mut change: impl FnMut(usize, &mut serde_json::Value)) -> Trace {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/mooncake_conversation_trace.jsonl.zst");
    let file = std::fs::File::open(path).unwrap();
    let mut text = String::new();
    ruzstd::decoding::StreamingDecoder::new(file)
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    let mut changed = String::new();
    for (number, line) in text.lines().enumerate() {
        let mut row = serde_json::from_str(line).unwrap();
        change(number, &mut row);
        changed.push_str(&row.to_string());
        changed.push('\n');
    }
    Trace::read(changed.as_bytes(), ReadOptions::default()).unwrap()
}

/// Hit rates of `reuse` at small budgets.
fn rates(trace: Trace) -> Vec<f64> {
    let budgets = SHARES.map(Budget::Fraction);
    let done = &|_: &_| ControlFlow::Continue(());
    let rows = replay(&[trace], &["reuse".to_owned()], &budgets, 3, done);
    rows.unwrap().iter().map(|row| row.hit_rate()).collect()
}

#[test]
fn wrong_session_ids_cost_next_to_nothing_and_right_ones_help() {
    let plain = rates(conversation(|_, _| {}));
    let one = |_: usize| 1;
    let each = |number: usize| number;
    let random = |number: usize| number.wrapping_mul(0x9e37_79b9) % 101;
    let abused: [(&str, &dyn Fn(usize) -> usize); 3] = [
        ("one id for all", &one),
        ("an id for each request", &each),
        ("one of a hundred at random", &random),
    ];
    for (what, id) in abused {
        let found = rates(conversation(|number, row| {
            row["session"] = id(number).into()
        }));
        for (found, plain) in found.iter().zip(&plain) {
            assert!(
                found > &(plain - 0.01),
                "{what}: {found:.3}, {plain:.3} without"
            );
        }
    }
    let returning = rates(conversation(|_, _| {}).with_sessions(SessionIds::Returning));
    for (found, plain) in returning.iter().zip(&plain) {
        assert!(found > plain, "{found:.3}, {plain:.3} without");
    }
}

fn trace(rows: &[&str]) -> Result<Trace, LabError> {
    Trace::read(rows.join("\n").as_bytes(), ReadOptions::default())
}

fn hits(trace: Trace, policy: &str, size: u64) -> u64 {
    let done = &|_: &_| ControlFlow::Continue(());
    let rows = replay(
        &[trace],
        &[policy.to_owned()],
        &[Budget::Size(size)],
        1,
        done,
    );
    rows.unwrap()[0].hit_tokens / 512
}

#[test]
fn a_trace_says_what_is_retained_and_what_is_not_stored() {
    let row = |now: u64, hash: u64, more: &str| {
        format!(r#"{{"timestamp":{now},"input_length":513,"hash_ids":[{hash}]{more}}}"#)
    };
    // One block twice, and two others in between; room for two blocks with a checkpoint.
    let told = |first: &str, other: &str| {
        let rows = [
            row(0, 1, first),
            row(1_000, 2, other),
            row(2_000, 3, other),
            row(3_000, 1, ""),
        ];
        trace(&rows.each_ref().map(String::as_str)).unwrap()
    };
    for policy in ["page-lru", "reuse", "marconi"] {
        assert_eq!(hits(told("", ""), policy, 4), 0, "{policy}");
        assert_eq!(hits(told(r#","retain":10"#, ""), policy, 4), 1, "{policy}");
        assert_eq!(hits(told(r#","retain":0.5"#, ""), policy, 4), 0, "{policy}");
        // What is expected is kept for a while behind that time.
        let late = r#","expect_in":0.5"#;
        assert_eq!(hits(told(late, ""), policy, 4), 1, "{policy}");
        let both = r#","expect_in":0.5,"release":true"#;
        assert_eq!(hits(told(both, ""), policy, 4), 0, "{policy}");
        assert_eq!(
            hits(told("", r#","store":false"#), policy, 4),
            1,
            "{policy}"
        );
        assert_eq!(
            hits(told(r#","store":false"#, ""), policy, 9),
            0,
            "{policy}"
        );
    }
}

#[test]
fn what_a_session_releases_goes_first_and_what_others_share_stays() {
    let row = |now: u64, hashes: &str, blocks: u64, more: &str| {
        let length = 512 * blocks + 1;
        format!(r#"{{"timestamp":{now},"input_length":{length},"hash_ids":[{hashes}]{more}}}"#)
    };
    // Two prompts of two blocks, of which the second leaves, or not; room for one and a half.
    let told = |second: &str, more: &str| {
        let rows = [
            row(0, "1,2", 2, ""),
            row(1_000, second, 2, more),
            row(2_000, "5", 1, ""),
            row(3_000, "1,2", 2, ""),
        ];
        trace(&rows.each_ref().map(String::as_str)).unwrap()
    };
    let release = r#","session":"a","release":true"#;
    assert_eq!(hits(told("3,4", ""), "reuse", 6), 0);
    assert_eq!(hits(told("3,4", release), "reuse", 6), 2);
    // What a session shares with another one stays: here the first block.
    let shared = |more: &str| {
        trace(&[
            &row(0, "1,3", 2, r#","session":"b""#),
            &row(1_000, "1,2", 2, &format!(r#","session":"a"{more}"#)),
            &row(2_000, "4,5", 2, ""),
            &row(3_000, "1,3", 2, ""),
        ])
        .unwrap()
    };
    let release = r#","release":true"#;
    assert_eq!(hits(shared(""), "reuse", 8), 1 + 1);
    assert_eq!(hits(shared(release), "reuse", 8), 1 + 2);
}

#[test]
fn hints_out_of_range_are_refused_by_name() {
    for (hint, reason) in [
        (r#""priority":11"#, "priority: expected -10 to 10, found 11"),
        (
            r#""retain":-1"#,
            "retain: expected 0 to 86400 seconds, found -1",
        ),
        (
            r#""expect_in":86401"#,
            "expect_in: expected 0 to 86400 seconds, found 86401",
        ),
        (r#""store":"no""#, "expected a boolean"),
        (r#""release":1"#, "expected a boolean"),
        (r#""session":1.5"#, "strings"),
    ] {
        let row = format!(r#"{{"timestamp":0,"input_length":1,"hash_ids":[],{hint}}}"#);
        let Err(LabError::Trace(text)) = trace(&[&row]).map(drop) else {
            panic!("{hint}: expected a refusal");
        };
        assert!(text.contains(reason), "{text}");
    }
    assert!(!matches!(
        trace(&["{"]),
        Err(LabError::Core(Error::InvalidArgument(_)))
    ));
}
