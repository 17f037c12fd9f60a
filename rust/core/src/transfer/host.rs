//! The host engine: copies by threads of its own.

use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};

use crate::error::{Cause, Error, Result};

use super::completion::Ticket;
use super::engine::Engine;
use super::job::{JobMessage, JobShared, TransferJob};
use super::layout::TransferLayout;
use super::plan::{Direction, EntryCopy};
use super::region::SlotMemory;
use super::transfers::Transfers;
use crate::guarded::lock;
use hybrid_pages_tiles::CopyPath;

/// Copies between host memory and an arena. Dropping it waits for the transfers in flight.
pub struct HostEngine {
    shared: Arc<JobShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Orders that no thread has begun.
    messages: Receiver<JobMessage>,
}

impl HostEngine {
    /// Most copy threads.
    pub const MAX_THREADS: usize = 256;

    /// Starts an engine with so many copy threads.
    ///
    /// # Errors
    /// [`Error::Foreign`] if the arena belongs to another geometry, [`Error::InvalidArgument`] on
    /// an impossible number of threads, [`Error::Transfer`] if they cannot be started.
    pub fn new(layout: TransferLayout, memory: SlotMemory, threads: usize) -> Result<Self> {
        Self::start(layout, memory, threads, true)
    }

    /// Starts an engine as [`new`](Self::new) does, whose stores compute no checksums: their completions have none.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn without_checksums(
        layout: TransferLayout,
        memory: SlotMemory,
        threads: usize,
    ) -> Result<Self> {
        Self::start(layout, memory, threads, false)
    }

    /// Instructions that copy small transfers: `avx2` or `portable`.
    #[must_use]
    pub fn instructions(&self) -> &'static str {
        CopyPath::best(0).name()
    }

    fn start(
        layout: TransferLayout,
        memory: SlotMemory,
        threads: usize,
        checksums: bool,
    ) -> Result<Self> {
        let transfers = Transfers::new(layout, memory, "make an engine after forking")?;
        if !(1..=Self::MAX_THREADS).contains(&threads) {
            let most = Self::MAX_THREADS;
            return Err(Error::InvalidArgument(format!(
                "threads: expected 1 to {most}, found {threads}"
            )));
        }
        let (queue, messages) = unbounded();
        let shared = Arc::new(JobShared {
            transfers,
            queue,
            threads,
            checksums,
        });
        let engine = Self {
            shared,
            threads: Mutex::new(Vec::new()),
            messages: messages.clone(),
        };
        for index in 0..threads {
            // On failure the drop of `engine` stops those that were started.
            lock(&engine.threads).push(spawn(index, messages.clone())?);
        }
        Ok(engine)
    }
}

impl Engine for HostEngine {
    fn transfers(&self) -> &Transfers {
        &self.shared.transfers
    }

    fn submit(&self, direction: Direction, entries: Vec<EntryCopy>) -> Result<Ticket> {
        let plan = self.transfers().plan(direction, entries)?;
        TransferJob::start(Arc::clone(&self.shared), plan)
    }

    /// Waits by copying, as long as there is something that no thread has begun: a small transfer ends before
    /// a thread that sleeps would have begun it.
    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while !self.transfers().wait(ticket, Some(Duration::ZERO))?
            && until.is_none_or(|until| Instant::now() < until)
            && let Ok(message) = self.messages.try_recv()
        {
            match message {
                JobMessage::Work(job) => job.run(until),
                JobMessage::Stop => {
                    self.shared.tell(JobMessage::Stop);
                    break;
                }
            }
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.transfers().wait(ticket, left)
    }

    fn close(&self) {
        self.transfers().close(|| {
            let threads = std::mem::take(&mut *lock(&self.threads));
            for _ in &threads {
                self.shared.tell(JobMessage::Stop);
            }
            for thread in threads {
                let left = thread.join();
                debug_assert!(left.is_ok(), "jobs catch their panics");
            }
        });
    }
}

impl Drop for HostEngine {
    fn drop(&mut self) {
        self.close();
        if self.transfers().is_inherited() {
            // A thread may have held the queue's lock at the fork: closing the queue would wait for it.
            std::mem::forget(self.shared.queue.clone());
        }
    }
}

fn spawn(index: usize, messages: Receiver<JobMessage>) -> Result<JoinHandle<()>> {
    let copy = move || {
        while let Ok(JobMessage::Work(job)) = messages.recv() {
            job.run(None);
        }
    };
    Builder::new()
        .name(format!("hybrid-pages-{index}"))
        .spawn(copy)
        .map_err(|error| {
            let text = format!("copy thread {index} cannot start: {error}");
            Error::transfer(Cause::new(text, error))
        })
}
