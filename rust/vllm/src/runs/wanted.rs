//! Which states are wanted.

use super::request::RequestView;
use super::rules::{CheckpointMode, RunRules};
use super::run::Run;
use super::states::FoundState;

impl Run {
    /// Adds boundaries, in blocks, that get a checkpoint.
    pub fn want(&mut self, boundaries: impl IntoIterator<Item = usize>) {
        self.wanted.extend(boundaries);
        self.quiet_until = 0; // Pages that were not worth storing may be now.
    }

    /// The boundaries, in blocks, that get a checkpoint.
    pub fn wanted(&self) -> impl Iterator<Item = usize> {
        self.wanted.iter().copied()
    }

    /// The last boundary, in blocks, that gets a checkpoint; 0 if none does.
    #[must_use]
    pub fn furthest(&self) -> usize {
        self.wanted.last().copied().unwrap_or(0)
    }

    /// Boundaries, in blocks, of the answer whose states were there, were not wanted, and are not stored.
    pub fn passed_over(&self) -> impl Iterator<Item = usize> {
        self.passed_over.difference(&self.wanted).copied()
    }

    /// Whether a state at a boundary after `end` tokens may be wanted.
    pub(super) fn may_want<R: RequestView>(
        &self,
        rules: &RunRules,
        end: usize,
        request: &R,
    ) -> Result<bool, R::Error> {
        Ok(match rules.mode {
            CheckpointMode::None => false,
            CheckpointMode::Align | CheckpointMode::All => true,
            CheckpointMode::Adaptive => {
                self.wanted.contains(&(end / rules.block_tokens))
                    || end > request.prompt_tokens()?
            }
        })
    }

    /// Whether a state is to be stored; if so, so are the pages up to it.
    ///
    /// An answer gets the checkpoints that the engine keeps itself, so that a next turn resumes no earlier than
    /// from the engine's own cache.
    pub(super) fn wants<R: RequestView>(
        &mut self,
        rules: &RunRules,
        found: &FoundState,
        request: &R,
    ) -> Result<bool, R::Error> {
        let boundary = found.state.boundary;
        if rules.mode == CheckpointMode::None {
            return Ok(false);
        }
        if self.wanted.contains(&boundary) {
            return Ok(true);
        }
        let in_answer = boundary * rules.block_tokens > request.prompt_tokens()?;
        let wanted = match rules.mode {
            CheckpointMode::All => true,
            CheckpointMode::Adaptive if !in_answer => false,
            _ => found.is_kept(rules, request)?,
        };
        if wanted {
            self.wanted.insert(boundary);
        } else if in_answer && !found.state.blocks.contains(&0) {
            self.passed_over.insert(boundary);
        }
        Ok(wanted)
    }
}
