//! How old the catalog is, and who waits for a listing.

use std::time::{Duration, Instant};

/// What a listing has found waits so long for whoever asked for it.
const KEPT: Duration = Duration::from_secs(5);

/// How old the catalog is.
#[derive(Debug, Default)]
pub(crate) struct Freshness {
    /// When the listing that runs has begun.
    running: Option<Instant>,
    /// Whether a lookup waits for it.
    asked: bool,
    ended: Option<Instant>,
    /// When somebody first looked at what the last listing has found.
    looked: Option<Instant>,
    whole: Option<Instant>,
    /// When the last listing that worked began, in milliseconds since 1970.
    listed_at: u64,
}

/// Whether what the catalog lacks is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is not.
    Fresh,
    /// A listing says so soon.
    Wait,
    /// The caller begins a listing, which says so.
    Begin,
}

impl Freshness {
    /// What a lookup finds that the catalog has no answer for.
    pub(crate) fn ask(&mut self, refresh: Duration, limit: Duration) -> Answer {
        if self.running.is_some_and(|begun| begun.elapsed() >= limit) {
            return Answer::Fresh; // What is known counts meanwhile.
        }
        let fresh = match (self.ended, self.looked) {
            (Some(_), Some(looked)) => looked.elapsed() < refresh,
            (Some(ended), None) => self.asked && ended.elapsed() < KEPT,
            (None, _) => false,
        };
        if fresh && self.running.is_none() {
            self.looked.get_or_insert_with(Instant::now);
            return Answer::Fresh;
        }
        self.begin(true)
    }

    /// Whether a listing that begins now is of everything, and when the last one that worked began, in milliseconds
    /// since 1970; 0 before.
    pub(crate) fn next(&self, every: Duration) -> (bool, u64) {
        let whole = self.whole.is_none_or(|at| at.elapsed() >= every);
        (whole, self.listed_at)
    }

    /// A listing that began then has worked.
    pub(crate) const fn worked(&mut self, began: u64, whole: Option<Instant>) {
        self.listed_at = began;
        if whole.is_some() {
            self.whole = whole;
        }
    }

    /// Whether the last listing ended so long ago.
    pub(crate) fn is_older_than(&self, age: Duration) -> bool {
        self.ended.is_some_and(|ended| ended.elapsed() >= age)
    }

    /// A listing has ended.
    pub(crate) fn end(&mut self) {
        (self.running, self.ended, self.looked) = (None, Some(Instant::now()), None);
    }

    /// Begins a listing unless one runs. `asked`: a lookup waits for it.
    pub(crate) fn begin(&mut self, asked: bool) -> Answer {
        if self.running.is_some() {
            return Answer::Wait;
        }
        (self.running, self.asked) = (Some(Instant::now()), asked);
        Answer::Begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_fresh_from_the_first_look_on() {
        let mut freshness = Freshness::default();
        let refresh = Duration::from_secs(3600);
        assert_eq!(freshness.ask(refresh, refresh), Answer::Begin);
        assert_eq!(freshness.ask(refresh, refresh), Answer::Wait);
        (freshness.running, freshness.ended) = (None, Some(Instant::now()));
        assert_eq!(freshness.ask(Duration::ZERO, refresh), Answer::Fresh);
        assert_eq!(freshness.ask(refresh, refresh), Answer::Fresh);
        assert_eq!(freshness.ask(Duration::ZERO, refresh), Answer::Begin);
    }

    #[test]
    fn a_listing_from_before_the_question_is_no_answer() {
        let mut freshness = Freshness::default();
        let refresh = Duration::from_secs(3600);
        assert_eq!(freshness.begin(false), Answer::Begin);
        assert_eq!(freshness.ask(refresh, refresh), Answer::Wait);
        (freshness.running, freshness.ended) = (None, Some(Instant::now()));
        assert_eq!(freshness.ask(refresh, refresh), Answer::Begin);
        assert_eq!(
            freshness.ask(refresh, refresh),
            Answer::Wait,
            "the one before it is no answer"
        );
    }
}
