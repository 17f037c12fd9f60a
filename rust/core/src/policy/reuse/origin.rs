//! The origin of a checkpoint: its kind, and facts about the request that made it.

/// The kind of a checkpoint: why it was made, and what has become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckpointKind {
    /// Made at the end of a prompt.
    End,
    /// Made where a prompt left known pages.
    Fork,
    /// Made so many blocks before the end of a prompt.
    Before(u32),
    /// Never used, and a request resumed deeper.
    Passed,
    /// Used by requests that went on from it.
    Continued,
    /// At the end of a prompt, never used, and its session went on elsewhere.
    Left,
}

/// Facts about the request that made or last used a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    /// Number of requests before this one in its conversation.
    pub(super) turn: u32,
    /// Blocks that the request added to what was known.
    pub(super) added: u32,
    /// Tokens of the prompt.
    pub(super) tokens: u32,
    /// Tokens of the answer, once the request has ended.
    pub(super) output_tokens: u32,
    /// Milliseconds since the turn before; 0 for a first turn.
    pub(super) gap: u32,
    /// Standing of the request in its session.
    pub(super) standing: Standing,
}

impl Origin {
    pub(super) const UNKNOWN: Self = Self {
        turn: 0,
        added: 0,
        tokens: 0,
        output_tokens: 0,
        gap: 0,
        standing: Standing::Unnamed,
    };
}

/// The standing of a request in its session. Hazards are learned apart for each standing, so that wrong session names
/// cost no more than learning them anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The request names no session.
    Unnamed,
    /// The first request of its session.
    First,
    /// The request goes on from the last prompt of its session.
    Next,
    /// The request's prompt does not begin with the last prompt of its session.
    Apart,
}
