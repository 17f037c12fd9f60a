//! A circuit breaker. A store that does not answer is left alone, and tried again after growing pauses.

use std::time::{Duration, Instant};

/// Failures in a row that open the breaker.
const MOST_FAILURES: u32 = 3;
/// How often a pause may double.
const DOUBLINGS: u32 = 6;

/// The pause after `earlier` pauses. Each is twice as long as the one before, up to 64 times the first.
#[must_use]
pub fn pause_after(first: Duration, earlier: u32) -> Duration {
    first * 2_u32.pow(earlier.min(DOUBLINGS))
}

/// A circuit breaker. It opens after three failures in a row, and stays open until something works.
#[derive(Debug)]
pub struct CircuitBreaker {
    pause: Duration,
    failures: u32,
    /// How many pauses have begun since something worked.
    opened: u32,
    open_since: Option<Instant>,
    trying: bool,
}

impl CircuitBreaker {
    /// A closed breaker, with the length of the first pause.
    #[must_use]
    pub const fn new(pause: Duration) -> Self {
        Self {
            pause,
            failures: 0,
            opened: 0,
            open_since: None,
            trying: false,
        }
    }

    /// Whether the breaker is open: nothing has worked since it opened.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open_since.is_some()
    }

    /// Whether the breaker is open and the pause is over, so that it is time to try again.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let pause = pause_after(self.pause, self.opened.saturating_sub(1));
        self.open_since.is_some_and(|at| at.elapsed() >= pause)
    }

    /// Whether the breaker is open and the pause is not over, so that nothing shall be tried.
    #[must_use]
    pub fn is_pausing(&self) -> bool {
        self.is_open() && !self.is_due()
    }

    /// Whether the breaker is open and the pause is over. If so, the caller tries the store and reports the result.
    /// Without a report, the next try is due after another pause.
    pub fn may_try(&mut self) -> bool {
        let due = self.is_due();
        if due {
            (self.open_since, self.trying) = (Some(Instant::now()), true);
        }
        due
    }

    /// Reports that something worked, which closes the breaker.
    pub const fn worked(&mut self) {
        self.failures = 0;
        self.opened = 0;
        self.open_since = None;
        self.trying = false;
    }

    /// Reports a failure. Returns whether that opens the breaker.
    pub fn failed(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.is_open() {
            if self.trying {
                self.open();
            }
            return false;
        }
        if self.failures < MOST_FAILURES {
            return false;
        }
        self.open();
        true
    }

    /// Reports a failure of something that was tried without asking [`may_try`](Self::may_try). If a pause
    /// is over, the failure begins the next one. Returns whether a pause begins.
    pub fn failed_untold(&mut self) -> bool {
        if !self.is_open() {
            return self.failed();
        }
        let due = self.may_try();
        if due {
            self.failed();
        }
        due
    }

    /// Opens the breaker at once, or begins the next pause, since nothing can work now.
    pub fn open(&mut self) {
        self.trying = false;
        self.opened = self.opened.saturating_add(1);
        self.open_since = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_when_something_works() {
        let mut breaker = CircuitBreaker::new(Duration::ZERO);
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

    #[test]
    fn during_a_pause_failures_change_nothing_and_nothing_may_be_tried() {
        let mut breaker = CircuitBreaker::new(Duration::from_secs(1000));
        assert!(!breaker.failed_untold() && !breaker.failed_untold() && !breaker.is_open());
        assert!(breaker.failed_untold());
        assert!(breaker.is_pausing() && !breaker.failed_untold() && !breaker.may_try());
        breaker.worked();
        assert!(!breaker.is_pausing());
    }

    #[test]
    fn after_a_pause_one_failure_begins_the_next() {
        let mut breaker = CircuitBreaker::new(Duration::ZERO);
        breaker.open();
        assert!(breaker.is_open() && !breaker.is_pausing());
        assert!(breaker.failed_untold());
        breaker.worked();
        assert!(!breaker.failed_untold());
    }
}
