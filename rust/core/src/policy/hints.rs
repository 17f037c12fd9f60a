//! What an application says of a request.

use xxhash_rust::xxh3::xxh3_64;

/// What an application says of a request; [`NONE`](Self::NONE) if it says nothing. Hints change which
/// entries are made and which leave first, never what a hit returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hints {
    /// Name of the session that it belongs to: its requests are turns of one conversation, which may return.
    pub session: Option<u64>,
    /// Within [`PRIORITIES`](Self::PRIORITIES): each step doubles what a checkpoint is worth.
    pub priority: i8,
    /// Milliseconds, [`MOST_RETAIN`](Self::MOST_RETAIN) at most: what it stores or uses leaves after everything that
    /// is not retained.
    pub retain: u64,
    /// Whether anything of it is stored. What it uses counts as used either way.
    pub store: bool,
}

impl Hints {
    /// Nothing was said.
    pub const NONE: Self = Self {
        session: None,
        priority: 0,
        retain: 0,
        store: true,
    };
    /// Priorities that make sense.
    pub const PRIORITIES: std::ops::RangeInclusive<i8> = -10..=10;
    /// A day, in milliseconds.
    pub const MOST_RETAIN: u64 = 24 * 60 * 60 * 1000;

    /// The name of a session by its id.
    #[must_use]
    pub fn name(session: &[u8]) -> u64 {
        xxh3_64(session)
    }

    /// Whether they say how entries are kept.
    #[must_use]
    pub const fn keep(&self) -> bool {
        self.retain > 0 || self.priority != 0
    }
}

impl Default for Hints {
    fn default() -> Self {
        Self::NONE
    }
}
