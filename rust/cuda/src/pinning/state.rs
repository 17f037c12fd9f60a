//! The thread that pins slots, and the state that it shares with those who use them.
//!
//! Slots become usable in order: when the piece that holds them is pinned, or will never be.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use hybrid_pages::guarded::lock;
use hybrid_pages::transfer::{Region, SlotMemory};
use hybrid_pages_arena::prefault;

use crate::driver::{Device, Registration, numa_node};
use crate::error::{CudaError, Result};

use super::cuts::Cuts;
use super::options::PinningOptions;

/// Number of threads that touch memory before it is pinned.
const THREADS: usize = 4;
/// The least pause between two registrations, in which other callers of the driver get their turn.
const LEAST_PAUSE: Duration = Duration::from_millis(1);
/// In place of an offset: the strip is not pinned. Offsets are multiples of a page.
const UNPINNED: u64 = u64::MAX;

/// How the last piece went, which decides how hard the next one is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Went {
    /// It was pinned in one call. The next piece is tried again after a pause, then in halves.
    Well,
    /// Only parts of it were pinned. The next piece is halved without a pause.
    InParts,
    /// Nothing of it was pinned. The next piece is tried once.
    Badly,
}

/// The state of a pinning.
pub(super) struct PinningState {
    device: Arc<Device>,
    pub(super) memory: SlotMemory,
    pub(super) cuts: Cuts,
    /// Strips of a piece.
    piece: usize,
    retry_after: Duration,
    /// The NUMA node that the device is nearest to.
    node: Option<u32>,
    /// For each strip the device's address of a byte minus the host's, or [`UNPINNED`]. Fixed before its slots become
    /// usable.
    offsets: Vec<AtomicU64>,
    pub(super) pinned: AtomicUsize,
    pub(super) unpinned: AtomicUsize,
    pub(super) usable: AtomicUsize,
    /// Set under the lock of `progress`.
    pub(super) stop: AtomicBool,
    pub(super) engines: AtomicUsize,
    progress: Mutex<PinningProgress>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct PinningProgress {
    pub(super) registrations: Vec<Registration>,
    /// Why the first strip that is not pinned is not.
    refused: Option<String>,
    /// Why the system has no memory for the slots that are not usable.
    without_memory: Option<String>,
    pub(super) seconds: f64,
    pub(super) started: bool,
    pub(super) ended: bool,
    pub(super) closed: bool,
}

impl PinningState {
    pub(super) fn new(
        memory: SlotMemory,
        device: Arc<Device>,
        options: &PinningOptions,
    ) -> Result<Self> {
        let PinningOptions {
            piece_bytes,
            least_bytes,
            page_bytes,
            retry_after,
        } = *options;
        let region = memory.region();
        let cuts = Cuts::new(
            region.address().as_ptr().expose_provenance() as u64,
            region.nbytes() as u64,
            memory.slot_bytes() as u64,
            page_bytes as u64,
            least_bytes.clamp(page_bytes, piece_bytes) as u64,
        );
        let node = numa_node(device.driver(), device.description().ordinal)?;
        Ok(Self {
            device,
            memory,
            piece: cuts.strips_in(piece_bytes as u64),
            retry_after,
            node: node.and_then(|node| u32::try_from(node).ok()),
            offsets: (0..cuts.count())
                .map(|_| AtomicU64::new(UNPINNED))
                .collect(),
            cuts,
            pinned: AtomicUsize::new(0),
            unpinned: AtomicUsize::new(0),
            usable: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            engines: AtomicUsize::new(0),
            progress: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, PinningProgress> {
        lock(&self.progress)
    }

    /// The offset of the strip that holds an address; `None` if it is not pinned.
    pub(super) fn offset(&self, address: u64) -> Option<u64> {
        self.offset_of(self.cuts.at(address).0)
    }

    /// Whether a usable slot is pinned as a whole.
    pub(super) fn is_pinned(&self, slot: usize) -> bool {
        let mut strips = self.cuts.strips_of(slot, self.memory.slot_bytes() as u64);
        strips.all(|strip| self.offset_of(strip).is_some())
    }

    fn offset_of(&self, strip: usize) -> Option<u64> {
        let offset = self.offsets[strip].load(Ordering::Relaxed);
        (offset != UNPINNED).then_some(offset)
    }

    /// The reasons why slots are not pinned or not usable, and what that costs.
    pub(super) fn error(&self) -> Option<String> {
        let progress = self.progress();
        let slots = self.memory.slots();
        let unpinned = self.unpinned.load(Ordering::Acquire);
        let refused = progress.refused.as_ref().filter(|_| unpinned > 0);
        let refused = refused.map(|why| {
            format!(
                "pinning failed for {unpinned} of {slots} slots of the arena, first with: {why}. Copies of \
                 these slots go through pageable memory, which is slower: give the process more memory to \
                 pin, or the arena less"
            )
        });
        let all = [refused.as_ref(), progress.without_memory.as_ref()];
        let said: Vec<_> = all.into_iter().flatten().map(String::as_str).collect();
        (!said.is_empty()).then(|| said.join(". "))
    }

    /// Pins all slots, piece by piece.
    pub(super) fn run(&self) {
        let begin = Instant::now();
        let mut went = Went::Well;
        let mut next = 0;
        while next < self.cuts.count() && !self.is_stopped() {
            let piece = next..(next + self.piece).min(self.cuts.count());
            if let Err(error) = self.take(&piece) {
                let why = self.without_memory(&piece, &error);
                self.progress().without_memory = Some(why);
                break;
            }
            next = piece.end;
            went = self.pin_piece(piece, went);
            self.publish(next);
            self.progress().seconds = begin.elapsed().as_secs_f64();
        }
        let mut progress = self.progress();
        progress.seconds = begin.elapsed().as_secs_f64();
        progress.ended = true;
        self.changed.notify_all();
    }

    /// Makes the slots of the first strips usable.
    fn publish(&self, strips: usize) {
        let slots = self.cuts.slots(strips, self.memory.slot_bytes() as u64);
        let new = self.usable.load(Ordering::Acquire)..slots;
        let pinned = new.clone().filter(|slot| self.is_pinned(*slot)).count();
        self.pinned.fetch_add(pinned, Ordering::AcqRel);
        self.unpinned
            .fetch_add(new.len() - pinned, Ordering::AcqRel);
        // Who sees the new number of usable slots sees all that was stored before.
        self.usable.store(slots, Ordering::Release);
    }

    /// Pins as much of a piece as the driver accepts.
    fn pin_piece(&self, piece: Range<usize>, last: Went) -> Went {
        let mut outcome = self.pin(&piece);
        if outcome.is_err() && last == Went::Well && !self.pause(self.retry_after) {
            outcome = self.pin(&piece);
        }
        let Err(error) = outcome else {
            return Went::Well;
        };
        let all = piece.len();
        let pinned = match last {
            Went::Badly => 0,
            Went::Well | Went::InParts => self.pin_halves(piece),
        };
        if pinned < all {
            let mut progress = self.progress();
            progress.refused.get_or_insert_with(|| error.to_string());
        }
        match pinned {
            0 => Went::Badly,
            _ => Went::InParts,
        }
    }

    /// Halves a piece that was refused, again and again, and pins the parts that the driver accepts. Returns how many
    /// strips it has pinned.
    fn pin_halves(&self, piece: Range<usize>) -> usize {
        let mut refused = vec![piece];
        let mut pinned = 0;
        while let Some(part) = refused.pop() {
            let middle = part.start + part.len() / 2;
            for half in [part.start..middle, middle..part.end] {
                if half.is_empty() || half == part || self.is_stopped() {
                    continue;
                }
                match self.pin(&half) {
                    Ok(()) => pinned += half.len(),
                    Err(_) => refused.push(half),
                }
            }
        }
        pinned
    }

    /// Pins strips in one call, and pauses for a part of the time that it took.
    fn pin(&self, strips: &Range<usize>) -> Result<()> {
        let begin = Instant::now();
        let part = self.part(strips)?;
        // SAFETY: a part of the slots' region, which `memory` keeps mapped.
        let outcome = unsafe { Registration::new(&self.device, part.address(), part.nbytes()) };
        let outcome = outcome.map(|registration| {
            let offset = registration.mapped().wrapping_sub(self.cuts.span(strips).0);
            for strip in &self.offsets[strips.clone()] {
                strip.store(offset, Ordering::Relaxed);
            }
            self.progress().registrations.push(registration);
        });
        self.pause((begin.elapsed() / 4).max(LEAST_PAUSE));
        outcome
    }

    fn part(&self, strips: &Range<usize>) -> Result<Region> {
        let (address, bytes) = self.cuts.span(strips);
        let region = self.memory.region();
        let offset = address as usize - region.address().addr().get();
        let first = region.address().as_ptr().wrapping_add(offset);
        // SAFETY: a part of the slots' region, which `memory` keeps mapped.
        Ok(unsafe { Region::new(first, bytes as usize)? })
    }

    /// Makes the system provide the memory of a piece.
    fn take(&self, piece: &Range<usize>) -> Result<()> {
        let threads = available_parallelism().map_or(1, usize::from).min(THREADS);
        Ok(prefault(self.part(piece)?, threads, self.node)?)
    }

    /// The text for a piece that the system has no memory for; its slots must not be used.
    fn without_memory(&self, piece: &Range<usize>, error: &CudaError) -> String {
        format!(
            "the system has no memory for {} bytes of the arena's slots: {error}. {} of {} slots are \
             used: give the process more memory, or the arena less",
            self.cuts.span(piece).1,
            self.usable.load(Ordering::Acquire),
            self.memory.slots()
        )
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Waits for a while. Returns whether the pinning was stopped, which ends the wait.
    fn pause(&self, time: Duration) -> bool {
        let begin = Instant::now();
        let mut progress = self.progress();
        while !self.is_stopped() {
            let left = time.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return false;
            }
            let woken = self.changed.wait_timeout(progress, left);
            progress = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
