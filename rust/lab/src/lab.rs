//! One replay: a trace, a policy and a budget.
//!
//! The lab hosts the policies that [`Cache`](hybrid_pages::cache::Cache) hosts, but keeps the published order: a
//! request's entries enter first, then the policy chooses what goes until the budget holds, the new
//! ones included. A cache can't do that, since it has no room beyond its slots.

use hybrid_pages::ids::{EntryId, TenantId};
use hybrid_pages::policy::{EntryKind, Hints, NewEntry, Policy, Request};

use crate::trace::{ROOT, Trace, Visit};

const NONE: u32 = u32::MAX;

/// The entries at a boundary.
#[derive(Debug, Clone, Copy)]
struct Cell {
    page: u32,
    checkpoint: u32,
}

/// Tokens found and room taken, as sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Tokens that requests resumed over.
    pub hit_tokens: u64,
    /// Of all that was written.
    pub written_size: u64,
    /// Of the checkpoints after each request, summed over requests.
    pub checkpoint_size: u64,
    /// Of all entries after each request, summed over requests.
    pub taken_size: u64,
    /// Of all entries after a request, at most.
    pub most_size: u64,
}

/// A cache of counts.
pub(crate) struct Lab<'a> {
    trace: &'a Trace,
    policy: Box<dyn Policy>,
    ratio: u32,
    budget: u64,
    cells: Vec<Cell>,
    /// Boundary and kind of each entry.
    entries: Vec<(u32, EntryKind)>,
    vacant: Vec<u32>,
    pages: u64,
    checkpoints: u64,
    outcome: Outcome,
    admitted: Vec<usize>,
    names: Vec<u64>,
}

impl<'a> Lab<'a> {
    pub(crate) fn new(trace: &'a Trace, policy: Box<dyn Policy>, ratio: u32, budget: u64) -> Self {
        let empty = Cell {
            page: NONE,
            checkpoint: NONE,
        };
        Self {
            trace,
            policy,
            ratio,
            budget,
            cells: vec![empty; trace.boundaries.len()],
            entries: Vec::new(),
            vacant: Vec::new(),
            pages: 0,
            checkpoints: 0,
            outcome: Outcome::default(),
            admitted: Vec::new(),
            names: Vec::new(),
        }
    }

    pub(crate) fn run(mut self) -> (Outcome, usize) {
        for visit in &self.trace.visits {
            self.step(visit);
        }
        (self.outcome, self.policy.bytes())
    }

    fn taken(&self) -> u64 {
        self.pages + self.checkpoints * u64::from(self.ratio)
    }

    fn step(&mut self, visit: &Visit) {
        let trace = self.trace;
        let path = trace.path(visit);
        let limit = (visit.tokens.saturating_sub(1) / trace.block_tokens) as usize;
        let cell = |at: &u32| self.cells[*at as usize];
        let pages = path.iter().take_while(|at| cell(at).page != NONE).count();
        let resumed = path[..pages.min(limit)]
            .iter()
            .rposition(|at| cell(at).checkpoint != NONE)
            .map_or(0, |block| block + 1);
        self.outcome.hit_tokens += resumed as u64 * trace.block_tokens;

        self.names.clear();
        let name = |&at: &u32| trace.boundaries[at as usize].name;
        self.names.extend(path.iter().map(name));
        self.admitted.clear();
        let request = Request {
            now: visit.now,
            tokens: visit.tokens,
            boundaries: &self.names,
            limit,
            resumed,
            pages,
            seen: pages,
            free: self.budget - self.taken(),
            hints: visit.hints,
        };
        self.policy.admit(&request, &mut self.admitted);
        self.admitted.sort_unstable();
        // Pages that no checkpoint needs are not kept by whom they can't help.
        let reach = self
            .admitted
            .last()
            .map_or(resumed, |&last| last.max(resumed));
        for (block, &at) in path[..reach.max(pages.min(path.len()))].iter().enumerate() {
            if self.cells[at as usize].page == NONE {
                self.enter(at, EntryKind::Page);
            }
            let wanted = self.admitted.binary_search(&(block + 1)).is_ok();
            if wanted && self.cells[at as usize].checkpoint == NONE {
                self.enter(at, EntryKind::Checkpoint);
            } else if wanted {
                self.admitted.retain(|&admitted| admitted != block + 1);
            }
        }
        self.release(path, resumed, &visit.hints);
        if visit.hints.store {
            self.policy
                .finish(&self.names, self.names.len(), visit.output_tokens);
        }
        while self.taken() > self.budget {
            let Some(victim) = self.policy.victim() else {
                break;
            };
            self.evict(victim);
        }
        let states = self.checkpoints * u64::from(self.ratio);
        self.outcome.checkpoint_size += states;
        self.outcome.taken_size += self.taken();
        self.outcome.most_size = self.outcome.most_size.max(self.taken());
    }

    /// Deepest first, a block's checkpoint before its page.
    fn release(&mut self, path: &[u32], resumed: usize, hints: &Hints) {
        let everything = self.policy.refreshes_path();
        let reach = self.admitted.last().copied().unwrap_or(0).max(resumed);
        for (block, &at) in path.iter().enumerate().rev() {
            let Cell { page, checkpoint } = self.cells[at as usize];
            let depth = block + 1;
            let used = everything || depth == resumed || self.admitted.contains(&depth);
            if checkpoint != NONE && used {
                self.let_go(EntryId(checkpoint), hints);
            }
            if page != NONE {
                let hints = if depth <= reach { hints } else { &Hints::NONE };
                self.let_go(EntryId(page), hints);
            }
        }
    }

    /// Nobody holds an entry any more that a request with such hints stored or used.
    fn let_go(&mut self, id: EntryId, hints: &Hints) {
        if hints.keep() {
            self.policy.hold(id);
            self.policy.keep(id, TenantId::NONE, hints);
        }
        self.policy.release(id);
    }

    fn enter(&mut self, at: u32, kind: EntryKind) {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push((ROOT, kind));
            self.entries.len() as u32 - 1
        });
        self.entries[id as usize] = (at, kind);
        let boundary = self.trace.boundaries[at as usize];
        let (parent, size) = match kind {
            EntryKind::Page | EntryKind::Window => {
                self.cells[at as usize].page = id;
                self.pages += 1;
                let parent = (boundary.parent != ROOT).then_some(boundary.parent);
                (parent.map(|at| self.cells[at as usize].page), 1)
            }
            EntryKind::Checkpoint => {
                self.cells[at as usize].checkpoint = id;
                self.checkpoints += 1;
                (Some(self.cells[at as usize].page), self.ratio)
            }
        };
        self.outcome.written_size += u64::from(size);
        self.policy.enter(&NewEntry {
            id: EntryId(id),
            kind,
            parent: parent.map(EntryId),
            depth: boundary.depth,
            size,
            boundary: boundary.name,
            tenant: TenantId::NONE,
        });
    }

    fn evict(&mut self, victim: EntryId) {
        let (at, kind) = self.entries[victim.0 as usize];
        let cell = &mut self.cells[at as usize];
        match kind {
            EntryKind::Page | EntryKind::Window => {
                cell.page = NONE;
                self.pages -= 1;
                // Only a policy that lets a page go before its checkpoint has one here.
                let orphan = cell.checkpoint;
                if orphan != NONE {
                    self.evict(EntryId(orphan));
                }
            }
            EntryKind::Checkpoint => {
                cell.checkpoint = NONE;
                self.checkpoints -= 1;
            }
        }
        self.policy.leave(victim);
        self.vacant.push(victim.0);
    }
}
