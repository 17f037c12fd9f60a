//! Sessions, as applications name them: which request is a next turn, and what it leaves behind.

use hashbrown::HashMap;

use super::Reuse;
use super::hazard::{Features, Kind, Origin};
use crate::policy::Request;

/// Sessions in a generation; the older of two is forgotten when the younger is full.
const MOST: usize = 8_192;

/// What a request is in its session. Each standing learns its hazards apart, so that a wrong name costs no
/// more than learning them anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It names no session.
    Unnamed,
    /// The first that names it.
    First,
    /// It goes on from the last prompt of its session.
    Next,
    /// Its prompt has left that of the turn before.
    Apart,
}

/// The last turn of a session.
#[derive(Debug, Clone, Copy)]
struct Turn {
    /// Last boundary of its prompt.
    end: u64,
    depth: usize,
    number: u32,
    since: u64,
}

/// The last turns of recent sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    young: HashMap<u64, Turn>,
    old: HashMap<u64, Turn>,
}

impl Sessions {
    fn turn(&self, session: u64) -> Option<Turn> {
        let young = self.young.get(&session);
        young.or_else(|| self.old.get(&session)).copied()
    }

    fn note(&mut self, session: u64, turn: Turn) {
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
    pub(super) fn follow(&mut self, request: &Request<'_>, origin: &mut Origin) {
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
        let turn = Turn {
            end,
            depth: request.blocks(),
            number: origin.turn,
            since: self.now,
        };
        self.sessions.note(session, turn);
    }

    /// The session of an end that was never used goes on elsewhere.
    fn leave_behind(&mut self, end: u64) {
        let Some(at) = self.records.find(end) else {
            return;
        };
        let past = &mut self.records.past[at];
        if past.kind == Kind::End && past.hits == 0 {
            past.kind = Kind::Left;
            self.records[at].features = Features::new(Kind::Left, 0, &past.origin);
            self.watch(at);
            self.place(at);
        }
    }
}
