//! Settings of a disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::door::{Door, SystemDoor};
use hybrid_pages::error::{Error, Result};
use hybrid_pages_tiers::EncryptKeys;

/// Most threads of one disk.
pub(crate) const MAX_THREADS: usize = 64;

/// The longest deadline and first pause. The limit keeps clocks from overflow when a pause doubles.
const MOST_TIME: Duration = Duration::from_secs(24 * 3600);

/// Settings of a disk.
#[derive(Debug, Clone)]
pub struct DiskOptions {
    /// The directory, which only disks of hybrid-pages may use. It is made if its parent exists.
    pub path: PathBuf,
    /// Bytes that the entries of this lane may take, including those of other identities.
    pub quota_bytes: u64,
    /// Number of this process among those that share the path. Each has a lane, with a directory of its own.
    pub lane: u32,
    /// Time limit of one system call, and of a copy's wait while nothing moves. After that the disk is out for some
    /// time. A copy may take as many calls as it needs.
    pub deadline: Duration,
    /// Number of threads that read and write, and so of calls at a time.
    pub threads: usize,
    /// Bytes of slots that may wait to be written. Entries beyond that are declined.
    pub queue_bytes: u64,
    /// The first pause before the disk is tried again after an outage. Pauses double, up to 64 times the first.
    pub retry: Duration,
    /// The keys that entries are encrypted with; `None` leaves them as they are.
    pub keys: Option<EncryptKeys>,
    /// The door through which files are opened.
    pub door: Arc<dyn Door>,
}

impl DiskOptions {
    /// The usual settings for a directory, whatever the process's own is later, and a quota.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, quota_bytes: u64) -> Self {
        let path = path.into();
        Self {
            path: std::path::absolute(&path).unwrap_or(path),
            quota_bytes,
            lane: 0,
            deadline: Duration::from_secs(2),
            threads: 4,
            queue_bytes: 1 << 30,
            retry: Duration::from_secs(1),
            keys: None,
            door: Arc::new(SystemDoor),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::InvalidArgument(text));
        if !(1..=MAX_THREADS).contains(&self.threads) {
            return invalid(format!(
                "disk: expected 1 to {MAX_THREADS} threads, found {}",
                self.threads
            ));
        }
        let sensible = |time: Duration| !time.is_zero() && time <= MOST_TIME;
        if !sensible(self.deadline) || !sensible(self.retry) {
            return invalid(format!(
                "disk: expected a deadline and a pause above 0 and of at most {MOST_TIME:?}, found {:?} and {:?}",
                self.deadline, self.retry
            ));
        }
        Ok(())
    }
}
