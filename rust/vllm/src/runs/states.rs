//! Recurrent states at one boundary: the engine blocks that hold them.

use smallvec::SmallVec;

use super::request::RequestView;
use super::rules::RunRules;

/// An engine block of each recurrent group; 0 where the block isn't known.
pub type StateBlocks = SmallVec<[u32; 4]>;

/// A state that the engine says is in one of its blocks.
#[derive(Debug, Clone, Copy)]
pub struct HandOver {
    /// The index of the group's block table.
    pub table: usize,
    /// The engine block with the state.
    pub block: u32,
    /// How many leading tokens of the request the state includes.
    pub tokens: usize,
}

/// A state that is proven to include exactly the tokens up to a boundary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenState {
    /// The boundary, counted in blocks.
    pub boundary: usize,
    /// The engine blocks that hold the state, one of each recurrent group.
    pub blocks: StateBlocks,
}

/// What a plan stores behind the last whole block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tail {
    /// The running state, which stands after exactly so many tokens of the request.
    State {
        /// Tokens of the request.
        tokens: usize,
        /// The engine blocks that hold the state, one of each recurrent group.
        blocks: StateBlocks,
        /// Whether the next step overwrites the state before a store of it has ended.
        overwritten: bool,
    },
    /// Nothing, and why.
    Skipped(&'static str),
}

/// A state whose boundary a step has reached before the boundary's key was known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LateState {
    pub(super) boundary: usize,
    pub(super) blocks: StateBlocks,
}

/// A state, and which of its blocks the engine has handed over.
#[derive(Debug)]
pub(super) struct FoundState {
    pub(super) state: ProvenState,
    offered: StateBlocks,
}

impl FoundState {
    /// Whether the engine itself keeps the state in this step, under the boundary's hash.
    pub(super) fn is_kept<R: RequestView>(
        &self,
        rules: &RunRules,
        request: &R,
    ) -> Result<bool, R::Error> {
        let mut some = false;
        for (group, &block) in self.state.blocks.iter().enumerate() {
            if block == 0 {
                continue;
            }
            some = true;
            let table = rules.groups[group].table;
            let tokens = self.state.boundary * rules.block_tokens;
            if self.offered[group] == 0 && !request.carries(table, block, tokens)? {
                return Ok(false);
            }
        }
        Ok(some)
    }
}

/// Engine blocks of states, by boundary in blocks.
pub(super) type ByBoundary = SmallVec<[(usize, StateBlocks); 2]>;

pub(super) fn of(blocks: &ByBoundary, boundary: usize) -> Option<&StateBlocks> {
    let found = blocks.iter().find(|(at, _)| *at == boundary);
    found.map(|(_, blocks)| blocks)
}

pub(super) fn put(blocks: &mut ByBoundary, boundary: usize, these: StateBlocks) {
    match blocks.iter_mut().find(|(at, _)| *at == boundary) {
        Some((_, known)) => *known = these,
        None => blocks.push((boundary, these)),
    }
}

impl RunRules {
    /// The blocks in the columns of the tables where the state of a boundary belongs.
    pub(super) fn here<R: RequestView>(
        &self,
        boundary: usize,
        request: &R,
    ) -> Result<StateBlocks, R::Error> {
        let mut here = StateBlocks::new();
        for group in &self.groups {
            let column = (boundary * group.per_block).checked_sub(1);
            here.push(column.map_or(Ok(0), |column| request.block(group.table, column))?);
        }
        Ok(here)
    }

    pub(super) fn none(&self) -> StateBlocks {
        smallvec::smallvec![0; self.groups.len()]
    }

    /// The state of a boundary, from the blocks that were handed over and those in the tables. Where both name a block
    /// of a group and they differ, neither is proven.
    pub(super) fn state(
        &self,
        boundary: usize,
        offered: StateBlocks,
        here: &StateBlocks,
    ) -> FoundState {
        let agreed = |(&offered, &ours): (&u32, &u32)| match (offered, ours) {
            (0, ours) => ours,
            (offered, 0) => offered,
            (offered, ours) if offered == ours => ours,
            _ => 0,
        };
        FoundState {
            state: ProvenState {
                boundary,
                blocks: offered.iter().zip(here).map(agreed).collect(),
            },
            offered,
        }
    }
}
