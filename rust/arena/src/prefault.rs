//! Takes memory from the system before it is used, with several threads. Touched memory pages are pinned at memory
//! speed, and the first store does not wait for the system to clear them.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use hybrid_pages::error::{Cause, Error, Result};
use hybrid_pages::transfer::Region;

/// Makes every memory page that a region touches present and writable, near a NUMA node if one is named and its
/// processors may be used. The bytes do not change, and others may use them meanwhile.
///
/// # Errors
/// [`Error::Arena`] if the system has no memory for it.
pub fn prefault(region: Region, threads: usize, node: Option<u32>) -> Result<()> {
    let page = rustix::param::page_size();
    let start = region.address().addr().get() / page * page;
    let end = (region.address().addr().get() + region.nbytes()).next_multiple_of(page);
    let share = ((end - start) / page).div_ceil(threads.max(1)) * page;
    let base = region.address().as_ptr();
    let parts = (start..end).step_by(share.max(page));
    let outcomes = std::thread::scope(|scope| {
        let populate = |from: usize| {
            let bytes = share.min(end - from);
            let first = PrefaultPart(base.with_addr(from));
            let populate = move || {
                // The node is only a wish, so an error is ignored.
                #[cfg(target_os = "linux")]
                let _ = node.map(crate::numa::go_near);
                #[cfg(not(target_os = "linux"))]
                let _ = node;
                first.populate(bytes, page)
            };
            // The system may refuse a thread: then the call fails.
            std::thread::Builder::new().spawn_scoped(scope, populate)
        };
        let running: Vec<_> = parts.map(populate).collect();
        let joined = running.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join(),
            Err(error) => Ok(Err(error)),
        });
        joined.collect::<Vec<_>>()
    });
    for outcome in outcomes {
        let text = |why: &str| {
            format!(
                "prefault: expected {} bytes of memory, found {why}",
                region.nbytes()
            )
        };
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let text = text(&error.to_string());
                return Err(Error::arena(Cause::new(text, error)));
            }
            Err(_) => return Err(Error::arena(text("a thread that panicked"))),
        }
    }
    Ok(())
}

/// The address at which a thread begins.
struct PrefaultPart(*mut u8);

// SAFETY: an address within a region, which any thread may touch.
unsafe impl Send for PrefaultPart {}

impl PrefaultPart {
    fn populate(self, bytes: usize, page: usize) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::mm::{Advice, madvise};
            // SAFETY: whole pages of a mapping, whose contents the call keeps.
            match unsafe { madvise(self.0.cast(), bytes, Advice::LinuxPopulateWrite) } {
                // Linux before 5.14 does not know the advice.
                Err(rustix::io::Errno::INVAL) => {}
                outcome => return Ok(outcome?),
            }
        }
        for offset in (0..bytes).step_by(page) {
            // SAFETY: a byte of the mapping; an atomic addition of nothing keeps what others write
            // meanwhile.
            let byte = unsafe { AtomicU8::from_ptr(self.0.wrapping_add(offset)) };
            byte.fetch_add(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_taken_and_keeps_its_bytes() {
        let mut memory = memmap2::MmapMut::map_anon(64 * 4096).unwrap();
        memory[5 * 4096 + 1] = 7;
        // SAFETY: the mapping outlives the call, and nobody else uses it.
        let region =
            unsafe { Region::new(memory.as_mut_ptr().wrapping_add(4096), 62 * 4096) }.unwrap();
        for (threads, node) in [(1, None), (3, Some(0)), (200, Some(4095))] {
            prefault(region, threads, node).unwrap();
        }
        assert!(present(&memory) >= 62, "pages that are present");
        assert_eq!(memory[5 * 4096 + 1], 7);
        assert_eq!(memory.iter().filter(|byte| **byte != 0).count(), 1);
    }

    /// Pages of the mapping that are present.
    fn present(memory: &[u8]) -> usize {
        use std::os::unix::fs::FileExt as _;
        let mut flags = vec![0; memory.len() / 4096 * 8];
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let at = memory.as_ptr() as u64 / 4096 * 8;
        pagemap.read_exact_at(&mut flags, at).unwrap();
        flags.chunks(8).filter(|flags| flags[7] & 0x80 != 0).count()
    }
}
