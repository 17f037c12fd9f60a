//! Whether a disk answers. One that hangs is out, and tried again after pauses that grow.

use std::time::{Duration, Instant};

/// A pause doubles so often.
const DOUBLINGS: u32 = 6;

/// What is known of a disk's answers.
#[derive(Debug)]
pub(super) struct Health {
    retry: Duration,
    /// Since when it is out.
    out: Option<Instant>,
    probing: bool,
    outages: u32,
    back: Option<Instant>,
    /// When the last piece was over, or the first copy came.
    progress: Instant,
    /// No writes until then.
    writes_from: Option<Instant>,
    refusals: u32,
    closed: bool,
}

impl Health {
    pub(super) fn new(retry: Duration) -> Self {
        Self {
            retry,
            out: None,
            probing: false,
            outages: 0,
            back: None,
            progress: Instant::now(),
            writes_from: None,
            refusals: 0,
            closed: false,
        }
    }

    /// Out for good. Says whether it was so before.
    pub(super) const fn close(&mut self) -> bool {
        std::mem::replace(&mut self.closed, true)
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    fn pause(&self, times: u32) -> Duration {
        self.retry * 2_u32.pow(times.min(DOUBLINGS))
    }

    pub(super) const fn is_out(&self) -> bool {
        self.closed || self.out.is_some()
    }

    /// Something moved.
    pub(super) fn moved(&mut self) {
        self.progress = Instant::now();
    }

    /// When something last moved.
    pub(super) const fn progress(&self) -> Instant {
        self.progress
    }

    /// It hangs.
    pub(super) fn take_out(&mut self) {
        let longest = self.pause(DOUBLINGS);
        if self.back.is_some_and(|back| back.elapsed() > longest) {
            self.outages = 0;
        }
        self.out = Some(Instant::now());
        self.outages += 1;
    }

    /// Whether to try it now; then the caller does, and says what became of it.
    pub(super) fn try_again(&mut self) -> bool {
        let pause = self.pause(self.outages.saturating_sub(1));
        let due = self.out.is_some_and(|since| since.elapsed() >= pause);
        let begin = due && !self.probing && !self.closed;
        self.probing |= begin;
        begin
    }

    /// The trial ended.
    pub(super) fn tried(&mut self, works: bool) {
        self.probing = false;
        if works {
            self.out = None;
            self.back = Some(Instant::now());
            self.progress = Instant::now();
        } else {
            self.outages += 1;
            self.out = Some(Instant::now());
        }
    }

    /// A write was refused: the next may be tried after a pause.
    pub(super) fn refused(&mut self) {
        if self.takes_writes() {
            self.writes_from = Some(Instant::now() + self.pause(self.refusals));
            self.refusals += 1;
        }
    }

    /// A write arrived.
    pub(super) fn wrote(&mut self) {
        self.writes_from = None;
        self.refusals = 0;
    }

    pub(super) fn takes_writes(&self) -> bool {
        self.writes_from.is_none_or(|from| Instant::now() >= from)
    }
}
