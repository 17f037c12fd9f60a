//! Tails: running states inside blocks.
//!
//! After a step, the running state includes exactly the tokens up to the step's end, and is in the column of the last
//! of them. The next step overwrites it. So it can be stored where no step follows, or where the store ends with the
//! step.

use super::request::RequestView;
use super::rules::{RunRules, Tails};
use super::run::Run;
use super::states::{FoundState, StateBlocks, Tail};

impl Run {
    /// Adds numbers of tokens of the request: a step that ends at one of them leaves a tail.
    pub fn want_tails(&mut self, tokens: impl IntoIterator<Item = usize>) {
        self.tails.extend(tokens);
        self.quiet_until = 0;
    }

    /// The tail that the step before `end` tokens leaves, if one is wanted there.
    pub(super) fn tail_of_step<R: RequestView>(
        &mut self,
        rules: &RunRules,
        end: usize,
        request: &R,
    ) -> Result<Option<Tail>, R::Error> {
        if rules.tails != Tails::InSteps || !self.tails.remove(&end) {
            return Ok(None);
        }
        self.tail(rules, end, request)
    }

    /// The tail of a request that has ended after `end` tokens, if its end is inside a block.
    pub(super) fn tail_at_end<R: RequestView>(
        &mut self,
        rules: &RunRules,
        end: usize,
        request: &R,
    ) -> Result<Option<Tail>, R::Error> {
        if rules.tails == Tails::Never || self.tail_offered == Some(end) {
            return Ok(None);
        }
        self.tail(rules, end, request)
    }

    fn tail<R: RequestView>(
        &mut self,
        rules: &RunRules,
        end: usize,
        request: &R,
    ) -> Result<Option<Tail>, R::Error> {
        if end.is_multiple_of(rules.block_tokens) {
            return Ok(None);
        }
        if end > request.tokens()? {
            // The state includes a token that the engine has sampled and thrown away.
            return Ok(Some(Tail::Skipped("unknown_token")));
        }
        self.tail_offered = Some(end);
        let mut blocks = StateBlocks::new();
        for group in &rules.groups {
            let column = end.div_ceil(rules.block_tokens / group.per_block) - 1;
            blocks.push(request.block(group.table, column)?);
        }
        Ok(Some(if blocks.contains(&0) {
            Tail::Skipped("partial_state")
        } else {
            Tail::State {
                tokens: end,
                blocks,
            }
        }))
    }

    /// The state of a request that has ended at a boundary, after `end` tokens, unless it was wanted before.
    pub(super) fn state_at_end<R: RequestView>(
        &mut self,
        rules: &RunRules,
        end: usize,
        request: &R,
    ) -> Result<Option<FoundState>, R::Error> {
        let boundary = end / rules.block_tokens;
        let ends_there = boundary > 0 && end.is_multiple_of(rules.block_tokens);
        if rules.tails == Tails::Never || !ends_there || boundary > request.keys()? {
            return Ok(None);
        }
        if !self.wanted.insert(boundary) {
            return Ok(None);
        }
        let here = rules.here(boundary, request)?;
        Ok(Some(rules.state(boundary, rules.none(), &here)))
    }
}
