//! Traces, read from Mooncake's JSONL or from recordings of a live engine, as chains of boundaries.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use hashbrown::HashMap;
use hybrid_pages::error::Error;
use hybrid_pages::policy::Hints;

use crate::error::{LabError, Result};
use crate::row::{self, HashId, MOST_BLOCK_TOKENS, TraceRow};
use crate::source;

/// Stands for the missing block before the first one.
pub(crate) const ROOT: u32 = u32::MAX;
/// Tokens per block in Mooncake's traces.
const BLOCK_TOKENS: u64 = 512;
/// Most bytes per row, far more than any prompt needs. A file with a longer line is no trace.
const MOST_LINE: u64 = 64 << 20;

/// How to read a trace.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOptions {
    /// Tokens per hash. The default is the number in the header of a recording, or 512 for Mooncake's traces.
    pub block_tokens: Option<usize>,
    /// Count broken rows instead of rejecting the trace.
    pub skip_bad: bool,
}

/// A block of some request, identified by its hash and the hashes of all blocks before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceBlock {
    pub(crate) parent: u32,
    pub(crate) depth: u32,
    pub(crate) name: u64,
}

/// One request of a trace.
#[derive(Debug, Clone)]
pub(crate) struct TraceRequest {
    pub(crate) now: u64,
    pub(crate) tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) hints: Hints,
    /// In how many milliseconds the session's next request is expected, if the application said so.
    pub(crate) expects: Option<u64>,
    /// Whether nothing of the request's session comes again.
    pub(crate) releases: bool,
    /// Index of the request's first block in the trace's `paths`.
    first: usize,
    blocks: usize,
}

/// Requests in order of arrival, each with the boundaries of its full blocks.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    pub(crate) block_tokens: u64,
    pub(crate) requests: Vec<TraceRequest>,
    pub(crate) boundaries: Vec<TraceBlock>,
    paths: Vec<u32>,
    skipped: usize,
}

impl Trace {
    /// Reads a file, which may be compressed by gzip or zstd.
    ///
    /// # Errors
    /// [`LabError::Trace`] with the file's name if it can't be read, and with the number of the first broken line,
    /// unless such lines are skipped.
    pub fn open(path: &Path, options: ReadOptions) -> Result<Self> {
        let named = |text: String| LabError::Trace(format!("{}{text}", path.display()));
        let source = source::open(path).map_err(|error| named(format!(": {error}")))?;
        Self::read(source, options).map_err(|error| match error {
            LabError::Trace(text) => named(format!(", {text}")),
            other => other,
        })
    }

    /// Reads JSON lines: a trace of Mooncake, or a recording, which has a header in its first line.
    ///
    /// # Errors
    /// [`LabError::Trace`] if the source can't be read or has a broken line; [`Error::InvalidArgument`] for a block
    /// size out of range.
    pub fn read(source: impl Read, options: ReadOptions) -> Result<Self> {
        let asked = options.block_tokens.map(|tokens| tokens as u64);
        if let Some(tokens) = asked.filter(|tokens| !(1..=MOST_BLOCK_TOKENS).contains(tokens)) {
            return Err(Error::InvalidArgument(format!(
                "trace block: expected 1 to {MOST_BLOCK_TOKENS} tokens, found {tokens}"
            ))
            .into());
        }
        let mut trace = Self {
            block_tokens: asked.unwrap_or(BLOCK_TOKENS),
            ..Self::default()
        };
        let mut known = Interned::default();
        let mut source = BufReader::new(source);
        let mut text = Vec::new();
        let mut first = true;
        for number in 1_u64.. {
            let rejected = |found: String| LabError::Trace(format!("line {number}: {found}"));
            text.clear();
            let read = source
                .by_ref()
                .take(MOST_LINE)
                .read_until(b'\n', &mut text)
                .map_err(|error| rejected(format!("the file can't be read on: {error}")))?;
            if read == 0 {
                break;
            }
            if read as u64 == MOST_LINE {
                return Err(rejected(format!(
                    "expected at most {MOST_LINE} bytes, found more: is this a trace?"
                )));
            }
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            if std::mem::take(&mut first)
                && let Some(header) = row::header(&text)
            {
                trace.block_tokens = header.map_err(rejected)?;
                if let Some(asked) = asked.filter(|&asked| asked != trace.block_tokens) {
                    return Err(rejected(format!(
                        "expected blocks of {asked} tokens as asked for, found a recording with {}",
                        trace.block_tokens
                    )));
                }
                continue;
            }
            match TraceRow::parse(&text, trace.block_tokens) {
                Ok(row) => trace.push(row, &mut known).map_err(rejected)?,
                Err(_) if options.skip_bad => trace.skipped += 1,
                Err(found) => return Err(rejected(found)),
            }
        }
        trace.requests.sort_by_key(|request| request.now);
        Ok(trace)
    }

    fn push(&mut self, mut row: TraceRow, known: &mut Interned) -> std::result::Result<(), String> {
        let blocks = (row.input_length / self.block_tokens) as usize;
        if self.boundaries.len().saturating_add(blocks) >= ROOT as usize {
            return Err(format!(
                "expected at most {ROOT} different blocks, found more"
            ));
        }
        let session = row.session.take().map(|name| {
            let next = known.sessions.len() as u64;
            *known.sessions.entry(name).or_insert(next)
        });
        let (hints, expects) = (row.hints(session), row.expects());
        let first = self.paths.len();
        let mut parent = ROOT;
        for hash in row.hash_ids.into_iter().take(blocks) {
            let next_hash = known.hashes.len() as u32;
            let hash = *known.hashes.entry(hash).or_insert(next_hash);
            let next = self.boundaries.len() as u32;
            let at = *known.chains.entry((parent, hash)).or_insert(next);
            if at == next {
                let depth = match parent {
                    ROOT => 1,
                    parent => self.boundaries[parent as usize].depth + 1,
                };
                self.boundaries.push(TraceBlock {
                    parent,
                    depth,
                    name: xxhash_rust::xxh3::xxh3_64(&next.to_le_bytes()),
                });
            }
            self.paths.push(at);
            parent = at;
        }
        self.requests.push(TraceRequest {
            now: row.timestamp as u64,
            tokens: row.input_length,
            output_tokens: row.output_length,
            hints,
            expects,
            releases: row.release,
            first,
            blocks,
        });
        Ok(())
    }

    /// The blocks of a request in order, as indices of the trace's boundaries.
    pub(crate) fn path(&self, request: &TraceRequest) -> &[u32] {
        &self.paths[request.first..][..request.blocks]
    }

    /// Number of requests.
    #[must_use]
    pub const fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Tokens of all prompts together.
    #[must_use]
    pub fn input_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.tokens).sum()
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_tokens(&self) -> u64 {
        self.block_tokens
    }

    /// Number of different full blocks.
    #[must_use]
    pub const fn distinct_blocks(&self) -> usize {
        self.boundaries.len()
    }

    /// Number of rows that were skipped as broken.
    #[must_use]
    pub const fn skipped(&self) -> usize {
        self.skipped
    }

    /// Time from the first request to the last, in ms.
    pub(crate) fn lasts(&self) -> u64 {
        let times = self.requests.first().zip(self.requests.last());
        times.map_or(0, |(first, last)| last.now - first.now)
    }

    /// A trace of the requests of the first `ms` milliseconds.
    pub(crate) fn until(&self, ms: u64) -> Self {
        let start = self.requests.first().map_or(0, |request| request.now);
        let end = self
            .requests
            .partition_point(|request| request.now - start <= ms);
        self.part(0..end)
    }

    /// A trace of the requests in this range.
    #[must_use]
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        let mut known = HashMap::new();
        let mut part = Self {
            block_tokens: self.block_tokens,
            ..Self::default()
        };
        for request in &self.requests[range] {
            let first = part.paths.len();
            let mut parent = ROOT;
            for &at in self.path(request) {
                let next = part.boundaries.len() as u32;
                let new = *known.entry(at).or_insert(next);
                if new == next {
                    part.boundaries.push(TraceBlock {
                        parent,
                        ..self.boundaries[at as usize]
                    });
                }
                part.paths.push(new);
                parent = new;
            }
            part.requests.push(TraceRequest {
                first,
                ..request.clone()
            });
        }
        part
    }
}

/// The numbers of hashes, chains of hashes and session names while a trace is read.
#[derive(Default)]
struct Interned {
    hashes: HashMap<HashId, u32>,
    chains: HashMap<(u32, u32), u32>,
    sessions: HashMap<HashId, u64>,
}
