//! One request's run, from step to step.

use std::collections::BTreeSet;

use super::request::RequestView;
use super::rules::RunRules;
use super::states::{FoundState, HandOver, LateState, ProvenState, Tail};

/// The pages and states of a request that are to be stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StorePlan {
    /// Leading blocks that are filled, have a key and are worth a page, even without the tail.
    pub reach: usize,
    /// States that are wanted.
    pub states: Vec<ProvenState>,
    /// The state behind the last block, if one is wanted there. All pages before it are stored with it.
    pub tail: Option<Tail>,
}

/// The run of one request: the tokens that its steps compute, behind those that come from caches. It lasts from when
/// the engine schedules the request until the request ends or is preempted.
#[derive(Debug, Default)]
pub struct Run {
    /// Tokens of the request after the last planned step; `None` before the first step.
    pub position: Option<usize>,
    /// Leading blocks whose pages were offered to the cache.
    pub offered: usize,
    /// Steps that go on from `position` and end before this many tokens complete nothing; 0 if each step must be looked
    /// at.
    pub quiet_until: usize,
    /// Boundaries, in blocks, that get a checkpoint if there is a state.
    pub(super) wanted: BTreeSet<usize>,
    /// Boundaries, in blocks, of the answer whose states were there and not wanted.
    pub(super) passed_over: BTreeSet<usize>,
    /// Boundaries, in blocks, at which a step ended, ascending.
    pub(super) ends: Vec<usize>,
    pub(super) late: Option<LateState>,
    /// Tokens of the request after which a step leaves a tail.
    pub(super) tails: BTreeSet<usize>,
    /// Tokens of the request before the end of the last tail that was offered to the cache.
    pub(super) tail_offered: Option<usize>,
    /// With drafts: tokens after the last step that computed several known tokens.
    pub prefilled: usize,
    /// With drafts: the last boundary, in blocks, whose state was looked for.
    pub(super) reached: usize,
    /// With drafts: the least number of accepted tokens that may complete something.
    pub reports_from: usize,
}

impl Run {
    /// Forgets what the request had computed: the engine has freed its blocks.
    pub fn restart(&mut self) {
        let wanted = std::mem::take(&mut self.wanted);
        let passed_over = std::mem::take(&mut self.passed_over);
        let tails = std::mem::take(&mut self.tails);
        *self = Self {
            wanted,
            passed_over,
            tails,
            ..Self::default()
        };
    }

    /// Whether a step over the tokens [start, end), in which the engine hands nothing over, is already known to
    /// complete nothing. If so, the step is noted. A step that doesn't begin where the one before ended is never known.
    pub fn passes(&mut self, start: usize, end: usize) -> bool {
        let passes = end < self.quiet_until && self.position == Some(start);
        if passes {
            self.position = Some(end);
        }
        passes
    }

    /// Notes a step over the tokens [start, end). Returns how many leading tokens of the request are filled after it,
    /// drafts not counted.
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    pub fn advance<R: RequestView>(
        &mut self,
        rules: &RunRules,
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

    /// Plans what to store after the step over the tokens [start, end); `None` if the step completes nothing.
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    pub fn step<R: RequestView>(
        &mut self,
        rules: &RunRules,
        (start, end): (usize, usize),
        offers: &[HandOver],
        request: &R,
    ) -> Result<Option<StorePlan>, R::Error> {
        let mut plan = self.completed(rules, (start, end), offers, request)?;
        if let Some(tail) = self.tail_of_step(rules, end, request)? {
            plan.get_or_insert_default().tail = Some(tail);
        }
        if plan.is_none() {
            self.quiet_until = self.next_due(rules, end, request)?;
        }
        Ok(plan)
    }

    fn completed<R: RequestView>(
        &mut self,
        rules: &RunRules,
        (start, end): (usize, usize),
        offers: &[HandOver],
        request: &R,
    ) -> Result<Option<StorePlan>, R::Error> {
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
            return Ok(Some(StorePlan {
                reach,
                ..StorePlan::default()
            }));
        }
        let states = self.find(rules, (start, end), offers, request)?;
        self.planned(rules, filled, states, request)
    }

    /// The number of tokens below which decode steps behind `end` complete nothing; 0 if each step has to be looked at.
    fn next_due<R: RequestView>(
        &self,
        rules: &RunRules,
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

    /// Plans what to store after drafts were accepted; `None` if they complete nothing.
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    pub fn report<R: RequestView>(
        &mut self,
        rules: &RunRules,
        request: &R,
    ) -> Result<Option<StorePlan>, R::Error> {
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

    /// Plans what is left to store of a request that has ended: its last key may be known only now. `None` if the
    /// blocks that the request holds prove nothing.
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    pub fn finish<R: RequestView>(
        &mut self,
        rules: &RunRules,
        request: &R,
    ) -> Result<Option<StorePlan>, R::Error> {
        let Some(end) = self.last(rules, request)? else {
            return Ok(None);
        };
        let late = self.find_late(rules, request)?;
        let last = self.state_at_end(rules, end, request)?;
        // It may be the late one.
        let last = last.filter(|last| {
            late.as_ref()
                .is_none_or(|late| late.state.boundary != last.state.boundary)
        });
        let states = late.into_iter().chain(last).collect();
        let mut plan = self.planned(rules, end, states, request)?;
        if let Some(tail) = self.tail_at_end(rules, end, request)? {
            plan.get_or_insert_default().tail = Some(tail);
        }
        Ok(plan)
    }

    pub(super) fn planned<R: RequestView>(
        &mut self,
        rules: &RunRules,
        filled: usize,
        mut states: Vec<FoundState>,
        request: &R,
    ) -> Result<Option<StorePlan>, R::Error> {
        let mut wanted = Vec::with_capacity(states.len());
        for found in states.drain(..) {
            if self.wants(rules, &found, request)? {
                wanted.push(found.state);
            }
        }
        Ok(Some(StorePlan {
            reach: self.reach(rules, filled, request)?,
            states: wanted,
            tail: None,
        }))
    }

    /// Leading blocks that are filled after `end` tokens, have a key, and are worth a page.
    pub(super) fn reach<R: RequestView>(
        &self,
        rules: &RunRules,
        end: usize,
        request: &R,
    ) -> Result<usize, R::Error> {
        let mut known = request.keys()?;
        if !rules.stores_all_pages() {
            known = known.min(self.furthest());
        }
        Ok(known.min(end / rules.block_tokens))
    }

    /// Tokens of an ended request whose pages are filled; `None` if its blocks prove nothing.
    pub(super) fn last<R: RequestView>(
        &self,
        rules: &RunRules,
        request: &R,
    ) -> Result<Option<usize>, R::Error> {
        let Some(end) = self.position else {
            return Ok(None);
        };
        if rules.drafts {
            return Self::last_with_drafts(end, request);
        }
        // Otherwise the request was preempted meanwhile, or tokens were taken back.
        Ok((request.computed()? == end).then_some(end))
    }

    /// Notes that the engine took back the tokens from the block `first` on.
    pub fn take_back(&mut self, first: usize) {
        self.reports_from = 0;
        self.quiet_until = 0;
        self.offered = self.offered.min(first);
        self.tail_offered = None;
        self.passed_over.retain(|&boundary| boundary <= first);
    }

    pub(super) fn ended_at(&mut self, boundary: usize) {
        if self.ends.last() != Some(&boundary) {
            self.ends.push(boundary);
        }
    }
}
