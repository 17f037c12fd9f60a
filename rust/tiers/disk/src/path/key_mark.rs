//! The file of a lane that says which key its entries are encrypted with, and in which format. A process with another
//! key or format, or without a key, is refused: it would find nothing, write beside these entries, and remove them when
//! the quota is full.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, fsync, unlinkat};

use super::folder::{directories, open_file};
use super::trouble::Trouble;
use crate::door::Door;
use crate::format::SEALED_DISK_FORMAT_VERSION;
use crate::stats::DiskFailure;
use hybrid_pages::error::Error;

const FILE: &str = "encrypted";
const DRAFT: &str = "encrypted.new";
/// Most bytes that are read of the file.
const MOST_BYTES: u64 = 64;
/// The format of a file that names none.
const UNNAMED: &str = "2";

/// Refuses a lane whose entries are encrypted with another key than the one with this short name. Writes the file if
/// there is none and the process has a key.
pub(crate) fn require_key(
    door: &dyn Door,
    lane: BorrowedFd<'_>,
    place: &dyn Display,
    key: Option<&str>,
) -> Result<(), Trouble> {
    let failed = |what, error| {
        Trouble::of(
            DiskFailure::Directory,
            format!("{place}/{FILE}"),
            what,
            error,
        )
    };
    let found = read(lane).map_err(|error| failed("the short name of a key", error))?;
    match (found.as_deref(), key) {
        (None, None) => Ok(()),
        (None, Some(key)) => write(door, lane, key).map_err(|error| failed("to write it", error)),
        (Some(found), Some(key)) if found == mark_of(key) => Ok(()),
        (Some(_), key) if is_empty(lane) => match key {
            Some(key) => write(door, lane, key).map_err(|error| failed("to write it", error)),
            None => unlinkat(lane, FILE, AtFlags::empty())
                .map_err(|error| failed("to remove it", error.into())),
        },
        (Some(found), Some(key)) if key_of(found) == key => {
            let format = found.split_once(' ').map_or(UNNAMED, |(_, format)| format);
            Err(Trouble::Refused(Error::disk(format!(
                "{place}: expected encrypted entries of format {SEALED_DISK_FORMAT_VERSION}, found entries of format \
                 {format}, which another version of hybrid-pages wrote: name another disk_path, or empty this one"
            ))))
        }
        (Some(found), key) => {
            let found = key_of(found);
            let given = key.map_or_else(|| "none".to_owned(), |key| format!("the key {key}"));
            Err(Trouble::Refused(Error::disk(format!(
                "{place}: expected encrypt_key with the key {found}, which the entries there are encrypted with, \
                 found {given}: give that key, name another disk_path, or empty this one"
            ))))
        }
    }
}

/// The short name of the key that the entries of a lane are encrypted with; `None` if none is.
pub(crate) fn key_in(lane: BorrowedFd<'_>) -> io::Result<Option<String>> {
    Ok(read(lane)?.map(|found| key_of(&found).to_owned()))
}

fn mark_of(key: &str) -> String {
    format!("{key} {SEALED_DISK_FORMAT_VERSION}")
}

fn key_of(mark: &str) -> &str {
    mark.split_once(' ').map_or(mark, |(key, _)| key)
}

/// Whether a lane surely has entries of no identity.
fn is_empty(lane: BorrowedFd<'_>) -> bool {
    let mut unread = false;
    let found = directories(lane, &mut |_, _| unread = true);
    found.is_ok_and(|(identities, _)| identities.is_empty()) && !unread
}

/// The text of the file. A file without bytes, as a loss of power may leave it, counts as none.
fn read(lane: BorrowedFd<'_>) -> io::Result<Option<String>> {
    let file = match open_file(lane, FILE) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&bytes);
    Ok(Some(text.trim().escape_default().to_string()))
}

fn write(door: &dyn Door, lane: BorrowedFd<'_>, key: &str) -> io::Result<()> {
    let file = door.open(lane, DRAFT, false)?;
    file.set_length(0)?;
    file.write_all(format!("{}\n", mark_of(key)).as_bytes(), 0)?;
    file.sync()?;
    door.rename(lane, DRAFT, FILE)?;
    // Entries may outlive a loss of power, and then this file has to.
    Ok(fsync(lane)?)
}
