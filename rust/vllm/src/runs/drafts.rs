//! Runs of engines that speculate: a step's last tokens may be drafts.
//!
//! The engine counts drafts as computed until they are rejected, so the end of a step proves nothing unless all
//! its tokens are known. In an answer the worker copies the state of a boundary to the boundary's own column when
//! the accepted tokens reach it, after sampling. So a state is taken when the report of that step has come: the
//! next step's allocation frees the column. The scratch columns behind the running one are never looked at.
//!
//! Facts: `vllm/v1/worker/mamba_utils.py`, `postprocess_mamba_fused_kernel`.

use super::request::RequestView;
use super::rules::RunRules;
use super::run::Run;
use super::states::{ByBoundary, FoundState, LateState};

impl Run {
    pub(super) fn advance_with_drafts<R: RequestView>(
        &mut self,
        rules: &RunRules,
        start: usize,
        end: usize,
        request: &R,
    ) -> Result<usize, R::Error> {
        let known = request.tokens()?;
        match self.position {
            None => self.prefilled = start + 1,
            Some(position) if start < position => self.ends.clear(),
            Some(_) => {}
        }
        let filled = end.min(known);
        self.position = Some(filled);
        if start + 1 < known {
            self.prefilled = filled;
        }
        if rules.ends_at_boundary(end, known) {
            self.ended_at(end / rules.block_tokens);
        }
        Ok(filled)
    }

    pub(super) fn is_due_with_drafts<R: RequestView>(
        &self,
        rules: &RunRules,
        end: usize,
        request: &R,
    ) -> Result<bool, R::Error> {
        let ends = rules.ends_at_boundary(end, request.tokens()?);
        Ok(ends || rules.next(request)? <= end)
    }

    /// If the step may reach a boundary, notes the column that the boundary's state will be in: if the step is the
    /// request's last one, the engine frees the column before it reports the end.
    pub(super) fn note_next<R: RequestView>(
        &mut self,
        rules: &RunRules,
        end: usize,
        request: &R,
    ) -> Result<(), R::Error> {
        let next = rules.next(request)?;
        if next <= end {
            let boundary = next / rules.block_tokens;
            let blocks = rules.here(boundary, request)?;
            self.late = Some(LateState { boundary, blocks });
        }
        Ok(())
    }

    pub(super) fn columns_with_drafts<R: RequestView>(
        &mut self,
        rules: &RunRules,
        end: usize,
        request: &R,
    ) -> Result<ByBoundary, R::Error> {
        let boundary = end / rules.block_tokens;
        let ends = rules.ends_at_boundary(end, request.tokens()?);
        let mut columns = ByBoundary::new();
        if boundary > 0 && ends && boundary <= request.keys()? {
            self.reached = self.reached.max(boundary);
            columns.push((boundary, rules.here(boundary, request)?));
        }
        Ok(columns)
    }

    /// Whether accepted tokens prove a boundary; `None` if only the steps can tell.
    pub(super) fn is_proven_by_drafts<R: RequestView>(
        &self,
        rules: &RunRules,
        boundary: usize,
        request: &R,
    ) -> Result<Option<bool>, R::Error> {
        if boundary > request.keys()? {
            return Ok(Some(false)); // The next report makes it known.
        }
        let tokens = boundary * rules.block_tokens;
        let accepted = self.prefilled <= tokens && tokens <= request.processed()?;
        Ok(accepted.then_some(true))
    }

    pub(super) fn last_with_drafts<R: RequestView>(
        end: usize,
        request: &R,
    ) -> Result<Option<usize>, R::Error> {
        if request.computed()? < end {
            return Ok(None); // It was preempted meanwhile, or tokens were taken back.
        }
        Ok(Some(end.max(request.processed()?.min(request.tokens()?))))
    }

    /// The boundary, in blocks, that the accepted tokens of an answer have newly reached; 0 if none.
    ///
    /// Before token `prefilled`, steps compute several known tokens: they pass boundaries without leaving a state, or
    /// leave another boundary's state in the column.
    pub(super) fn reached<R: RequestView>(
        &self,
        rules: &RunRules,
        request: &R,
    ) -> Result<usize, R::Error> {
        let boundary = request.processed()? / rules.block_tokens;
        let new = boundary > self.reached && !rules.groups.is_empty() && self.position.is_some();
        let in_answer = boundary * rules.block_tokens >= self.prefilled;
        Ok(if new && in_answer { boundary } else { 0 })
    }

    /// The least number of accepted tokens that may complete something, if nothing is left to store of those accepted
    /// so far; 0 if any number may.
    pub(super) fn next_report<R: RequestView>(
        &self,
        rules: &RunRules,
        request: &R,
    ) -> Result<usize, R::Error> {
        let next = rules.next(request)?;
        let is_known = next / rules.block_tokens <= request.keys()? + 1;
        Ok(if is_known { next } else { 0 })
    }

    /// The state of the boundary that accepted tokens have newly reached, if any.
    pub(super) fn find_reached<R: RequestView>(
        &mut self,
        rules: &RunRules,
        request: &R,
    ) -> Result<Option<FoundState>, R::Error> {
        let boundary = self.reached(rules, request)?;
        if boundary == 0 || boundary > request.keys()? {
            return Ok(None);
        }
        self.reached = boundary;
        let late = self.late.take().filter(|late| late.boundary == boundary);
        let mut here = rules.here(boundary, request)?;
        for (group, block) in late.into_iter().flat_map(|late| late.blocks).enumerate() {
            // A freed block may belong to another request, unless it carries the boundary's hash.
            let freed = block != 0 && here[group] == 0;
            let tokens = boundary * rules.block_tokens;
            if freed && request.carries(rules.groups[group].table, block, tokens)? {
                here[group] = block;
            }
        }
        Ok(Some(rules.state(boundary, rules.none(), &here)))
    }
}

impl RunRules {
    /// Whether a step ends on a boundary and none of its tokens is a draft.
    fn ends_at_boundary(&self, end: usize, known: usize) -> bool {
        end.is_multiple_of(self.block_tokens) && end <= known
    }

    /// The first boundary, in tokens, that is not certainly computed.
    fn next<R: RequestView>(&self, request: &R) -> Result<usize, R::Error> {
        let n = self.block_tokens;
        Ok((request.processed()? / n + 1) * n)
    }
}
