//! Requests of as many users as a fleet has work for, made from one trace.
//!
//! The sessions of a trace come once in each copy, every copy at another time of the trace's length: a session
//! begins that much later, and one that would begin after the trace's end begins as much after its start. Gaps
//! within a session stay as they are. Of the last copy there is a share of the sessions. Blocks that many
//! sessions of the trace pass, such as system prompts, are the same in all copies; all others are a copy's own.

use hybrid_pages::error::Error;
use hybrid_pages::ids::PrefixKey;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::Result;
use crate::trace::{Trace, Visit};

/// A block that so many sessions pass is everybody's.
const SHARED_BY: u32 = 10;
/// Of a copy's place in time: the golden ratio spreads any number of copies evenly.
const SPREAD: f64 = 0.618_033_988_749_894_9;

/// A request of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// Milliseconds since the start.
    pub(crate) now: u64,
    pub(crate) copy: u32,
    /// Among the trace's requests.
    pub(crate) visit: u32,
}

pub(crate) struct Crowd<'a> {
    trace: &'a Trace,
    /// By boundary.
    shared: Vec<bool>,
    pub(crate) copies: usize,
    /// In order of time.
    pub(crate) calls: Vec<Call>,
}

impl<'a> Crowd<'a> {
    /// So many copies of a trace. `share`: whether copies have common blocks.
    pub(crate) fn new(trace: &'a Trace, copies: f64, share: bool) -> Result<Self> {
        let (sessions, requests) = trace.derive();
        let count = copies.ceil() as usize;
        if count.saturating_mul(trace.visits.len().max(trace.boundaries.len())) >= 1 << 31 {
            return Err(Error::InvalidArgument(format!(
                "engines: expected work for at most 2^31 blocks and requests, found {count} copies of the trace"
            ))
            .into());
        }
        let start = trace.visits.first().map_or(0, |visit| visit.now);
        let lasts = trace.lasts().max(1);
        let mut begins = vec![u64::MAX; requests.len()];
        for (visit, session) in trace.visits.iter().zip(&sessions) {
            if let Some(session) = *session {
                begins[session] = begins[session].min(visit.now - start);
            }
        }
        let mut calls = Vec::new();
        let expected = (trace.visits.len() as f64 * copies) as usize;
        calls.try_reserve_exact(expected).map_err(|_| {
            Error::InvalidArgument(format!(
                "engines: expected work that memory can hold, found {expected} requests"
            ))
        })?;
        for copy in 0..count {
            let left = copies - copy as f64;
            let delay = ((copy as f64 * SPREAD).fract() * lasts as f64) as u64;
            for (at, (visit, session)) in trace.visits.iter().zip(&sessions).enumerate() {
                // A prompt without a full block is a session of its own.
                let (who, begin) = match *session {
                    Some(session) => (session as u64, begins[session]),
                    None => (at as u64 | 1 << 63, visit.now - start),
                };
                if chance(who, copy as u64) >= left {
                    continue;
                }
                let turned = (begin + delay) % (lasts + 1);
                calls.push(Call {
                    now: turned + (visit.now - start - begin),
                    copy: copy as u32,
                    visit: at as u32,
                });
            }
        }
        calls.retain(|call| call.now <= lasts);
        calls.sort_by_key(|call| call.now);
        Ok(Self {
            trace,
            shared: if share {
                popular(trace, &sessions)
            } else {
                vec![false; trace.boundaries.len()]
            },
            copies: count,
            calls,
        })
    }

    pub(crate) fn visit(&self, call: &Call) -> &'a Visit {
        &self.trace.visits[call.visit as usize]
    }

    /// The number of each block of a request: the same for the same blocks of one copy or of all.
    pub(crate) fn blocks<'b>(&'b self, call: &'b Call) -> impl Iterator<Item = usize> + 'b {
        let path = self.trace.path(self.visit(call));
        path.iter().map(|&at| {
            let copy = if self.shared[at as usize] {
                0
            } else {
                call.copy as usize
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

    /// Blocks of all copies.
    pub(crate) fn block_count(&self) -> usize {
        self.trace.boundaries.len() * self.copies
    }
}

/// A number from 0 to 1, the same for the same session of the same copy.
fn chance(session: u64, copy: u64) -> f64 {
    (xxh3_64_with_seed(&session.to_le_bytes(), copy) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Which boundaries many sessions pass.
fn popular(trace: &Trace, sessions: &[Option<usize>]) -> Vec<bool> {
    let mut passing = vec![(usize::MAX, 0_u32); trace.boundaries.len()];
    let mut by_session: Vec<usize> = (0..trace.visits.len()).collect();
    by_session.sort_by_key(|&at| sessions[at]);
    for at in by_session {
        let Some(session) = sessions[at] else {
            continue;
        };
        for &boundary in trace.path(&trace.visits[at]) {
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
