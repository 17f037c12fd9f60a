//! The threads that read and write. A *crew* is a set of them; after a hang, a new crew takes over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::Builder;

use crate::job::DiskJob;
use crate::options::MAX_THREADS;
use crate::queue::DiskWork;
use crate::shape::BUFFER_BYTES;
use crate::shared::DiskShared;
use crate::stats::DiskFailure;
use crate::store::buffer;
use hybrid_pages::error::{Cause, Error, Result};
use hybrid_pages_tiers::lock;

/// Starts the threads of a crew.
///
/// # Errors
/// [`Error::Disk`] if no thread can be started.
pub(crate) fn start(shared: &Arc<DiskShared>, crew: u64) -> Result<()> {
    let running = shared.threads.load(Ordering::SeqCst);
    let count = shared
        .options
        .threads
        .min((2 * MAX_THREADS).saturating_sub(running));
    let mut started = Err(Cause::from(
        "expected a thread to return, found that all hang",
    ));
    for index in 0..count {
        let member = Member::of(shared);
        let thread = Builder::new()
            .name(format!("hybrid-pages-disk-{index}"))
            .spawn(move || {
                let shared = Arc::clone(&member.0);
                shared.unless_it_panics(|| member.work(crew));
            });
        match thread {
            Ok(_) => started = Ok(()),
            Err(error) if started.is_err() => started = Err(Cause::of(error)),
            Err(_) => {}
        }
    }
    started.map_err(|error| {
        Error::disk(error.map(|error| format!("disk threads cannot start: {error}")))
    })
}

/// Counts a thread until it ends. The lane is not released before that.
pub(crate) struct Member(Arc<DiskShared>);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Member {
    pub(crate) fn of(shared: &Arc<DiskShared>) -> Self {
        shared.threads.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(shared))
    }

    fn work(self, crew: u64) {
        let shared = &self.0;
        let Some(planes) = shared.planes.get() else {
            return;
        };
        let mut bytes = match buffer(BUFFER_BYTES) {
            Ok(bytes) => bytes,
            Err(error) => {
                return shared.ledger.failed(
                    DiskFailure::Read,
                    &format!("no memory for a buffer: {error}"),
                );
            }
        };
        while let Some(work) = shared.queue.next(crew) {
            match work {
                DiskWork::Place(job) => match shared.place(&job) {
                    Ok(cell) => {
                        job.set_cell(cell);
                        shared.queue.placed(Some(job));
                    }
                    Err((reason, what)) => {
                        shared.queue.placed(None);
                        job.fail(reason, what);
                        job.end_pieces(job.pieces);
                        shared.finish(&job);
                    }
                },
                DiskWork::Row(row) => {
                    let shape = &shared.shapes[row[0].class];
                    DiskJob::run_row(&row, shape, planes, &mut bytes, &shared.health);
                    lock(&shared.health).moved();
                    for job in row {
                        if job.end_pieces(1) {
                            shared.finish(&job);
                        }
                    }
                }
                DiskWork::Piece(job, piece) => {
                    let shape = &shared.shapes[job.class];
                    job.run(piece, shape, planes, &mut bytes, &shared.health);
                    lock(&shared.health).moved();
                    if job.end_pieces(1) {
                        shared.finish(&job);
                    }
                }
            }
        }
    }
}
