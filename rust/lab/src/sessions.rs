//! Sessions of a trace: as it names them, or derived from its chains.

use hashbrown::HashMap;

use crate::trace::Trace;

/// Whose session ids a replay shows to the policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sessions {
    /// Those that the trace names.
    #[default]
    Given,
    /// None.
    Ignored,
    /// Every request's, derived: a request goes on in the session whose last prompt is the longest that its
    /// own begins with, and begins a session if there is none.
    Derived,
    /// The same, for sessions of several requests alone: as if the application told conversations from
    /// single calls.
    Returning,
}

impl Sessions {
    /// Every way by its name on a command line.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("given", Self::Given),
        ("ignore", Self::Ignored),
        ("derive", Self::Derived),
        ("returning", Self::Returning),
    ];
}

impl Trace {
    /// The same requests with other session ids.
    #[must_use]
    pub fn with_sessions(mut self, sessions: Sessions) -> Self {
        match sessions {
            Sessions::Given => {}
            Sessions::Ignored => self
                .visits
                .iter_mut()
                .for_each(|it| it.hints.session = None),
            Sessions::Derived | Sessions::Returning => {
                let (ids, requests) = self.derive();
                for (visit, id) in self.visits.iter_mut().zip(ids) {
                    let wanted = |&id: &usize| sessions == Sessions::Derived || requests[id] > 1;
                    visit.hints.session = id.filter(wanted).map(|id| id as u64);
                }
            }
        }
        self
    }

    /// The session of each request that has a full block, and the number of requests of each session.
    fn derive(&self) -> (Vec<Option<usize>>, Vec<usize>) {
        let mut ends: HashMap<u32, usize> = HashMap::new();
        let mut requests = Vec::new();
        let session_of = |visit| {
            let path = self.path(visit);
            let &end = path.last()?;
            let goes_on = path.iter().rev().find_map(|at| ends.remove(at));
            let session = goes_on.unwrap_or_else(|| {
                requests.push(0);
                requests.len() - 1
            });
            requests[session] += 1;
            ends.insert(end, session);
            Some(session)
        };
        let ids = self.visits.iter().map(session_of).collect();
        (ids, requests)
    }
}
