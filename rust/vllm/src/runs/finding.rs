//! Finds the blocks that hold the state of exactly one boundary, and proves it.

use super::request::RequestView;
use super::rules::RunRules;
use super::run::Run;
use super::states::{ByBoundary, FoundState, HandOver, LateState, of, put};

impl Run {
    /// Whether [`find`](Self::find) may find something that is wanted; after most steps there is nothing.
    pub(super) fn is_due<R: RequestView>(
        &self,
        rules: &RunRules,
        end: usize,
        offers: bool,
        request: &R,
    ) -> Result<bool, R::Error> {
        if rules.groups.is_empty() {
            return Ok(false);
        }
        if offers {
            return Ok(true);
        }
        if rules.drafts {
            return self.is_due_with_drafts(rules, end, request);
        }
        let at_boundary = end.is_multiple_of(rules.block_tokens);
        Ok(self.late.is_some() || at_boundary && self.may_want(rules, end, request)?)
    }

    /// The proven states of a step, which are whole once its forward pass is over.
    pub(super) fn find<R: RequestView>(
        &mut self,
        rules: &RunRules,
        (start, end): (usize, usize),
        offers: &[HandOver],
        request: &R,
    ) -> Result<Vec<FoundState>, R::Error> {
        let columns = if rules.drafts {
            self.note_next(rules, end, request)?;
            self.columns_with_drafts(rules, end, request)?
        } else {
            self.columns(rules, end, request)?
        };
        let mut offered = handed_over(rules, offers, &columns, request)?;
        for &(boundary, _) in &columns {
            if of(&offered, boundary).is_none() {
                offered.push((boundary, rules.none()));
            }
        }
        offered.sort_unstable_by_key(|&(boundary, _)| boundary);
        let mut found = Vec::new();
        for (boundary, blocks) in offered {
            if self.is_proven(rules, boundary, (start, end), request)? {
                let none = rules.none();
                found.push(rules.state(boundary, blocks, of(&columns, boundary).unwrap_or(&none)));
            }
        }
        Ok(found)
    }

    /// Whether this step or an earlier one made a state at a boundary.
    fn is_proven<R: RequestView>(
        &self,
        rules: &RunRules,
        boundary: usize,
        (start, end): (usize, usize),
        request: &R,
    ) -> Result<bool, R::Error> {
        if rules.drafts
            && let Some(proven) = self.is_proven_by_drafts(rules, boundary, request)?
        {
            return Ok(proven);
        }
        if self.ends.binary_search(&boundary).is_ok() {
            return Ok(true);
        }
        let n = rules.block_tokens;
        let (tokens, furthest) = (boundary * n, n * (1 + usize::from(rules.drops_last_block)));
        let exported = start + n <= tokens && tokens < end && end <= tokens + furthest;
        Ok(rules.exports_states && exported)
    }

    /// The blocks of states where steps ended: at the last step, and at an earlier one whose boundary had no key then.
    fn columns<R: RequestView>(
        &mut self,
        rules: &RunRules,
        end: usize,
        request: &R,
    ) -> Result<ByBoundary, R::Error> {
        let (mut columns, known) = (ByBoundary::new(), request.keys()?);
        if let Some(late) = self.late.take()
            && holds(rules, &late, request)?
        {
            if late.boundary <= known {
                put(&mut columns, late.boundary, late.blocks);
            } else {
                self.late = Some(late);
            }
        }
        let boundary = end / rules.block_tokens;
        if boundary > 0 && end.is_multiple_of(rules.block_tokens) {
            let blocks = rules.here(boundary, request)?;
            if boundary <= known {
                put(&mut columns, boundary, blocks);
            } else {
                self.late = Some(LateState { boundary, blocks });
            }
        }
        Ok(columns)
    }

    /// The state of a request that has ended before the key of its last boundary was known.
    pub(super) fn find_late<R: RequestView>(
        &mut self,
        rules: &RunRules,
        request: &R,
    ) -> Result<Option<FoundState>, R::Error> {
        if rules.drafts {
            return self.find_reached(rules, request);
        }
        let Some(late) = self.late.take() else {
            return Ok(None);
        };
        if late.boundary > request.keys()? || !holds(rules, &late, request)? {
            return Ok(None);
        }
        Ok(Some(rules.state(late.boundary, rules.none(), &late.blocks)))
    }
}

/// The blocks that the engine hands over and that still carry their hash. Those in `columns` are left out: they prove
/// no more.
fn handed_over<R: RequestView>(
    rules: &RunRules,
    offers: &[HandOver],
    columns: &ByBoundary,
    request: &R,
) -> Result<ByBoundary, R::Error> {
    let mut found = ByBoundary::new();
    for offer in offers {
        let groups = rules.groups.iter();
        let group = groups.rev().position(|group| group.table == offer.table);
        let Some(group) = group.map(|from_last| rules.groups.len() - 1 - from_last) else {
            continue;
        };
        let boundary = offer.tokens / rules.block_tokens;
        let is_there = of(columns, boundary).is_some_and(|blocks| blocks[group] == offer.block);
        if !offer.tokens.is_multiple_of(rules.block_tokens) || is_there {
            continue;
        }
        if request.carries(offer.table, offer.block, offer.tokens)? {
            let mut blocks = of(&found, boundary)
                .cloned()
                .unwrap_or_else(|| rules.none());
            blocks[group] = offer.block;
            put(&mut found, boundary, blocks);
        }
    }
    Ok(found)
}

/// Whether a request still has the state blocks that it had when it reached a boundary.
fn holds<R: RequestView>(
    rules: &RunRules,
    late: &LateState,
    request: &R,
) -> Result<bool, R::Error> {
    Ok(!late.blocks.contains(&0) && rules.here(late.boundary, request)? == late.blocks)
}
