//! A trace of as many requests as a fleet can just serve, made from copies of one trace.
//!
//! Each copy has all sessions of the trace, shifted by a time of its own. A session that would begin after the
//! trace's end wraps around to the start. Gaps within a session stay as they are. The last copy may have only a part
//! of the sessions. Blocks that many sessions of the trace pass, such as system prompts, are the same in all copies;
//! every copy has its own version of the others.

use hybrid_pages::error::Error;
use hybrid_pages::ids::PrefixKey;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::Result;
use crate::trace::{Trace, TraceRequest};

/// A block that at least this many sessions pass is the same in all copies.
const SHARED_BY: u32 = 10;
/// Step between the starts of copies, as a share of the trace's length: the golden ratio spreads any number of copies
/// evenly.
const SPREAD: f64 = 0.618_033_988_749_894_9;

/// A request of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScaledRequest {
    /// Milliseconds since the start.
    pub(crate) now: u64,
    pub(crate) copy: u32,
    /// Index among the trace's requests.
    pub(crate) traced: u32,
}

pub(crate) struct ScaledTrace<'a> {
    trace: &'a Trace,
    /// Whether each block of the trace is the same in all copies.
    shared: Vec<bool>,
    pub(crate) copies: usize,
    /// The requests of all copies in order of time.
    pub(crate) requests: Vec<ScaledRequest>,
}

impl<'a> ScaledTrace<'a> {
    /// Makes `copies` copies of a trace. `share`: whether copies have common blocks.
    pub(crate) fn new(trace: &'a Trace, copies: f64, share: bool) -> Result<Self> {
        let (sessions, requests) = trace.derive();
        let count = copies.ceil() as usize;
        if count.saturating_mul(trace.requests.len().max(trace.boundaries.len())) >= 1 << 31 {
            return Err(Error::InvalidArgument(format!(
                "engines: expected work for at most 2^31 blocks and requests, found {count} copies of the trace"
            ))
            .into());
        }
        let start = trace.requests.first().map_or(0, |traced| traced.now);
        let lasts = trace.lasts().max(1);
        let mut begins = vec![u64::MAX; requests.len()];
        for (traced, session) in trace.requests.iter().zip(&sessions) {
            if let Some(session) = *session {
                begins[session] = begins[session].min(traced.now - start);
            }
        }
        let mut requests = Vec::new();
        let expected = (trace.requests.len() as f64 * copies) as usize;
        requests.try_reserve_exact(expected).map_err(|_| {
            Error::InvalidArgument(format!(
                "engines: expected work that memory can hold, found {expected} requests"
            ))
        })?;
        for copy in 0..count {
            let left = copies - copy as f64;
            let delay = ((copy as f64 * SPREAD).fract() * lasts as f64) as u64;
            for (at, (traced, session)) in trace.requests.iter().zip(&sessions).enumerate() {
                // A prompt without a full block is a session of its own.
                let (who, begin) = match *session {
                    Some(session) => (session as u64, begins[session]),
                    None => (at as u64 | 1 << 63, traced.now - start),
                };
                if chance(who, copy as u64) >= left {
                    continue;
                }
                let turned = (begin + delay) % (lasts + 1);
                requests.push(ScaledRequest {
                    now: turned + (traced.now - start - begin),
                    copy: copy as u32,
                    traced: at as u32,
                });
            }
        }
        requests.retain(|request| request.now <= lasts);
        requests.sort_by_key(|request| request.now);
        Ok(Self {
            trace,
            shared: if share {
                popular(trace, &sessions)
            } else {
                vec![false; trace.boundaries.len()]
            },
            copies: count,
            requests,
        })
    }

    pub(crate) fn traced(&self, request: &ScaledRequest) -> &'a TraceRequest {
        &self.trace.requests[request.traced as usize]
    }

    /// The number of each block of a request. Blocks with equal numbers have the same tokens.
    pub(crate) fn blocks<'b>(
        &'b self,
        request: &'b ScaledRequest,
    ) -> impl Iterator<Item = usize> + 'b {
        let path = self.trace.path(self.traced(request));
        path.iter().map(|&at| {
            let copy = if self.shared[at as usize] {
                0
            } else {
                request.copy as usize
            };
            copy * self.trace.boundaries.len() + at as usize
        })
    }

    /// The key of a block by its number.
    pub(crate) fn key(&self, block: usize) -> Result<PrefixKey> {
        let count = self.trace.boundaries.len();
        let name = self.trace.boundaries[block % count].name;
        let of_copy = match block / count {
            0 => name,
            copy => xxh3_64_with_seed(&name.to_le_bytes(), copy as u64),
        };
        Ok(PrefixKey::new(&of_copy.to_le_bytes())?)
    }

    /// Number of blocks of all copies.
    pub(crate) fn block_count(&self) -> usize {
        self.trace.boundaries.len() * self.copies
    }
}

/// A random number from 0 to 1 that depends only on the session and the copy.
fn chance(session: u64, copy: u64) -> f64 {
    (xxh3_64_with_seed(&session.to_le_bytes(), copy) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Whether many sessions pass each boundary.
fn popular(trace: &Trace, sessions: &[Option<usize>]) -> Vec<bool> {
    let mut passing = vec![(usize::MAX, 0_u32); trace.boundaries.len()];
    let mut by_session: Vec<usize> = (0..trace.requests.len()).collect();
    by_session.sort_by_key(|&at| sessions[at]);
    for at in by_session {
        let Some(session) = sessions[at] else {
            continue;
        };
        for &boundary in trace.path(&trace.requests[at]) {
            let (last, count) = &mut passing[boundary as usize];
            if *last != session {
                (*last, *count) = (session, *count + 1);
            }
        }
    }
    passing
        .iter()
        .map(|&(_, count)| count >= SHARED_BY)
        .collect()
}
