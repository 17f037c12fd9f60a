//! Traces: Mooncake's JSONL, plain or compressed, as chains of boundaries.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use hashbrown::HashMap;
use serde::Deserialize;

use crate::error::{Error, Result};

/// No boundary before the first.
pub(super) const ROOT: u32 = u32::MAX;

/// How to read a trace.
#[derive(Debug, Clone, Copy)]
pub struct ReadOptions {
    /// Tokens that one hash stands for.
    pub block_tokens: usize,
    /// Count broken lines instead of refusing the trace.
    pub skip_bad: bool,
}

/// A boundary of some request: the end of a block under one chain of hashes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Boundary {
    pub(super) parent: u32,
    pub(super) depth: u32,
    pub(super) name: u64,
}

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Visit {
    pub(super) now: u64,
    pub(super) tokens: u64,
    pub(super) output_tokens: u64,
    /// Its boundaries: a range of the trace's paths.
    first: usize,
    blocks: usize,
}

/// Requests in order of arrival, each with the boundaries of its full blocks.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    pub(super) block_tokens: u64,
    pub(super) visits: Vec<Visit>,
    pub(super) boundaries: Vec<Boundary>,
    paths: Vec<u32>,
    skipped: usize,
}

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    #[serde(default)]
    output_length: u64,
    hash_ids: Vec<HashId>,
}

/// A hash as a number or as text.
#[derive(Deserialize, PartialEq, Eq, Hash)]
#[serde(untagged)]
enum HashId {
    Unsigned(u64),
    Signed(i64),
    Text(Box<str>),
}

impl Trace {
    /// Reads a file; gzip and zstd are known by their first bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a file that can't be read, and for the first broken line,
    /// with its number, unless such lines are skipped.
    pub fn open(path: &Path, options: ReadOptions) -> Result<Self> {
        let unread = |error: std::io::Error| {
            Error::InvalidArgument(format!("trace {}: {error}", path.display()))
        };
        let mut file = File::open(path).map_err(unread)?;
        let mut magic = Vec::new();
        file.by_ref()
            .take(4)
            .read_to_end(&mut magic)
            .map_err(unread)?;
        file.seek(SeekFrom::Start(0)).map_err(unread)?;
        let trace = match magic.as_slice() {
            [0x1f, 0x8b, ..] => Self::read(flate2::read::MultiGzDecoder::new(file), options),
            [0x28, 0xb5, 0x2f, 0xfd] => {
                let decoder = ruzstd::decoding::StreamingDecoder::new(file).map_err(|error| {
                    Error::InvalidArgument(format!("trace {}: {error}", path.display()))
                })?;
                Self::read(decoder, options)
            }
            _ => Self::read(file, options),
        };
        trace.map_err(|error| match error {
            Error::InvalidArgument(text) => {
                Error::InvalidArgument(format!("trace {}: {text}", path.display()))
            }
            other => other,
        })
    }

    /// Reads JSON lines.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] as for [`open`](Self::open).
    pub fn read(source: impl Read, options: ReadOptions) -> Result<Self> {
        if options.block_tokens == 0 {
            return Err(Error::InvalidArgument(
                "trace block: expected at least 1 token, found 0".into(),
            ));
        }
        let mut trace = Self {
            block_tokens: options.block_tokens as u64,
            ..Self::default()
        };
        let mut known = Known::default();
        let mut source = BufReader::new(source);
        let mut text = Vec::new();
        for number in 1.. {
            text.clear();
            let read = source
                .read_until(b'\n', &mut text)
                .map_err(|error| Error::InvalidArgument(format!("line {number}: {error}")))?;
            if read == 0 {
                break;
            }
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match Self::parse(&text, options.block_tokens as u64) {
                Ok(line) => trace.push(line, &mut known),
                Err(_) if options.skip_bad => trace.skipped += 1,
                Err(found) => {
                    return Err(Error::InvalidArgument(format!("line {number}: {found}")));
                }
            }
        }
        trace.visits.sort_by_key(|visit| visit.now);
        Ok(trace)
    }

    fn parse(text: &[u8], block_tokens: u64) -> std::result::Result<Line, String> {
        let line: Line = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let blocks = line.input_length / block_tokens;
        if (line.hash_ids.len() as u64) < blocks {
            return Err(format!(
                "expected a hash for each of {blocks} full blocks of {block_tokens} tokens, found {}",
                line.hash_ids.len()
            ));
        }
        if line.timestamp.is_nan() || line.timestamp < 0.0 {
            return Err(format!(
                "timestamp: expected milliseconds from 0 on, found {}",
                line.timestamp
            ));
        }
        Ok(line)
    }

    fn push(&mut self, line: Line, known: &mut Known) {
        let blocks = (line.input_length / self.block_tokens) as usize;
        let first = self.paths.len();
        let mut parent = ROOT;
        for hash in line.hash_ids.into_iter().take(blocks) {
            let next_hash = known.hashes.len() as u32;
            let hash = *known.hashes.entry(hash).or_insert(next_hash);
            let next = self.boundaries.len() as u32;
            let at = *known.chains.entry((parent, hash)).or_insert(next);
            if at == next {
                let depth = match parent {
                    ROOT => 1,
                    parent => self.boundaries[parent as usize].depth + 1,
                };
                self.boundaries.push(Boundary {
                    parent,
                    depth,
                    name: xxhash_rust::xxh3::xxh3_64(&next.to_le_bytes()),
                });
            }
            self.paths.push(at);
            parent = at;
        }
        self.visits.push(Visit {
            now: line.timestamp as u64,
            tokens: line.input_length,
            output_tokens: line.output_length,
            first,
            blocks,
        });
    }

    /// The boundaries of a request, shallow first.
    pub(super) fn path(&self, visit: &Visit) -> &[u32] {
        &self.paths[visit.first..][..visit.blocks]
    }

    /// Requests.
    #[must_use]
    pub const fn requests(&self) -> usize {
        self.visits.len()
    }

    /// Tokens of all prompts.
    #[must_use]
    pub fn input_tokens(&self) -> u64 {
        self.visits.iter().map(|visit| visit.tokens).sum()
    }

    /// Different full blocks.
    #[must_use]
    pub const fn distinct_blocks(&self) -> usize {
        self.boundaries.len()
    }

    /// Lines that were skipped as broken.
    #[must_use]
    pub const fn skipped(&self) -> usize {
        self.skipped
    }

    /// The part of the trace that a slice of its requests is.
    #[must_use]
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        let mut known = HashMap::new();
        let mut part = Self {
            block_tokens: self.block_tokens,
            ..Self::default()
        };
        for visit in &self.visits[range] {
            let first = part.paths.len();
            let mut parent = ROOT;
            for &at in self.path(visit) {
                let next = part.boundaries.len() as u32;
                let new = *known.entry(at).or_insert(next);
                if new == next {
                    part.boundaries.push(Boundary {
                        parent,
                        ..self.boundaries[at as usize]
                    });
                }
                part.paths.push(new);
                parent = new;
            }
            part.visits.push(Visit {
                first,
                ..visit.clone()
            });
        }
        part
    }
}

/// What was seen while reading.
#[derive(Default)]
struct Known {
    hashes: HashMap<HashId, u32>,
    chains: HashMap<(u32, u32), u32>,
}
