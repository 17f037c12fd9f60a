//! The index of an identity as of one moment, while a process may be writing it.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::tier::disk::door::DoorFile;
use crate::tier::disk::index::{self, Claim, Found, Index};
use crate::tier::disk::journal;

/// Most bytes of an index: some fifty million entries.
const MOST_BYTES: u64 = 16 << 30;
/// A commit that was under way has ended after some of these.
const TRIES: usize = 6;
const PAUSE: Duration = Duration::from_millis(150);

/// What the index and the journal had.
pub(super) struct Copied {
    pub(super) claim: Claim,
    pub(super) found: Found,
}

impl Copied {
    /// Reads it as often as it takes to get a whole one.
    ///
    /// # Errors
    /// Why it is not whole.
    pub(super) fn of(folder: BorrowedFd<'_>) -> Result<Self, String> {
        let mut tries = 1..=TRIES;
        loop {
            let last = tries.next() == Some(TRIES);
            match Self::once(folder) {
                Err(_) if !last => std::thread::sleep(PAUSE),
                outcome => return outcome,
            }
        }
    }

    fn once(folder: BorrowedFd<'_>) -> Result<Self, String> {
        let bytes = read(folder).map_err(|error| format!("{}: {error}", index::FILE))?;
        let journal = || -> io::Result<Box<dyn DoorFile>> {
            Ok(Box::new(super::open(folder, journal::FILE)?))
        };
        let (claim, found) = Index::read_copy(bytes, journal)?;
        Ok(Self { claim, found })
    }
}

fn read(folder: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let file = super::open(folder, index::FILE)?;
    let length = file.metadata()?.len();
    let room = usize::try_from(length.min(MOST_BYTES)).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    if length > MOST_BYTES || bytes.try_reserve_exact(room).is_err() {
        return Err(io::Error::other(format!(
            "expected at most {MOST_BYTES} bytes that fit the memory, found {length}"
        )));
    }
    bytes.resize(room, 0);
    let file: &dyn DoorFile = &file;
    file.read_all(&mut bytes, 0)?;
    Ok(bytes)
}
