//! Changed traces are refused with the number of a line, or read: nothing panics or grows.

#[path = "../shared/fuzz.rs"]
mod any;
#[path = "../shared/report.rs"]
mod report;

use hybrid_pages_lab::{LabError, ReadOptions, Trace};

use any::{Random, fuzz};

const CORPUS: [&str; 3] = [
    "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 20, \"hash_ids\": [1, 2]}\n\
     {\"timestamp\": 27482, \"input_length\": 1600, \"hash_ids\": [1, 2, \"x\"], \"session\": \"s\"}\n",
    "{\"format\": \"hybrid-pages-trace\", \"version\": 1, \"block_tokens\": 784}\n\
     {\"timestamp\": 5.5, \"input_length\": 800, \"hash_ids\": [7], \"priority\": 3, \"retain\": 60.5, \"store\": false}\n\
     {\"timestamp\": 9, \"input_length\": 10, \"hash_ids\": [], \"expect_in\": 4, \"release\": true}\n",
    "\n\n[1, 2]\n{\"a\": {\"b\": [[[]]]}}\n",
];

#[test]
fn changed_traces_are_refused_or_read() {
    let corpus = CORPUS.map(|text| text.as_bytes().to_vec());
    let corpus = &corpus;
    fuzz("trace files", 1, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(corpus, &mut bytes);
            let lines = bytes.split(|&byte| byte == b'\n').count();
            let options = ReadOptions {
                block_tokens: [None, None, Some(16), Some(512)][random.below(4)],
                skip_bad: random.below(2) == 0,
            };
            match Trace::read(&bytes[..], options) {
                Ok(trace) => assert!(trace.requests() + trace.skipped() <= lines),
                Err(LabError::Trace(text)) => assert!(text.starts_with("line ")),
                Err(error) => panic!("another error: {error}"),
            }
        }
    });
}
