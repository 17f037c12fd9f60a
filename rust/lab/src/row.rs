//! One row of a trace file: a request, or the header of a recording.

use hybrid_pages::policy::Hints;
use serde::Deserialize;
use serde_json::Value;

/// The name of the format in the first row of a live engine's recording.
const FORMAT: &str = "hybrid-pages-trace";
const VERSION: u64 = 1;
/// Most tokens per block. The limit keeps sums of lengths from overflow.
pub(crate) const MOST_BLOCK_TOKENS: u64 = 1 << 20;
/// The highest time in milliseconds, and the longest answer in tokens. Up to here a float holds every integer.
const MOST: u64 = 1 << 53;

/// One request of a trace file: of Mooncake's traces or of a recording.
#[derive(Debug, Deserialize)]
pub(crate) struct TraceRow {
    pub(crate) timestamp: f64,
    pub(crate) input_length: u64,
    #[serde(default)]
    pub(crate) output_length: u64,
    pub(crate) hash_ids: Vec<HashId>,
    #[serde(default)]
    pub(crate) session: Option<HashId>,
    #[serde(default)]
    priority: i8,
    /// The hint how long to keep the request's entries, in seconds.
    #[serde(default)]
    retain: f64,
    #[serde(default = "stored")]
    store: bool,
    /// The hint how many seconds after this request its session's next one comes.
    #[serde(default)]
    expect_in: Option<f64>,
    /// The hint that nothing of the request's session comes again.
    #[serde(default)]
    pub(crate) release: bool,
}

const fn stored() -> bool {
    Hints::NONE.store
}

/// A hash, written as a number or as text.
#[derive(Debug, Deserialize, PartialEq, Eq, Hash)]
#[serde(
    untagged,
    expecting = "expected hash_ids and session as integers of 64 bits or as strings"
)]
pub(crate) enum HashId {
    Unsigned(u64),
    Signed(i64),
    Text(Box<str>),
}

impl TraceRow {
    /// Reads one row of a trace with blocks of `block_tokens`. The error says what is wrong.
    pub(crate) fn parse(text: &[u8], block_tokens: u64) -> Result<Self, String> {
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err("expected a JSON object, found something else".into());
        }
        let row: Self = serde_json::from_slice(text).map_err(|error| reason(text, &error))?;
        let blocks = row.input_length / block_tokens;
        let hashes = row.hash_ids.len();
        if (hashes as u64) < blocks {
            return Err(format!(
                "expected a hash for each of {blocks} full blocks of {block_tokens} tokens, \
                 found {hashes}"
            ));
        }
        if !(0.0..=MOST as f64).contains(&row.timestamp) {
            return Err(format!(
                "timestamp: expected milliseconds from 0 to 2^53, found {}",
                row.timestamp
            ));
        }
        if row.output_length > MOST {
            return Err(format!(
                "output_length: expected at most 2^53 tokens, found {}",
                row.output_length
            ));
        }
        if !Hints::PRIORITIES.contains(&row.priority) {
            return Err(format!(
                "priority: expected {} to {}, found {}",
                Hints::PRIORITIES.start(),
                Hints::PRIORITIES.end(),
                row.priority
            ));
        }
        let most = Hints::MOST_RETAIN / 1000;
        for (name, seconds) in [("retain", Some(row.retain)), ("expect_in", row.expect_in)] {
            if let Some(found) = seconds.filter(|found| !(0.0..=most as f64).contains(found)) {
                return Err(format!(
                    "{name}: expected 0 to {most} seconds, found {found}"
                ));
            }
        }
        Ok(row)
    }

    /// When the session's next request is expected, in milliseconds after this one. `None` if the row does not say so.
    pub(crate) fn expects(&self) -> Option<u64> {
        let seconds = self.expect_in.filter(|_| !self.release);
        seconds.map(|seconds| (seconds * 1000.0) as u64)
    }

    /// The hints of the row. The reader numbers the sessions.
    pub(crate) fn hints(&self, session: Option<u64>) -> Hints {
        Hints {
            session,
            priority: self.priority,
            retain: (self.retain * 1000.0) as u64,
            store: self.store,
        }
    }
}

/// Tokens per block in the first row of a recording; `None` if this is another row.
pub(crate) fn header(text: &[u8]) -> Option<Result<u64, String>> {
    let Ok(Value::Object(found)) = serde_json::from_slice(text) else {
        return None;
    };
    let format = found.get("format")?;
    let version = found.get("version").unwrap_or(&Value::Null);
    if format != FORMAT || version != VERSION {
        return Some(Err(format!(
            "expected format \"{FORMAT}\" version {VERSION}, found {format} version {version}"
        )));
    }
    let tokens = found.get("block_tokens").unwrap_or(&Value::Null);
    let wanted = tokens
        .as_u64()
        .filter(|tokens| (1..=MOST_BLOCK_TOKENS).contains(tokens));
    Some(wanted.ok_or_else(|| {
        format!("block_tokens: expected 1 to {MOST_BLOCK_TOKENS} tokens, found {tokens}")
    }))
}

/// The parser's error with its column, but without its line: it is always 1, since each row is parsed alone.
fn reason(text: &[u8], error: &serde_json::Error) -> String {
    let found = error.to_string();
    let found = found.split(" at line ").next().unwrap_or_default();
    if error.is_eof() && !text.ends_with(b"\n") {
        return format!("{found}: the file ends inside this line, as if cut off");
    }
    format!("{found}, at column {}", error.column())
}
