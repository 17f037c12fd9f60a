//! Runs of requests: what the steps of an engine fill, and which states they leave behind.
//!
//! The engine overwrites a state block as its request goes on, so a block's column in the table proves nothing.
//! Two things prove a boundary: a step of this run ended there, or the step runs past it and the kernels export
//! it. The block is then the one in the table where the step ended, or one that the engine hands over and that
//! still carries the boundary's hash: hand-overs also name blocks that were freed, and given to others, meanwhile.

mod drafts;
mod states;
mod wanted;

use std::collections::BTreeSet;

use smallvec::SmallVec;

pub use wanted::Mode;

/// A block of each recurrent group; 0 where it isn't known.
pub type Blocks = SmallVec<[u32; 4]>;

/// How an engine cuts prompts into blocks and steps, and which states are wanted.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Tokens of a block.
    pub block_tokens: usize,
    /// The recurrent groups.
    pub groups: Vec<StateGroup>,
    /// The last step of a prefill runs past its last boundary, and its kernels hand that state over from inside.
    pub exports_states: bool,
    /// The last step of a prefill begins, at the latest, a block before its last boundary.
    pub drops_last_block: bool,
    /// The last tokens of a step may be drafts.
    pub drafts: bool,
    /// Some window is narrower than a block.
    pub narrow: bool,
    /// Which checkpoints are wanted.
    pub mode: Mode,
}

/// Where the states of a recurrent group are: the last of a block's columns of a table.
#[derive(Debug, Clone, Copy)]
pub struct StateGroup {
    /// The engine's group.
    pub table: usize,
    /// Its columns of a block.
    pub per_block: usize,
}

/// A state that the engine hands over.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// The engine's group.
    pub table: usize,
    /// Its block.
    pub block: u32,
    /// What it includes.
    pub tokens: usize,
}

/// A proven state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// In blocks.
    pub boundary: usize,
    /// Where it is.
    pub blocks: Blocks,
}

/// What to store of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Leading blocks that are filled, have a key and are worth a page.
    pub reach: usize,
    /// States that are wanted.
    pub states: Vec<State>,
}

/// What a run asks the engine about its request.
pub trait Request {
    /// Why the engine has no answer.
    type Error;

    /// Tokens of its prompt.
    ///
    /// # Errors
    /// As the engine's.
    fn prompt_tokens(&self) -> Result<usize, Self::Error>;

    /// Tokens that it has, computed or not; no drafts.
    ///
    /// # Errors
    /// As the engine's.
    fn tokens(&self) -> Result<usize, Self::Error>;

    /// Tokens that are computed, among them those of steps under way and their drafts.
    ///
    /// # Errors
    /// As the engine's.
    fn computed(&self) -> Result<usize, Self::Error>;

    /// Those of them that are computed for certain.
    ///
    /// # Errors
    /// As the engine's.
    fn processed(&self) -> Result<usize, Self::Error>;

    /// Boundaries, in blocks, whose keys are known.
    ///
    /// # Errors
    /// As the engine's.
    fn keys(&self) -> Result<usize, Self::Error>;

    /// The block in a column of one of its tables; 0 if there is none.
    ///
    /// # Errors
    /// As the engine's.
    fn block(&self, table: usize, column: usize) -> Result<u32, Self::Error>;

    /// Whether the engine knows a block of a table as the state of a boundary of this request.
    ///
    /// # Errors
    /// As the engine's.
    fn carries(&self, table: usize, block: u32, boundary: usize) -> Result<bool, Self::Error>;
}

/// A state whose boundary a step has reached before the boundary's key was known.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Late {
    boundary: usize,
    blocks: Blocks,
}

/// One request, from where the engine schedules it behind what it has from caches until it ends or is preempted.
#[derive(Debug, Default)]
pub struct Run {
    /// Tokens after the last planned step; none before the first.
    pub position: Option<usize>,
    /// Leading blocks whose pages were offered to the cache.
    pub offered: usize,
    /// Steps that go on from `position` and end before this many tokens complete nothing; 0 if each is looked at.
    pub quiet_until: usize,
    /// Boundaries, in blocks, that get a checkpoint if there is a state.
    wanted: BTreeSet<usize>,
    /// Boundaries, in blocks, of the answer whose states were there and not wanted.
    passed_over: BTreeSet<usize>,
    /// Boundaries, in blocks, at which a step ended, ascending.
    ends: Vec<usize>,
    late: Option<Late>,
    /// With drafts: tokens after the last step that computed several known tokens.
    pub prefilled: usize,
    /// With drafts: the last boundary, in blocks, whose state was looked for.
    reached: usize,
    /// With drafts: fewer accepted tokens complete nothing.
    pub reports_from: usize,
}

impl Run {
    /// Forgets what the request had computed: the engine has freed its blocks.
    pub fn restart(&mut self) {
        let wanted = std::mem::take(&mut self.wanted);
        let passed_over = std::mem::take(&mut self.passed_over);
        *self = Self {
            wanted,
            passed_over,
            ..Self::default()
        };
    }

    /// Whether a step over the tokens [start, end), in which nothing is handed over, is known to complete nothing; it
    /// is noted then. A step that doesn't just go on from the one before is never known.
    pub fn passes(&mut self, start: usize, end: usize) -> bool {
        let passes = end < self.quiet_until && self.position == Some(start);
        if passes {
            self.position = Some(end);
        }
        passes
    }

    /// Notes a step over the tokens [start, end); how many are filled then, drafts apart.
    ///
    /// # Errors
    /// As the engine's.
    pub fn advance<R: Request>(
        &mut self,
        rules: &Rules,
        start: usize,
        end: usize,
        request: &R,
    ) -> Result<usize, R::Error> {
        if rules.drafts {
            return self.advance_with_drafts(rules, start, end, request);
        }
        if self.position != Some(start) {
            self.ends.clear();
            self.late = None;
        }
        self.quiet_until = 0;
        self.position = Some(end);
        if end > start && end.is_multiple_of(rules.block_tokens) {
            self.ended_at(end / rules.block_tokens);
        }
        Ok(end)
    }

    /// All that the step over the tokens [start, end) completes, if that is anything.
    ///
    /// # Errors
    /// As the engine's.
    pub fn step<R: Request>(
        &mut self,
        rules: &Rules,
        (start, end): (usize, usize),
        offers: &[Offer],
        request: &R,
    ) -> Result<Option<Plan>, R::Error> {
        let plan = self.completed(rules, (start, end), offers, request)?;
        if plan.is_none() {
            self.quiet_until = self.next_due(rules, end, request)?;
        }
        Ok(plan)
    }

    fn completed<R: Request>(
        &mut self,
        rules: &Rules,
        (start, end): (usize, usize),
        offers: &[Offer],
        request: &R,
    ) -> Result<Option<Plan>, R::Error> {
        let filled = self.advance(rules, start, end, request)?;
        let due = self.is_due(rules, end, !offers.is_empty(), request)?;
        if !due && filled / rules.block_tokens <= self.offered {
            return Ok(None);
        }
        let reach = self.reach(rules, filled, request)?;
        if !due && reach <= self.offered {
            return Ok(None);
        }
        self.reports_from = 0;
        if !due {
            return Ok(Some(Plan {
                reach,
                states: Vec::new(),
            }));
        }
        let states = self.find(rules, (start, end), offers, request)?;
        self.planned(rules, filled, states, request)
    }

    /// Where a run that has nothing left to store after `end` tokens may have again, if it only decodes until there;
    /// 0 if that may be at once, or if its steps have to be looked at anyway.
    fn next_due<R: Request>(
        &self,
        rules: &Rules,
        end: usize,
        request: &R,
    ) -> Result<usize, R::Error> {
        if rules.drafts || end < request.tokens()? {
            return Ok(0);
        }
        let boundary = end / rules.block_tokens;
        if boundary > request.keys()? {
            return Ok(0); // Its key is still to come.
        }
        Ok((boundary + 1) * rules.block_tokens)
    }

    /// All that the drafts that were accepted have completed, if that may be anything.
    ///
    /// # Errors
    /// As the engine's.
    pub fn report<R: Request>(
        &mut self,
        rules: &Rules,
        request: &R,
    ) -> Result<Option<Plan>, R::Error> {
        if !rules.drafts || request.processed()? < self.reports_from {
            return Ok(None);
        }
        let end = self.last(rules, request)?;
        let mut due = self.reached(rules, request)? > 0;
        if rules.narrow
            && !due
            && let Some(end) = end
        {
            due = self.reach(rules, end, request)? > self.offered;
        }
        if due {
            return self.finish(rules, request);
        }
        if end.is_some() {
            self.reports_from = self.next_report(rules, request)?;
        }
        Ok(None)
    }

    /// What is left of a request that has ended, whose last key only its end makes known; none if its blocks prove
    /// nothing.
    ///
    /// # Errors
    /// As the engine's.
    pub fn finish<R: Request>(
        &mut self,
        rules: &Rules,
        request: &R,
    ) -> Result<Option<Plan>, R::Error> {
        let Some(end) = self.last(rules, request)? else {
            return Ok(None);
        };
        let late = self.find_late(rules, request)?;
        self.planned(rules, end, late.into_iter().collect(), request)
    }

    fn planned<R: Request>(
        &mut self,
        rules: &Rules,
        filled: usize,
        mut states: Vec<states::Found>,
        request: &R,
    ) -> Result<Option<Plan>, R::Error> {
        let mut wanted = Vec::with_capacity(states.len());
        for found in states.drain(..) {
            if self.wants(rules, &found, request)? {
                wanted.push(found.state);
            }
        }
        Ok(Some(Plan {
            reach: self.reach(rules, filled, request)?,
            states: wanted,
        }))
    }

    /// Leading blocks that are filled after `end` tokens, have a key, and are worth a page.
    fn reach<R: Request>(&self, rules: &Rules, end: usize, request: &R) -> Result<usize, R::Error> {
        let mut known = request.keys()?;
        if !rules.stores_all_pages() {
            known = known.min(self.furthest());
        }
        Ok(known.min(end / rules.block_tokens))
    }

    /// Tokens of an ended request whose pages are filled; none if its blocks prove nothing.
    fn last<R: Request>(&self, rules: &Rules, request: &R) -> Result<Option<usize>, R::Error> {
        let Some(end) = self.position else {
            return Ok(None);
        };
        if rules.drafts {
            return Self::last_with_drafts(end, request);
        }
        // Otherwise it was preempted meanwhile, or tokens were taken back.
        Ok((request.computed()? == end).then_some(end))
    }

    /// Tokens from the block `first` on were taken back.
    pub fn take_back(&mut self, first: usize) {
        self.reports_from = 0;
        self.quiet_until = 0;
        self.offered = self.offered.min(first);
        self.passed_over.retain(|&boundary| boundary <= first);
    }

    fn ended_at(&mut self, boundary: usize) {
        if self.ends.last() != Some(&boundary) {
            self.ends.push(boundary);
        }
    }
}
