//! Storage for redb, which keeps the index: a file behind the door, or a copy in memory.

use std::io;
use std::sync::Arc;

use redb::{BackendError, StorageBackend};

use crate::door::DoorFile;
use hybrid_pages::error::Cause;
use hybrid_pages_tiers::{PriorityMutex, lock};

/// A copy of redb's file.
#[derive(Debug)]
pub(crate) struct InMemory(PriorityMutex<Vec<u8>>);

impl InMemory {
    pub(crate) const fn new(bytes: Vec<u8>) -> Self {
        Self(PriorityMutex::new(bytes))
    }
}

impl StorageBackend for InMemory {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.0).len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = lock(&self.0);
        let range = range_of(offset, out.len());
        let found = range.and_then(|range| bytes.get(range));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let length = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut bytes = lock(&self.0);
        let more = length.saturating_sub(bytes.len());
        bytes
            .try_reserve(more)
            .map_err(|_| io::ErrorKind::OutOfMemory)?;
        bytes.resize(length, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = lock(&self.0);
        let range = range_of(offset, data.len());
        let place = range.and_then(|range| bytes.get_mut(range));
        place
            .ok_or(io::ErrorKind::UnexpectedEof)?
            .copy_from_slice(data);
        Ok(())
    }

    fn try_lock_range(
        &self,
        _: std::ops::Bound<u64>,
        _: std::ops::Bound<u64>,
    ) -> Result<bool, BackendError> {
        Err(BackendError::Unsupported)
    }
}

fn range_of(offset: u64, length: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(length)?)
}

/// Keeps the first error of the system in a series of calls, since redb's errors don't tell one from damage.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refused(Arc<PriorityMutex<Option<io::Error>>>);

impl Refused {
    /// Notes the error if a call was refused.
    pub(crate) fn call<T>(&self, outcome: io::Result<T>) -> Result<T, Cause> {
        outcome.map_err(|error| {
            let detail = Cause::of(copy_of(&error));
            lock(&self.0).get_or_insert(error);
            detail
        })
    }

    /// Notes the error if a call with arguments from the file was refused. Invalid arguments mean damage, and are not
    /// noted.
    fn asked<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &outcome
            && !matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::FileTooLarge
            )
        {
            lock(&self.0).get_or_insert_with(|| copy_of(error));
        }
        outcome
    }

    pub(crate) fn take(&self) -> Option<io::Error> {
        lock(&self.0).take()
    }
}

fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// redb's file, through the door. The lane's lock keeps other processes away.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) file: Box<dyn DoorFile>,
    pub(crate) refused: Refused,
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.refused.asked(self.file.length())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.refused.asked(self.file.read_all(out, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.refused.asked(self.file.set_length(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.refused.asked(self.file.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.refused.asked(self.file.write_all(data, offset))
    }

    fn try_lock_range(
        &self,
        _: std::ops::Bound<u64>,
        _: std::ops::Bound<u64>,
    ) -> Result<bool, BackendError> {
        Err(BackendError::Unsupported)
    }
}
