//! Reasons why a disk can't be opened, and whether trying again may help.

use std::fmt::Display;
use std::io;

use rustix::io::Errno;

use crate::stats::DiskFailure;
use hybrid_pages::error::{Cause, Error};

/// The reason why a disk can't be opened.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The path is foreign, in use, or no directory: the start fails.
    Refused(Error),
    /// The system refused a call. The disk's files stay as they are, and the disk is tried again.
    Passing(DiskFailure, Cause),
}

impl Trouble {
    /// The trouble for a failed call on something below the disk path.
    pub(crate) fn of(
        reason: DiskFailure,
        place: impl Display,
        what: &str,
        error: impl Into<io::Error>,
    ) -> Self {
        let error = error.into();
        let number = Errno::from_io_error(&error);
        let text = format!("{place}: expected {what}, found {error}");
        let detail = Cause::new(text, error);
        match number {
            // There is a symbolic link, or another kind of file.
            Some(Errno::LOOP | Errno::NOTDIR | Errno::ISDIR) => Self::Refused(Error::disk(detail)),
            _ => Self::Passing(reason, detail),
        }
    }

    /// The trouble for a failed call on the disk path itself. Errors that wrong settings can cause are refused, too.
    pub(crate) fn of_path(place: impl Display, what: &str, error: Errno) -> Self {
        match error {
            Errno::NOENT
            | Errno::ACCESS
            | Errno::PERM
            | Errno::ROFS
            | Errno::NAMETOOLONG
            | Errno::INVAL => {
                let error = io::Error::from(error);
                let text = format!("{place}: expected {what}, found {error}");
                Self::Refused(Error::disk(Cause::new(text, error)))
            }
            error => Self::of(DiskFailure::Directory, place, what, error),
        }
    }
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Refused(error) => error,
            Trouble::Passing(_, detail) => Self::Disk(detail),
        }
    }
}
