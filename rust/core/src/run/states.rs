//! Finds the blocks that hold the state of exactly one boundary, and proves it.

use smallvec::SmallVec;

use super::{Blocks, Late, Offer, Request, Rules, Run, State};

/// A state, and which of its blocks the engine has handed over.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) state: State,
    offered: Blocks,
}

impl Found {
    /// Whether the engine keeps it itself, under its hash, in this step.
    pub(super) fn is_kept<R: Request>(&self, rules: &Rules, request: &R) -> Result<bool, R::Error> {
        let mut some = false;
        for (group, &block) in self.state.blocks.iter().enumerate() {
            if block == 0 {
                continue;
            }
            some = true;
            let table = rules.groups[group].table;
            if self.offered[group] == 0 && !request.carries(table, block, self.state.boundary)? {
                return Ok(false);
            }
        }
        Ok(some)
    }
}

/// Blocks by boundary.
pub(super) type ByBoundary = SmallVec<[(usize, Blocks); 2]>;

fn of(blocks: &ByBoundary, boundary: usize) -> Option<&Blocks> {
    let found = blocks.iter().find(|(at, _)| *at == boundary);
    found.map(|(_, blocks)| blocks)
}

fn put(blocks: &mut ByBoundary, boundary: usize, these: Blocks) {
    match blocks.iter_mut().find(|(at, _)| *at == boundary) {
        Some((_, known)) => *known = these,
        None => blocks.push((boundary, these)),
    }
}

impl Rules {
    /// The blocks that the tables have where the state of a boundary belongs.
    pub(super) fn here<R: Request>(
        &self,
        boundary: usize,
        request: &R,
    ) -> Result<Blocks, R::Error> {
        let mut here = Blocks::new();
        for group in &self.groups {
            let column = (boundary * group.per_block).checked_sub(1);
            here.push(column.map_or(Ok(0), |column| request.block(group.table, column))?);
        }
        Ok(here)
    }

    pub(super) fn none(&self) -> Blocks {
        smallvec::smallvec![0; self.groups.len()]
    }

    /// Two different blocks of a group prove nothing.
    pub(super) fn state(&self, boundary: usize, offered: Blocks, here: &Blocks) -> Found {
        let agreed = |(&offered, &ours): (&u32, &u32)| match (offered, ours) {
            (0, ours) => ours,
            (offered, 0) => offered,
            (offered, ours) if offered == ours => ours,
            _ => 0,
        };
        Found {
            state: State {
                boundary,
                blocks: offered.iter().zip(here).map(agreed).collect(),
            },
            offered,
        }
    }
}

impl Run {
    /// Whether [`find`](Self::find) may find something that is wanted; after most steps there is nothing.
    pub(super) fn is_due<R: Request>(
        &self,
        rules: &Rules,
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
    pub(super) fn find<R: Request>(
        &mut self,
        rules: &Rules,
        (start, end): (usize, usize),
        offers: &[Offer],
        request: &R,
    ) -> Result<Vec<Found>, R::Error> {
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

    /// Whether this step or an earlier one made a state there.
    fn is_proven<R: Request>(
        &self,
        rules: &Rules,
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

    /// Blocks where steps ended: the last step, and an earlier one whose boundary had no key then.
    fn columns<R: Request>(
        &mut self,
        rules: &Rules,
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
                self.late = Some(Late { boundary, blocks });
            }
        }
        Ok(columns)
    }

    /// The state of a request that has ended before the key of its last boundary was known.
    pub(super) fn find_late<R: Request>(
        &mut self,
        rules: &Rules,
        request: &R,
    ) -> Result<Option<Found>, R::Error> {
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

/// What the engine hands over and still has under its hash, without what `columns` have: that proves no more.
fn handed_over<R: Request>(
    rules: &Rules,
    offers: &[Offer],
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
        if request.carries(offer.table, offer.block, boundary)? {
            let mut blocks = of(&found, boundary)
                .cloned()
                .unwrap_or_else(|| rules.none());
            blocks[group] = offer.block;
            put(&mut found, boundary, blocks);
        }
    }
    Ok(found)
}

/// Whether a request still has the blocks where it had reached a boundary.
fn holds<R: Request>(rules: &Rules, late: &Late, request: &R) -> Result<bool, R::Error> {
    Ok(!late.blocks.contains(&0) && rules.here(late.boundary, request)? == late.blocks)
}
