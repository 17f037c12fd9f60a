//! Sessions that applications name: which request is the next turn of one, and which ends it has left behind.

use hashbrown::HashMap;

use super::Reuse;
use super::hazard::{CheckpointKind, Features, Origin};
use crate::policy::NewRequest;

/// The most sessions in a generation; the older of two generations is forgotten when the younger is full.
const MOST: usize = 8_192;

/// The standing of a request in its session. Hazards are learned apart for each standing, so that wrong session names
/// cost no more than learning them anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The request names no session.
    Unnamed,
    /// The first request of its session.
    First,
    /// The request goes on from the last prompt of its session.
    Next,
    /// The request's prompt differs from that of the turn before within that one.
    Apart,
}

/// The last turn of a session.
#[derive(Debug, Clone, Copy)]
struct SessionTurn {
    /// Last boundary of the turn's prompt.
    end: u64,
    depth: usize,
    number: u32,
    since: u64,
}

/// The last turns of recent sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    young: HashMap<u64, SessionTurn>,
    old: HashMap<u64, SessionTurn>,
}

impl Sessions {
    fn turn(&self, session: u64) -> Option<SessionTurn> {
        let young = self.young.get(&session);
        young.or_else(|| self.old.get(&session)).copied()
    }

    fn note(&mut self, session: u64, turn: SessionTurn) {
        if self.young.len() >= MOST && !self.young.contains_key(&session) {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(session, turn);
    }

    pub(super) fn bytes(&self) -> usize {
        self.young.allocation_size() + self.old.allocation_size()
    }
}

impl Reuse {
    /// Adds to a request's origin what its session tells, and notes the request as its last turn.
    pub(super) fn follow(&mut self, request: &NewRequest<'_>, origin: &mut Origin) {
        let (Some(session), Some(&end)) = (request.hints.session, request.boundaries.last()) else {
            return;
        };
        origin.standing = match self.sessions.turn(session) {
            None => Standing::First,
            Some(turn) if request.boundaries.get(turn.depth - 1) == Some(&turn.end) => {
                origin.turn = origin.turn.max(turn.number.saturating_add(1));
                origin.gap = (self.now - turn.since).clamp(1, u32::MAX.into()) as u32;
                Standing::Next
            }
            Some(turn) => {
                self.leave_behind(turn.end);
                Standing::Apart
            }
        };
        let turn = SessionTurn {
            end,
            depth: request.blocks(),
            number: origin.turn,
            since: self.now,
        };
        self.sessions.note(session, turn);
    }

    /// Notes that the session of a prompt's end has gone on elsewhere, so that the end is less likely to be used.
    fn leave_behind(&mut self, end: u64) {
        let Some(at) = self.records.find(end) else {
            return;
        };
        let past = &mut self.records.past[at];
        if past.kind == CheckpointKind::End && past.hits == 0 {
            past.kind = CheckpointKind::Left;
            self.records[at].features = Features::new(CheckpointKind::Left, 0, &past.origin);
            self.watch(at);
            self.place(at);
        }
    }
}
