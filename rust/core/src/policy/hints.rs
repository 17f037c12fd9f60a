//! Hints of an application about a request.

use xxhash_rust::xxh3::xxh3_64;

/// Hints of an application about a request; [`NONE`](Self::NONE) if it gives none. Hints change which
/// entries are made and which are evicted first, never what a hit returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hints {
    /// Name of the session that the request belongs to: requests of one session are turns of one conversation.
    pub session: Option<u64>,
    /// Priority, within [`PRIORITIES`](Self::PRIORITIES): each step doubles the value of the request's checkpoints.
    pub priority: i8,
    /// Milliseconds, [`MOST_RETAIN`](Self::MOST_RETAIN) at most, for which entries that the request stores or uses are
    /// evicted only after everything that is not retained.
    pub retain: u64,
    /// Whether anything of the request is stored. Entries that it uses count as used either way.
    pub store: bool,
}

impl Hints {
    /// No hints.
    pub const NONE: Self = Self {
        session: None,
        priority: 0,
        retain: 0,
        store: true,
    };
    /// The range of priorities.
    pub const PRIORITIES: std::ops::RangeInclusive<i8> = -10..=10;
    /// The longest time to retain entries: a day, in milliseconds.
    pub const MOST_RETAIN: u64 = 24 * 60 * 60 * 1000;

    /// The name of a session with this id.
    #[must_use]
    pub fn name(session: &[u8]) -> u64 {
        xxh3_64(session)
    }

    /// Whether the hints say how long or how firmly entries are kept.
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
