//! Whether the store answers. After some failures in a row it is left alone, for pauses that grow.

use std::time::{Duration, Instant};

/// Failures in a row that open the breaker.
const MOST_FAILURES: u32 = 3;
/// A pause doubles so often.
const DOUBLINGS: u32 = 6;

/// A circuit breaker.
#[derive(Debug)]
pub(crate) struct Breaker {
    pause: Duration,
    failures: u32,
    opened: u32,
    until: Option<Instant>,
}

impl Breaker {
    pub(crate) const fn new(pause: Duration) -> Self {
        Self {
            pause,
            failures: 0,
            opened: 0,
            until: None,
        }
    }

    /// Whether the store is to be left alone. After a pause it is tried: the next failure opens again.
    pub(crate) fn is_open(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    pub(crate) const fn worked(&mut self) {
        self.failures = 0;
        self.opened = 0;
        self.until = None;
    }

    /// Something failed. True if that opens it.
    pub(crate) fn failed(&mut self) -> bool {
        if self.is_open() {
            return false;
        }
        self.failures += 1;
        let opens = self.until.is_some() || self.failures >= MOST_FAILURES;
        if opens {
            self.open();
        }
        opens
    }

    /// Opens it at once: nothing can work for now.
    pub(crate) fn open(&mut self) {
        self.until = Some(Instant::now() + self.pause * 2_u32.pow(self.opened.min(DOUBLINGS)));
        self.opened = self.opened.saturating_add(1);
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_when_something_works() {
        let mut breaker = Breaker::new(Duration::from_secs(1000));
        for _ in 0..5 {
            assert!(!breaker.failed() && !breaker.failed() && !breaker.is_open());
            breaker.worked();
        }
        assert!(!breaker.failed() && !breaker.failed() && breaker.failed());
        assert!(breaker.is_open() && !breaker.failed());
        breaker.worked();
        assert!(!breaker.is_open());
    }

    #[test]
    fn after_a_pause_one_failure_opens_it_again() {
        let mut breaker = Breaker::new(Duration::ZERO);
        breaker.open();
        assert!(!breaker.is_open());
        assert!(breaker.failed());
        breaker.worked();
        assert!(!breaker.failed());
    }
}
