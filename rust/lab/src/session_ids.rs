//! Session ids of a trace's requests: those in the trace, or ids derived from its prompts.

use hashbrown::HashMap;

use crate::trace::Trace;

/// The session ids that a replay shows to the policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SessionIds {
    /// The ids that the trace names.
    #[default]
    Given,
    /// No ids.
    Ignored,
    /// Ids derived from prompts, for every request. A request continues the session whose last prompt is the longest
    /// prefix of its own prompt. If there is none, it begins a session.
    Derived,
    /// Ids derived from prompts, but only for sessions with several requests, as if the application told
    /// conversations from single calls.
    Returning,
}

impl SessionIds {
    /// Each choice with its name on a command line.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("given", Self::Given),
        ("ignore", Self::Ignored),
        ("derive", Self::Derived),
        ("returning", Self::Returning),
    ];
}

impl Trace {
    /// This trace with other session ids.
    #[must_use]
    pub fn with_sessions(mut self, sessions: SessionIds) -> Self {
        match sessions {
            SessionIds::Given => {}
            SessionIds::Ignored => self
                .requests
                .iter_mut()
                .for_each(|it| it.hints.session = None),
            SessionIds::Derived | SessionIds::Returning => {
                let (ids, requests) = self.derive();
                for (request, id) in self.requests.iter_mut().zip(ids) {
                    let wanted = |&id: &usize| sessions == SessionIds::Derived || requests[id] > 1;
                    request.hints.session = id.filter(wanted).map(|id| id as u64);
                }
            }
        }
        self
    }

    /// The session of each request that has a full block, and the number of requests of each session.
    pub(crate) fn derive(&self) -> (Vec<Option<usize>>, Vec<usize>) {
        let mut ends: HashMap<u32, usize> = HashMap::new();
        let mut requests = Vec::new();
        let session_of = |request| {
            let path = self.path(request);
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
        let ids = self.requests.iter().map(session_of).collect();
        (ids, requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::ReadOptions;

    /// Session ids of prompts of whole blocks.
    fn ids(chains: &[&[u64]], sessions: SessionIds) -> Vec<Option<u64>> {
        let row = |(now, chain): (usize, &&[u64])| {
            let tokens = chain.len() * 512 + 1;
            format!(
                "{{\"timestamp\":{now},\"input_length\":{tokens},\"hash_ids\":{chain:?},\"session\":\"s\"}}\n"
            )
        };
        let text: String = chains.iter().enumerate().map(row).collect();
        let trace = Trace::read(text.as_bytes(), ReadOptions::default()).unwrap();
        let trace = trace.with_sessions(sessions);
        trace.requests.iter().map(|it| it.hints.session).collect()
    }

    #[test]
    fn a_prompt_goes_on_in_the_session_whose_last_prompt_is_the_longest_it_begins_with() {
        let chains: [&[u64]; 8] = [
            &[1],
            &[1, 2, 3],
            &[1, 2, 4],       // [1] has gone on in another prompt.
            &[1, 2, 3, 5, 6], // Two of the first session's blocks are not its end.
            &[],
            &[1, 2, 4], // Asked again.
            &[1, 2, 4, 7],
            &[9],
        ];
        let some = |ids: &[u64]| -> Vec<_> { ids.iter().map(|&id| Some(id)).collect() };
        let mut derived = some(&[0, 0, 1, 0, 0, 1, 1, 2]);
        derived[4] = None;
        assert_eq!(ids(&chains, SessionIds::Derived), derived);
        derived[7] = None;
        assert_eq!(ids(&chains, SessionIds::Returning), derived);
        assert_eq!(ids(&chains, SessionIds::Ignored), [None; 8]);
        assert_eq!(ids(&chains, SessionIds::Given), [Some(0); 8]);
    }
}
