//! One replay: a trace, and a host with a policy and a budget, above a disk, a remote store or nothing.
//!
//! The policies are those of [`Cache`](hybrid_pages::cache::Cache), but the host evicts in another order: a request's
//! entries enter first, then the policy evicts until the budget holds, and may evict the new entries, too. A cache
//! can't do that, since it has no room beyond its slots. The disk here can't either.

use std::collections::HashMap;

use hybrid_pages::ids::EntryId;
use hybrid_pages::policy::{EntryKind, Hints, NewRequest, Policy};

use crate::counted_tier::{BlockEntries, CountedTier, NONE};
use crate::disk_tier::DiskTier;
use crate::network::{NetworkLink, RemoteUse};
use crate::simulated_store::{RemoteTraffic, SimulatedStore};
use crate::trace::{Trace, TraceRequest};

/// The result of one replay: tokens found, and sizes of what was written and held.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ReplayOutcome {
    /// Tokens that requests resumed over.
    pub hit_tokens: u64,
    /// The part of `hit_tokens` that the host alone would not have found.
    pub disk_hit_tokens: u64,
    /// Total size of all entries written to the host.
    pub written_size: u64,
    /// Total size of all entries written to the disk.
    pub disk_written_size: u64,
    /// Total size of all entries read from the disk.
    pub disk_read_size: u64,
    /// Size of the host's checkpoints after each request, summed over requests.
    pub checkpoint_size: u64,
    /// Size of the host's entries after each request, summed over requests.
    pub taken_size: u64,
    /// The largest size of the host's entries after any request.
    pub most_size: u64,
    /// Traffic between the host and a remote store.
    pub traffic: RemoteTraffic,
}

/// For how long after the expected time a host keeps what is expected, in milliseconds, as `GRACE` in
/// `python/hybrid_pages/vllm/scheduler/loads/expected.py`.
const GRACE: u64 = 15_000;

/// A replay of one trace through a host that only counts entries, above a disk, a remote store or nothing.
pub(crate) struct OneReplay<'a> {
    trace: &'a Trace,
    host: CountedTier<'a>,
    disk: Option<DiskTier<'a>>,
    store: Option<SimulatedStore>,
    outcome: ReplayOutcome,
    admitted: Vec<usize>,
    names: Vec<u64>,
    /// How many blocks of each session were known before its first request.
    shared: HashMap<u64, usize>,
}

impl<'a> OneReplay<'a> {
    pub(crate) fn new(trace: &'a Trace, policy: Box<dyn Policy>, ratio: u32, budget: u64) -> Self {
        Self {
            trace,
            host: CountedTier::new(trace, policy, ratio, budget),
            disk: None,
            store: None,
            outcome: ReplayOutcome::default(),
            admitted: Vec::new(),
            names: Vec::new(),
            shared: HashMap::new(),
        }
    }

    /// Adds a disk below the host.
    pub(crate) fn over(mut self, policy: Box<dyn Policy>, ratio: u32, budget: u64) -> Self {
        self.disk = Some(DiskTier::new(CountedTier::new(
            self.trace, policy, ratio, budget,
        )));
        self
    }

    /// Adds a remote store below the host.
    pub(crate) fn beside(mut self, link: NetworkLink, admit: RemoteUse) -> Self {
        self.store = Some(SimulatedStore::new(
            self.trace.boundaries.len(),
            link,
            admit,
        ));
        self
    }

    pub(crate) fn run(mut self) -> (ReplayOutcome, usize) {
        for request in &self.trace.requests {
            self.step(request);
        }
        let mut bytes = self.host.policy.bytes();
        self.outcome.written_size = self.host.written;
        if let Some(disk) = &self.disk {
            self.outcome.disk_written_size = disk.tier.written;
            bytes += disk.tier.policy.bytes();
        }
        if let Some(store) = &self.store {
            self.outcome.traffic = store.traffic;
        }
        (self.outcome, bytes)
    }

    fn step(&mut self, request: &TraceRequest) {
        let trace = self.trace;
        let path = trace.path(request);
        let limit = (request.tokens.saturating_sub(1) / trace.block_tokens) as usize;
        let (host, disk) = (&self.host, self.disk.as_ref().map(|disk| &disk.tier));
        let hit = |pages: usize, has: &dyn Fn(u32) -> bool| {
            let last = path[..pages.min(limit)].iter().rposition(|&at| has(at));
            last.map_or(0, |block| block + 1)
        };
        let leading = |has: &dyn Fn(u32) -> bool| path.iter().take_while(|&&at| has(at)).count();
        let alone = hit(leading(&|at| host.has_page(at)), &|at| {
            host.has_checkpoint(at)
        });
        let store = self.store.as_ref();
        let pages = leading(&|at| {
            host.has_page(at)
                || disk.is_some_and(|disk| disk.has_page(at))
                || store.is_some_and(|store| store.has_page(at))
        });
        let mut resumed = hit(pages, &|at| {
            host.has_checkpoint(at)
                || disk.is_some_and(|disk| disk.has_checkpoint(at))
                || store.is_some_and(|store| store.has_checkpoint(at))
        });
        let below = (resumed - alone) as u64 * trace.block_tokens;
        if let Some(store) = self.store.as_mut().filter(|_| below > 0) {
            if !store.fetch(&path[..resumed], below, &self.host) {
                resumed = alone;
            }
        } else {
            self.outcome.disk_hit_tokens += below;
        }
        self.outcome.hit_tokens += resumed as u64 * trace.block_tokens;

        let hints = self.hints(request);
        let host = &self.host;
        self.names.clear();
        let name = |&at: &u32| trace.boundaries[at as usize].name;
        self.names.extend(path.iter().map(name));
        self.admitted.clear();
        let arrival = NewRequest {
            now: request.now,
            tokens: request.tokens,
            boundaries: &self.names,
            limit,
            resumed,
            pages,
            seen: pages,
            free: host.free(),
            hints,
        };
        self.host.policy.admit(&arrival, &mut self.admitted);
        if let Some(disk) = &mut self.disk {
            disk.hear(&arrival);
        }
        self.admitted.sort_unstable();
        if resumed > alone {
            let read = self.promote(&path[..resumed]);
            if self.disk.is_some() {
                self.outcome.disk_read_size += read;
            }
        }
        // Pages behind the last checkpoint are not kept, since no request could resume there.
        let reach = self
            .admitted
            .last()
            .map_or(resumed, |&last| last.max(resumed));
        let kept = reach.max(pages.min(path.len()));
        for (block, &at) in path[..kept].iter().enumerate() {
            if !self.host.has_page(at) {
                self.host.enter(at, EntryKind::Page);
            }
            let wanted = self.admitted.binary_search(&(block + 1)).is_ok();
            if wanted && !self.host.has_checkpoint(at) {
                self.host.enter(at, EntryKind::Checkpoint);
            } else if wanted {
                self.admitted.retain(|&admitted| admitted != block + 1);
            }
        }
        if let Some(disk) = &mut self.disk {
            disk.write_behind(&path[..kept], resumed, &self.admitted, &self.host);
        }
        if let Some(store) = &mut self.store {
            store.write_behind(&path[..kept], resumed, &self.admitted, &self.host);
            store.pass(path);
        }
        self.release(path, resumed, &hints);
        if hints.store {
            let (names, end) = (&self.names, self.names.len());
            self.host.policy.finish(names, end, request.output_tokens);
            if let Some(disk) = &mut self.disk {
                disk.tier.policy.finish(names, end, request.output_tokens);
            }
        }
        self.look_ahead(request, path, pages);
        self.host.shrink(self.host.budget);
        let taken = self.host.taken();
        self.outcome.checkpoint_size += self.host.checkpoint_size();
        self.outcome.taken_size += taken;
        self.outcome.most_size = self.outcome.most_size.max(taken);
    }

    /// The hints of a request. What is expected is retained by a host with no tier below; with one, it is left to that
    /// tier.
    fn hints(&self, request: &TraceRequest) -> Hints {
        let mut hints = request.hints;
        if let Some(after) = request.expects
            && self.disk.is_none()
            && self.store.is_none()
        {
            let retain = (after + GRACE).min(Hints::MOST_RETAIN);
            hints.retain = hints.retain.max(retain);
        }
        hints
    }

    /// Remembers what a session shares with others when it begins, and gives up the rest at its end. `pages`: how many
    /// leading blocks were known before the request.
    fn look_ahead(&mut self, request: &TraceRequest, path: &[u32], pages: usize) {
        let mut first = pages;
        if let Some(session) = request.hints.session {
            first = first.min(*self.shared.entry(session).or_insert(pages));
        }
        if !request.releases {
            return;
        }
        if let Some(session) = request.hints.session {
            self.shared.remove(&session);
        }
        self.host.give_up(path, first);
        if let Some(disk) = &mut self.disk {
            disk.tier.give_up(path, first);
        }
    }

    /// Brings the entries of a hit that the host lacks to the host. Returns their total size.
    fn promote(&mut self, path: &[u32]) -> u64 {
        let before = self.host.written;
        for &at in path {
            if !self.host.has_page(at) {
                self.host.enter(at, EntryKind::Page);
            }
        }
        if let Some(&last) = path.last().filter(|&&at| !self.host.has_checkpoint(at)) {
            self.host.enter(last, EntryKind::Checkpoint);
        }
        self.host.written - before
    }

    /// Releases the entries of a request: the deepest first, and a block's checkpoint before its page.
    fn release(&mut self, path: &[u32], resumed: usize, hints: &Hints) {
        let everything = self.host.policy.refreshes_path();
        let reach = self.admitted.last().copied().unwrap_or(0).max(resumed);
        for (block, &at) in path.iter().enumerate().rev() {
            let BlockEntries { page, checkpoint } = self.host.cell(at);
            let depth = block + 1;
            let used = everything || depth == resumed || self.admitted.contains(&depth);
            if checkpoint != NONE && used {
                self.host.let_go(EntryId(checkpoint), hints);
            }
            if page != NONE {
                let hints = if depth <= reach { hints } else { &Hints::NONE };
                self.host.let_go(EntryId(page), hints);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::policies;
    use crate::trace::ReadOptions;

    fn reuse() -> Box<dyn Policy> {
        policies::by_name("reuse", 3).unwrap()
    }

    /// Runs the visits of a trace from one on. Returns the tokens found.
    fn hits(lab: &mut OneReplay<'_>, trace: &Trace, range: std::ops::Range<usize>) -> u64 {
        let before = lab.outcome.hit_tokens;
        trace.requests[range]
            .iter()
            .for_each(|request| lab.step(request));
        lab.outcome.hit_tokens - before
    }

    /// Hits of the second half of the conversation trace by a cache that a restart has emptied: of the policy that
    /// goes on, of one that begins with what that had learned, and of one that begins anew.
    fn after_a_restart(share: u64) -> [u64; 3] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/data/mooncake_conversation_trace.jsonl.zst");
        let trace = Trace::open(&path, ReadOptions::default()).unwrap();
        let (half, all) = (trace.requests.len() / 2, trace.requests.len());
        let budget = trace.distinct_blocks() as u64 * 4 / share;
        let mut lab = OneReplay::new(&trace, reuse(), 3, budget);
        hits(&mut lab, &trace, 0..half);
        let learnt = lab.host.policy.learnt();
        assert!(lab.host.shrink(0));
        let goes_on = hits(&mut lab, &trace, half..all);
        let mut policy = reuse();
        assert!(policy.recall(&learnt));
        let [recalls, anew] = [policy, reuse()].map(|policy| {
            hits(
                &mut OneReplay::new(&trace, policy, 3, budget),
                &trace,
                half..all,
            )
        });
        [goes_on, recalls, anew]
    }

    #[test]
    fn what_was_learned_before_a_restart_is_worth_hits_after_it() {
        let [goes_on, recalls, anew] = after_a_restart(200).map(|hits| hits as f64);
        assert!(recalls > anew * 1.02, "{recalls}, anew {anew}");
        assert!(recalls > goes_on * 0.9, "{recalls} of {goes_on}");
        let [goes_on, recalls, anew] = after_a_restart(50).map(|hits| hits as f64);
        assert!(recalls > anew, "{recalls}, anew {anew}");
        assert!(recalls > goes_on * 0.99, "{recalls} of {goes_on}");
    }
}
