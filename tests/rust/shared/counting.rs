//! What this thread allocates and frees: a measure of work that neither a clock nor another thread changes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What some calls have done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes allocated.
    pub bytes: u64,
    /// Allocations and frees.
    pub calls: u64,
    /// Bytes of the largest allocation.
    pub largest: u64,
}

thread_local! {
    static WORK: Cell<Work> = const { Cell::new(Work { bytes: 0, calls: 0, largest: 0 }) };
}

/// An allocator that counts.
struct Counting;

// SAFETY: every call goes to the system's allocator as it comes; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (work, size) = (WORK.get(), layout.size() as u64);
        WORK.set(Work {
            bytes: work.bytes + size,
            calls: work.calls + 1,
            largest: work.largest.max(size),
        });
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let work = WORK.get();
        let calls = work.calls + 1;
        WORK.set(Work { calls, ..work });
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What this thread does in a call.
pub fn work<T>(call: impl FnOnce() -> T) -> (T, Work) {
    WORK.set(Work::default());
    let answer = call();
    (answer, WORK.get())
}
