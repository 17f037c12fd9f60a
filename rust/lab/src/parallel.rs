//! Runs independent jobs on all cores.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use hybrid_pages::guarded::lock;

use crate::error::Result;

/// Runs jobs 0 to `count - 1`, which start in this order, and returns their results in this order. A job that breaks
/// or fails keeps the jobs after it from starting. A panic of a job is passed on.
///
/// # Errors
/// The error of a job.
pub(crate) fn on_all_cores<T: Send>(
    count: usize,
    job: impl Fn(usize) -> Result<ControlFlow<Option<T>, T>> + Sync,
) -> Result<Vec<Option<T>>> {
    let results = Mutex::new((0..count).map(|_| None).collect::<Vec<Option<T>>>());
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(());
            }
            let result = match job(index) {
                Ok(ControlFlow::Continue(result)) => Some(result),
                stopped => {
                    next.store(count, Ordering::Relaxed);
                    stopped?.break_value().flatten()
                }
            };
            lock(&results)[index] = result;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(count)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|cause| std::panic::resume_unwind(cause))
        })
    })?;
    Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner))
}
