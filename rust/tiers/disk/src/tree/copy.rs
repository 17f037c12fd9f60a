//! Copies the index of an identity at one moment, while a process may be writing it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::door::DoorFile;
use crate::index::journal;
use crate::index::{self, Claim, DiskIndex, IndexContents};
use crate::path::folder::open_file;
use hybrid_pages::error::Cause;

/// Most bytes of an index or a journal: some twenty million entries.
const MOST_BYTES: u64 = 4 << 30;
/// Number of attempts. A commit that was under way ends during them.
const TRIES: usize = 8;
const PAUSE: Duration = Duration::from_millis(150);

/// The content of an index and its journal.
pub(super) struct Copied {
    pub(super) claim: Claim,
    pub(super) found: IndexContents,
}

impl Copied {
    /// Copies an index. If a process may be writing it, tries several times to get a whole copy. `None` if there is
    /// no index, or an empty one.
    ///
    /// # Errors
    /// The reason why the copy is not whole.
    pub(super) fn of(folder: BorrowedFd<'_>, is_used: bool) -> Result<Option<Self>, Cause> {
        let mut tries = 1..=if is_used { TRIES } else { 1 };
        let tries_left = |tries: &mut std::ops::RangeInclusive<usize>| {
            tries.next();
            !tries.is_empty()
        };
        loop {
            let more = tries_left(&mut tries);
            match Self::once(folder) {
                Err(_) if more => std::thread::sleep(PAUSE),
                outcome => return outcome,
            }
        }
    }

    fn once(folder: BorrowedFd<'_>) -> Result<Option<Self>, Cause> {
        let read =
            read(folder).map_err(|error| Cause::new(format!("{}: {error}", index::FILE), error))?;
        let Some((index, journal)) = read else {
            return Ok(None);
        };
        let (claim, found) = DiskIndex::read_copy(index, journal)?;
        Ok(Some(Self { claim, found }))
    }
}

/// The bytes of the index and of its journal. The index did not change while both were read.
fn read(folder: BorrowedFd<'_>) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let file = match open_file(folder, index::FILE) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let changed = || -> io::Result<_> {
        let found = file.metadata()?;
        Ok((found.len(), found.mtime(), found.mtime_nsec()))
    };
    let before = changed()?;
    if before.0 == 0 {
        return Ok(None);
    }
    let index = read_file(&file)?;
    let journal = match open_file(folder, journal::FILE) {
        Ok(file) => read_file(&file)?,
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    if changed()? != before {
        return Err(io::Error::other(
            "expected one that stays as it is while it is read, found that a process wrote it",
        ));
    }
    Ok(Some((index, journal)))
}

fn read_file(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let room = usize::try_from(length.min(MOST_BYTES)).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    if length > MOST_BYTES || bytes.try_reserve_exact(room).is_err() {
        return Err(io::Error::other(format!(
            "expected at most {MOST_BYTES} bytes that fit the memory, found {length}"
        )));
    }
    bytes.resize(room, 0);
    let file: &dyn DoorFile = file;
    file.read_all(&mut bytes, 0)?;
    Ok(bytes)
}
