//! The age of the catalog, and whether lookups wait for a listing.

use std::time::{Duration, Instant};

/// How long a listing counts as new for the lookup that asked for it.
const KEPT: Duration = Duration::from_secs(5);

/// The age of the catalog, and the listing that renews it.
#[derive(Debug, Default)]
pub(crate) struct Freshness {
    /// When the running listing began.
    running: Option<Instant>,
    /// Whether a lookup waits for the listing.
    asked: bool,
    ended: Option<Instant>,
    /// When a lookup first used the result of the last listing.
    looked: Option<Instant>,
    whole: Option<Instant>,
    /// When the last successful listing began, in milliseconds since 1970.
    listed_at: u64,
}

/// Whether an entry that the catalog lacks is missing in the store, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FreshnessAnswer {
    /// The entry is not in the store.
    Fresh,
    /// A listing that runs now will tell.
    Wait,
    /// The caller shall begin a listing, which will tell.
    Begin,
}

impl Freshness {
    /// The answer for a lookup of an entry that the catalog lacks.
    pub(crate) fn ask(&mut self, refresh: Duration, limit: Duration) -> FreshnessAnswer {
        if self.running.is_some_and(|begun| begun.elapsed() >= limit) {
            return FreshnessAnswer::Fresh; // A slow listing is not waited for.
        }
        let fresh = match (self.ended, self.looked) {
            (Some(_), Some(looked)) => looked.elapsed() < refresh,
            (Some(ended), None) => self.asked && ended.elapsed() < KEPT,
            (None, _) => false,
        };
        if fresh && self.running.is_none() {
            self.looked.get_or_insert_with(Instant::now);
            return FreshnessAnswer::Fresh;
        }
        self.begin(true)
    }

    /// Whether a listing that begins now shall list everything, and when the last successful one began, in
    /// milliseconds since 1970; 0 if there was none.
    pub(crate) fn next(&self, every: Duration) -> (bool, u64) {
        let whole = self.whole.is_none_or(|at| at.elapsed() >= every);
        (whole, self.listed_at)
    }

    /// Notes that the listing that began at this time was successful.
    pub(crate) const fn worked(&mut self, began: u64, whole: Option<Instant>) {
        self.listed_at = began;
        if whole.is_some() {
            self.whole = whole;
        }
    }

    /// Whether the last listing ended at least `age` ago.
    pub(crate) fn is_older_than(&self, age: Duration) -> bool {
        self.ended.is_some_and(|ended| ended.elapsed() >= age)
    }

    /// Notes that the listing has ended.
    pub(crate) fn end(&mut self) {
        (self.running, self.ended, self.looked) = (None, Some(Instant::now()), None);
    }

    /// Begins a listing unless one runs. `asked`: a lookup waits for it.
    pub(crate) fn begin(&mut self, asked: bool) -> FreshnessAnswer {
        if self.running.is_some() {
            return FreshnessAnswer::Wait;
        }
        (self.running, self.asked) = (Some(Instant::now()), asked);
        FreshnessAnswer::Begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_fresh_from_the_first_look_on() {
        let mut freshness = Freshness::default();
        let refresh = Duration::from_secs(3600);
        assert_eq!(freshness.ask(refresh, refresh), FreshnessAnswer::Begin);
        assert_eq!(freshness.ask(refresh, refresh), FreshnessAnswer::Wait);
        (freshness.running, freshness.ended) = (None, Some(Instant::now()));
        assert_eq!(
            freshness.ask(Duration::ZERO, refresh),
            FreshnessAnswer::Fresh
        );
        assert_eq!(freshness.ask(refresh, refresh), FreshnessAnswer::Fresh);
        assert_eq!(
            freshness.ask(Duration::ZERO, refresh),
            FreshnessAnswer::Begin
        );
    }

    #[test]
    fn a_listing_from_before_the_question_is_no_answer() {
        let mut freshness = Freshness::default();
        let refresh = Duration::from_secs(3600);
        assert_eq!(freshness.begin(false), FreshnessAnswer::Begin);
        assert_eq!(freshness.ask(refresh, refresh), FreshnessAnswer::Wait);
        (freshness.running, freshness.ended) = (None, Some(Instant::now()));
        assert_eq!(freshness.ask(refresh, refresh), FreshnessAnswer::Begin);
        assert_eq!(
            freshness.ask(refresh, refresh),
            FreshnessAnswer::Wait,
            "the one before it is no answer"
        );
    }
}
