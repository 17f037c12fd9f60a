//! How an engine cuts prompts, and which states are wanted.

/// Which boundaries get a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointMode {
    /// No boundary.
    None,
    /// The boundaries that the policy chose, and in an answer those whose states the engine itself keeps.
    Adaptive,
    /// The boundaries whose states the engine itself keeps.
    Align,
    /// Every boundary with a state.
    All,
}

/// Where states of a request are stored inside a block. Each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tails {
    /// Nowhere.
    Never,
    /// Where a tail is wanted and the engine hands the state over, in a block that no later step writes.
    HandedOver,
    /// Where the request ends, and after each step for which a tail is wanted, too: stores end with their step.
    InSteps,
    /// As `InSteps`, but stores outlast their step. So the state after a step is copied to other engine blocks first,
    /// since the next step overwrites it.
    Copied,
}

/// How an engine cuts prompts into blocks and steps, and which states are wanted.
#[derive(Debug, Clone)]
pub struct RunRules {
    /// Tokens of a block of the cache.
    pub block_tokens: usize,
    /// The recurrent groups of the engine.
    pub groups: Vec<StateGroup>,
    /// Whether the last step of a prefill runs past its last boundary, while its kernels export the state there.
    pub exports_states: bool,
    /// Whether the last step of a prefill begins, at the latest, a block before its last boundary.
    pub drops_last_block: bool,
    /// Whether the last tokens of a step may be drafts.
    pub drafts: bool,
    /// Whether some window is narrower than a block.
    pub narrow: bool,
    /// Which checkpoints are wanted.
    pub mode: CheckpointMode,
    /// Where states inside blocks are stored. With drafts, or a window that is narrower than a block, nowhere.
    pub tails: Tails,
}

/// A recurrent group. Its states are in the last of the columns that a block takes in the group's table.
#[derive(Debug, Clone, Copy)]
pub struct StateGroup {
    /// The index of the group's block table.
    pub table: usize,
    /// How many columns of the table one block takes.
    pub per_block: usize,
}

impl RunRules {
    /// Whether every filled page is stored; otherwise only pages up to the last checkpoint are.
    pub(super) fn stores_all_pages(&self) -> bool {
        self.groups.is_empty() || matches!(self.mode, CheckpointMode::Align | CheckpointMode::All)
    }
}
