//! The circuit breaker of a disk. A disk that hangs or can't be opened is out, and is tried again after growing
//! pauses.

use std::io;
use std::time::{Duration, Instant};

use crate::door::DoorFile;
use hybrid_pages_tiers::{PriorityMutex, lock, pause_after};

/// Whether a disk answers and takes writes.
#[derive(Debug)]
pub(crate) struct DiskHealth {
    retry: Duration,
    /// Since when the disk is out.
    out: Option<Instant>,
    probing: bool,
    outages: u32,
    back: Option<Instant>,
    /// When a call last returned, or when the first copy came after a rest.
    progress: Instant,
    /// Calls to the slabs that have not returned, and when they began, the oldest in front.
    calls: Vec<(u64, Instant)>,
    begun: u64,
    /// No writes before this time.
    writes_from: Option<Instant>,
    refusals: u32,
    closed: bool,
}

impl DiskHealth {
    pub(crate) fn new(retry: Duration) -> Self {
        Self {
            retry,
            out: None,
            probing: false,
            outages: 0,
            back: None,
            progress: Instant::now(),
            calls: Vec::new(),
            begun: 0,
            writes_from: None,
            refusals: 0,
            closed: false,
        }
    }

    /// Takes the disk out for good. Returns whether it was out for good before.
    pub(crate) const fn close(&mut self) -> bool {
        std::mem::replace(&mut self.closed, true)
    }

    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    fn pause(&self, times: u32) -> Duration {
        pause_after(self.retry, times)
    }

    pub(crate) const fn is_out(&self) -> bool {
        self.closed || self.out.is_some()
    }

    /// Notes progress.
    pub(crate) fn moved(&mut self) {
        self.progress = Instant::now();
    }

    /// The time of the last progress.
    pub(crate) const fn progress(&self) -> Instant {
        self.progress
    }

    /// Notes that a call to a slab begins. Returns its number for [`returned`](Self::returned).
    pub(crate) fn call(&mut self) -> u64 {
        self.begun += 1;
        self.calls.push((self.begun, Instant::now()));
        self.begun
    }

    /// Notes that a call to a slab has returned.
    pub(crate) fn returned(&mut self, call: u64) {
        self.calls.retain(|&(number, _)| number != call);
        self.moved();
    }

    /// When the oldest call began that has not returned. Calls from before an outage don't count.
    pub(crate) fn oldest_call(&self) -> Option<Instant> {
        self.calls.first().map(|&(_, since)| since)
    }

    /// Takes the disk out, since it hangs or can't be opened.
    pub(crate) fn take_out(&mut self) {
        self.calls.clear();
        let longest = self.pause(u32::MAX);
        if self.back.is_some_and(|back| back.elapsed() > longest) {
            self.outages = 0;
        }
        self.out = Some(Instant::now());
        self.outages += 1;
    }

    /// Takes the disk out until the caller has tried it, who reports the result with [`tried`](Self::tried).
    pub(crate) fn begin_trial(&mut self) {
        self.out = Some(Instant::now());
        self.probing = true;
    }

    /// Whether to try the disk now. If so, the caller tries it, and reports the result with [`tried`](Self::tried).
    pub(crate) fn try_again(&mut self) -> bool {
        let pause = self.pause(self.outages.saturating_sub(1));
        let due = self.out.is_some_and(|since| since.elapsed() >= pause);
        let begin = due && !self.probing && !self.closed;
        self.probing |= begin;
        begin
    }

    /// Reports the result of a trial.
    pub(crate) fn tried(&mut self, works: bool) {
        self.probing = false;
        if works {
            self.calls.clear();
            self.out = None;
            self.back = Some(Instant::now());
            self.progress = Instant::now();
        } else {
            self.outages += 1;
            self.out = Some(Instant::now());
        }
    }

    /// Notes that a write was refused. The next write may be tried after a pause.
    pub(crate) fn refused(&mut self) {
        if self.takes_writes() {
            self.writes_from = Some(Instant::now() + self.pause(self.refusals));
            self.refusals += 1;
        }
    }

    /// Notes that a write worked.
    pub(crate) fn wrote(&mut self) {
        self.writes_from = None;
        self.refusals = 0;
    }

    pub(crate) fn takes_writes(&self) -> bool {
        self.writes_from.is_none_or(|from| Instant::now() >= from)
    }
}

/// A file that reports its reads and writes to the disk's health.
#[derive(Debug)]
pub(crate) struct Timed<'a> {
    pub(crate) slab: &'a dyn DoorFile,
    pub(crate) health: &'a PriorityMutex<DiskHealth>,
}

/// A call that is under way until this is dropped.
struct PendingCall<'a>(&'a PriorityMutex<DiskHealth>, u64);

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        lock(self.0).returned(self.1);
    }
}

impl Timed<'_> {
    fn call(&self) -> PendingCall<'_> {
        PendingCall(self.health, lock(self.health).call())
    }
}

impl DoorFile for Timed<'_> {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let _call = self.call();
        self.slab.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let _call = self.call();
        self.slab.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.slab.sync()
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.slab.punch(offset, length)
    }

    fn length(&self) -> io::Result<u64> {
        self.slab.length()
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.slab.set_length(length)
    }
}
