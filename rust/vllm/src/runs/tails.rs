//! Tails: running states inside blocks.
//!
//! After a step, the running state includes exactly the tokens up to the step's end, and is in the column of the last
//! of them. The next step overwrites it. So it can be stored where no step follows, where the store ends with the step,
//! or from a copy. The engine itself may keep a state inside a block: it copies it to another block before the next step,
//! or its kernels export it. Then it hands that block over.

use super::request::RequestView;
use super::rules::{RunRules, Tails};
use super::run::Run;
use super::states::{FoundState, HandOver, StateBlocks, Tail};

impl Run {
    /// Adds numbers of tokens of the request: a step that ends at one of them leaves a tail, and so does a state that
    /// the engine hands over.
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
        if rules.tails <= Tails::HandedOver || !self.tails.remove(&end) {
            return Ok(None);
        }
        self.tail(rules, end, rules.tails == Tails::Copied, request)
    }

    /// Notes that the tail of a step, after so many tokens, was not stored: it still is if the request ends there, or if
    /// the engine hands its state over.
    pub fn refuse_tail(&mut self, tokens: usize) {
        self.tail_offered = None;
        self.tails.insert(tokens);
    }

    /// The deepest wanted tail whose state the engine hands over with the step over the tokens [start, end).
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    pub fn tail_handed_over<R: RequestView>(
        &mut self,
        rules: &RunRules,
        (start, end): (usize, usize),
        offers: &[HandOver],
        request: &R,
    ) -> Result<Option<Tail>, R::Error> {
        let wanted = |&tokens: &usize| {
            let proven =
                tokens == start || (rules.exports_states && start < tokens && tokens < end);
            let inside = !tokens.is_multiple_of(rules.block_tokens);
            proven && inside && self.tails.contains(&tokens)
        };
        let found = offers.iter().map(|offer| offer.tokens).filter(wanted).max();
        let Some(tokens) = found.filter(|_| rules.tails != Tails::Never) else {
            return Ok(None);
        };
        self.tails.remove(&tokens);
        let mut blocks = rules.none();
        for offer in offers.iter().filter(|offer| offer.tokens == tokens) {
            if !request.carries(offer.table, offer.block, tokens)? {
                continue;
            }
            for (group, block) in rules.groups.iter().zip(&mut blocks) {
                if group.table == offer.table {
                    *block = offer.block;
                }
            }
        }
        Ok(Some(tail_of(tokens, blocks, false)))
    }

    /// The tail of a request that has ended after `end` tokens, if its end is inside a block.
    pub(super) fn tail_at_end<R: RequestView>(
        &mut self,
        rules: &RunRules,
        end: usize,
        request: &R,
    ) -> Result<Option<Tail>, R::Error> {
        if rules.tails <= Tails::HandedOver || self.tail_offered == Some(end) {
            return Ok(None);
        }
        self.tail(rules, end, false, request)
    }

    fn tail<R: RequestView>(
        &mut self,
        rules: &RunRules,
        end: usize,
        overwritten: bool,
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
        Ok(Some(tail_of(end, blocks, overwritten)))
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
        if rules.tails <= Tails::HandedOver || !ends_there || boundary > request.keys()? {
            return Ok(None);
        }
        if !self.wanted.insert(boundary) {
            return Ok(None);
        }
        let here = rules.here(boundary, request)?;
        Ok(Some(rules.state(boundary, rules.none(), &here)))
    }
}

/// A tail, if the blocks of all groups are known.
fn tail_of(tokens: usize, blocks: StateBlocks, overwritten: bool) -> Tail {
    if blocks.contains(&0) {
        Tail::Skipped("partial_state")
    } else {
        Tail::State {
            tokens,
            blocks,
            overwritten,
        }
    }
}
