//! The reader of traces: both formats, broken lines with their numbers, and bytes of any kind.

use std::ops::ControlFlow;

use hybrid_pages::error::Error;
use hybrid_pages_lab::{BOUND, Budget, LabError, ReadOptions, Trace, policies, replay};
use proptest::prelude::*;

const STRICT: ReadOptions = ReadOptions {
    block_tokens: None,
    skip_bad: false,
};
const LENIENT: ReadOptions = ReadOptions {
    skip_bad: true,
    ..STRICT
};
const HEADER: &str =
    "{\"format\": \"hybrid-pages-trace\", \"version\": 1, \"block_tokens\": 784}\n";
const GOOD: &str = "{\"timestamp\": 0, \"input_length\": 1100, \"hash_ids\": [1, 2]}\n";

fn refusal(text: &str, options: ReadOptions) -> String {
    match Trace::read(text.as_bytes(), options) {
        Err(LabError::Trace(found)) => found,
        other => panic!("expected a refused trace, found {other:?}"),
    }
}

fn blocks_of(tokens: usize) -> ReadOptions {
    ReadOptions {
        block_tokens: Some(tokens),
        ..STRICT
    }
}

#[test]
fn a_broken_line_is_refused_with_its_number_or_counted() {
    for broken in [
        "nonsense",
        "[0, 512, 1, [1]]",
        "{}",
        "{\"timestamp\": 0, \"input_length\": 1024, \"hash_ids\": [1]}",
        "{\"timestamp\": 0, \"input_length\": -1, \"hash_ids\": []}",
        "{\"timestamp\": 0, \"input_length\": 1.5, \"hash_ids\": [1]}",
        "{\"timestamp\": 0, \"input_length\": 9223372036854775808, \"hash_ids\": []}",
        "{\"timestamp\": 0, \"input_length\": 1e400, \"hash_ids\": []}",
        "{\"timestamp\": -1, \"input_length\": 1, \"hash_ids\": []}",
        "{\"timestamp\": 1e17, \"input_length\": 1, \"hash_ids\": []}",
        "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 18446744073709551615, \"hash_ids\": []}",
        "{\"timestamp\": 0, \"input_length\": 1, \"hash_ids\": [1.5]}",
        "{\"timestamp\": 0, \"input_length\": 1, \"hash_ids\": [",
        HEADER.trim_end(),
    ] {
        let text = format!("{GOOD}\n{broken}\n");
        let found = refusal(&text, STRICT);
        assert!(found.starts_with("line 3: "), "{broken}: {found}");
        assert!(
            !found.contains("line 1"),
            "{broken}: another number: {found}"
        );
        let trace = Trace::read(text.as_bytes(), LENIENT).unwrap();
        assert_eq!((trace.requests(), trace.skipped()), (1, 1), "{broken}");
    }
}

#[test]
fn bytes_that_are_no_text_are_a_broken_line() {
    let text = b"{\"timestamp\": 0, \"input_length\": 1, \"hash_ids\": [\"\xff\xfe\"]}\n";
    let found = Trace::read(&text[..], STRICT).unwrap_err().to_string();
    assert!(found.starts_with("trace: line 1: "), "{found}");
}

#[test]
fn a_recording_cut_off_in_its_last_line_says_so() {
    let whole = format!("{HEADER}{}", GOOD.repeat(2));
    let cut = &whole[..whole.len() - 5];
    let found = refusal(cut, STRICT);
    assert!(
        found.starts_with("line 3: ") && found.contains("cut off"),
        "{found}"
    );
    let trace = Trace::read(cut.as_bytes(), LENIENT).unwrap();
    assert_eq!((trace.requests(), trace.skipped()), (1, 1));
}

#[test]
fn a_recording_names_its_block_size() {
    let text = format!(
        "{HEADER}{}",
        "{\"timestamp\": 1.25, \"input_length\": 800, \"output_length\": 3, \"hash_ids\": [\"9f3c\", \"77\"]}\n"
    );
    for options in [STRICT, blocks_of(784)] {
        let trace = Trace::read(text.as_bytes(), options).unwrap();
        assert_eq!(
            (
                trace.block_tokens(),
                trace.requests(),
                trace.distinct_blocks()
            ),
            (784, 1, 1)
        );
    }
    let found = refusal(&text, blocks_of(512));
    assert!(found.contains("512") && found.contains("784"), "{found}");
}

#[test]
fn other_versions_and_formats_are_refused_even_when_broken_lines_are_not() {
    for header in [
        HEADER.replace("1,", "2,"),
        HEADER.replace("pages-trace", "pages-log"),
        HEADER.replace("784", "0"),
        HEADER.replace("784", "\"784\""),
        HEADER.replace(", \"block_tokens\": 784", ""),
    ] {
        for options in [STRICT, LENIENT] {
            let found = refusal(&format!("{header}{GOOD}"), options);
            assert!(found.starts_with("line 1: "), "{found}");
        }
    }
}

#[test]
fn blocks_are_512_tokens_unless_asked_otherwise() {
    let read = |options| Trace::read(GOOD.as_bytes(), options);
    assert_eq!(read(STRICT).unwrap().distinct_blocks(), 2);
    assert_eq!(read(blocks_of(1024)).unwrap().distinct_blocks(), 1);
    for tokens in [0, usize::MAX] {
        assert!(matches!(
            read(blocks_of(tokens)),
            Err(LabError::Core(Error::InvalidArgument(_)))
        ));
    }
}

#[test]
fn requests_are_replayed_in_order_of_their_times() {
    let line = |time: u64, hash: u64| {
        format!("{{\"timestamp\":{time},\"input_length\":1025,\"hash_ids\":[{hash},7,8]}}\n")
    };
    // In order 1, 1, 2, 2 room for one prompt gives two hits; as written, none.
    let text = [line(0, 1), line(2, 2), line(1, 1), line(3, 2)].concat();
    let trace = Trace::read(text.as_bytes(), STRICT).unwrap();
    let policies = ["align-lru".to_owned()];
    let go_on = |_: &_| ControlFlow::Continue(());
    let rows = replay(&[trace], &policies, &[Budget::Size(3)], 1, &go_on).unwrap();
    assert_eq!(rows[0].hit_tokens, 2 * 1024);
}

#[test]
fn a_break_begins_nothing_more() {
    let trace = Trace::read(GOOD.as_bytes(), STRICT).unwrap();
    let policies = vec![BOUND.to_owned(); 1000];
    let stop = |_: &_| ControlFlow::Break(());
    let rows = replay(&[trace], &policies, &[Budget::Size(1)], 1, &stop).unwrap();
    assert!((1..1000).contains(&rows.len()), "{}", rows.len());
}

#[test]
fn a_budget_is_the_exact_share() {
    let lines: String = (0..25)
        .map(|hash| format!("{{\"timestamp\":0,\"input_length\":512,\"hash_ids\":[{hash}]}}\n"))
        .collect();
    let trace = Trace::read(lines.as_bytes(), STRICT).unwrap();
    let go_on = |_: &_| ControlFlow::Continue(());
    let budgets: Vec<_> = (0..=100)
        .map(|percent| Budget::Fraction(f64::from(percent) / 100.0))
        .collect();
    let rows = replay(&[trace], &["lru".to_owned()], &budgets, 3, &go_on).unwrap();
    let units: Vec<_> = rows.iter().map(|row| row.budget_size).collect();
    assert_eq!(units, (0..=100).collect::<Vec<u64>>());
}

/// Lines that are nearly right: every field may be missing, of another type or huge.
fn lines() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        (0..3000_u64).prop_map(|number| number.to_string()),
        any::<u64>().prop_map(|number| number.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:e}")),
        Just("null".to_owned()),
        Just("\"1\"".to_owned()),
    ];
    let sane = (
        0..5000_u64,
        0..2600_u64,
        any::<u32>(),
        prop::collection::vec(0..3_u64, 5..7),
    )
        .prop_map(|(time, tokens, answer, hashes)| {
            [
                format!("\"timestamp\":{time}"),
                format!("\"input_length\":{tokens}"),
                format!("\"output_length\":{answer}"),
                format!("\"hash_ids\":{hashes:?}"),
            ]
        });
    let name = prop_oneof![
        Just("timestamp"),
        Just("input_length"),
        Just("output_length"),
        Just("hash_ids"),
        Just("format"),
        Just("block_tokens"),
    ];
    let change = prop_oneof![
        3 => Just(None),
        1 => (0..4_usize, name, number).prop_map(Some),
    ];
    (sane, change).prop_map(|(mut fields, change)| {
        if let Some((at, name, number)) = change {
            fields[at] = format!("\"{name}\":{number}");
        }
        format!("{{{}}}\n", fields.join(","))
    })
}

/// Whatever was read can be replayed.
fn read_and_replay(bytes: &[u8]) -> Result<(), TestCaseError> {
    for options in [STRICT, LENIENT] {
        let Ok(trace) = Trace::read(bytes, options) else {
            continue;
        };
        prop_assert!(options.skip_bad || trace.skipped() == 0);
        let policies: Vec<_> = policies()
            .iter()
            .copied()
            .chain([BOUND])
            .map(str::to_owned)
            .collect();
        let budgets = [Budget::Size(0), Budget::Size(9), Budget::Fraction(1e9)];
        let go_on = |_: &_| ControlFlow::Continue(());
        for row in replay(&[trace], &policies, &budgets, 3, &go_on).unwrap() {
            prop_assert!(row.hit_tokens <= row.input_tokens, "{row:?}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_a_trace_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_and_replay(&bytes)?;
    }

    #[test]
    fn any_lines_are_a_trace_or_an_error(
        recorded in any::<bool>(), lines in prop::collection::vec(lines(), 0..12),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = if recorded { HEADER.as_bytes().to_vec() } else { Vec::new() };
        bytes.extend(lines.concat().into_bytes());
        if !bytes.is_empty() {
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
        }
        read_and_replay(&bytes)?;
    }
}
