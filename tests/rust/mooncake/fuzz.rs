//! Changed answers of the helper and changed values of the store: nothing panics, and a header is the whole one.

#[path = "../shared/fuzz.rs"]
mod any;
#[path = "../shared/report.rs"]
mod report;

use xxhash_rust::xxh3::xxh3_64;

use crate::value::ValueHeader;
use crate::wire::Reply;
use any::{Random, fuzz};

#[test]
fn changed_answers_are_refused_or_understood() {
    let corpus = [
        r#"{"ready": true}"#,
        r#"{"error": "no master at 127.0.0.1:50051"}"#,
        r#"{"id": 12, "codes": [0, 1, -704, -703, -900, 65536]}"#,
        r#"{"id": 18446744073709551615, "codes": []}"#,
    ]
    .map(|text| text.as_bytes().to_vec());
    let corpus = &corpus;
    fuzz("answers of Mooncake's helper", 1, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(corpus, &mut bytes);
            match serde_json::from_slice::<Reply>(&bytes) {
                Ok(Reply::Codes { codes, .. }) => assert!(codes.len() <= bytes.len()),
                Ok(Reply::Ready { .. }) => {}
                Ok(Reply::Failed { error }) => assert!(error.len() <= bytes.len()),
                Err(error) => drop(error.to_string()),
            }
        }
    });
}

#[test]
fn changed_headers_of_values_are_refused() {
    let header = ValueHeader {
        identity: &[7; 32],
        name: &[9; 32],
        class: 1,
        shard_bytes: 5_000,
    };
    let corpus = [header.encode(&[1, 2]), header.encode(&[3])];
    let (corpus, header) = (&corpus, &header);
    fuzz("headers of values in Mooncake", 1, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(corpus, &mut bytes);
            if random.below(2) == 0 {
                let end = bytes.len().saturating_sub(8);
                let check = xxh3_64(&bytes[..end]);
                bytes.truncate(end);
                bytes.extend(check.to_le_bytes());
            }
            if let Some(sums) = header.sums(&bytes, 2) {
                assert_eq!(header.encode(&sums), bytes[..corpus[0].len()]);
            }
        }
    });
}
