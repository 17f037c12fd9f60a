//! Whether a store answers. After some failures in a row it is left alone, and tried again after pauses that
//! grow.

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
    /// How often it has opened without having closed for long.
    opened: u32,
    open_since: Option<Instant>,
    trying: bool,
}

impl Breaker {
    pub(crate) const fn new(pause: Duration) -> Self {
        Self {
            pause,
            failures: 0,
            opened: 0,
            open_since: None,
            trying: false,
        }
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.open_since.is_some()
    }

    /// Something worked: it closes.
    pub(crate) const fn worked(&mut self) {
        self.failures = 0;
        self.opened = 0;
        self.open_since = None;
        self.trying = false;
    }

    /// Something failed. True if that opens it.
    pub(crate) fn failed(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.is_open() {
            if self.trying {
                self.trying = false;
                self.opened += 1;
                self.open_since = Some(Instant::now());
            }
            return false;
        }
        if self.failures < MOST_FAILURES {
            return false;
        }
        self.opened += 1;
        self.open_since = Some(Instant::now());
        true
    }

    /// Whether it is open, and time to try again.
    pub(crate) fn is_due(&self) -> bool {
        let pause = self.pause * 2_u32.pow(self.opened.saturating_sub(1).min(DOUBLINGS));
        self.open_since.is_some_and(|at| at.elapsed() >= pause)
    }

    /// The same; then the caller tries, and says what became of it.
    pub(crate) fn may_try(&mut self) -> bool {
        let due = self.is_due();
        if due {
            // A try of which nobody hears counts no longer than a pause.
            (self.open_since, self.trying) = (Some(Instant::now()), true);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_when_something_works() {
        let mut breaker = Breaker::new(Duration::ZERO);
        for _ in 0..5 {
            assert!(!breaker.failed());
            assert!(!breaker.failed());
            breaker.worked();
        }
        assert!(!breaker.failed() && !breaker.failed() && breaker.failed());
        assert!(breaker.is_open() && breaker.may_try());
        breaker.failed();
        assert!(breaker.is_open() && breaker.may_try());
        breaker.worked();
        assert!(!breaker.is_open() && !breaker.may_try());
    }
}
