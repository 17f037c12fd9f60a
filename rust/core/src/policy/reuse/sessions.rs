//! Sessions that applications name: which request is the next turn of one, and which ends it has left behind.

use hashbrown::HashMap;

/// The most sessions in a generation; the older of two generations is forgotten when the younger is full.
const MOST: usize = 8_192;

/// The last turn of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionTurn {
    /// Last boundary of the turn's prompt.
    pub(super) end: u64,
    pub(super) depth: usize,
    pub(super) number: u32,
    pub(super) since: u64,
}

/// The last turns of recent sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    young: HashMap<u64, SessionTurn>,
    old: HashMap<u64, SessionTurn>,
}

impl Sessions {
    /// The last turn of a session, if it is known.
    pub(super) fn turn(&self, session: u64) -> Option<SessionTurn> {
        let young = self.young.get(&session);
        young.or_else(|| self.old.get(&session)).copied()
    }

    /// Notes the last turn of a session.
    pub(super) fn note(&mut self, session: u64, turn: SessionTurn) {
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
