//! The file of a lane that says which key its entries are encrypted with, in which format, and what the keys of tenants
//! come from. A process with other keys or another format, or without a key, is refused: it would find nothing, write
//! beside these entries, and remove them when the quota is full. So is a process with a key where entries are in the
//! clear: nobody would expect them there.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, fsync, unlinkat};

use super::folder::{has_identities, open_file};
use super::trouble::Trouble;
use crate::door::Door;
use crate::format::SEALED_DISK_FORMAT_VERSION;
use crate::stats::DiskFailure;
use hybrid_pages::error::Error;
use hybrid_pages_tiers::EncryptKeys;

const FILE: &str = "encrypted";
const DRAFT: &str = "encrypted.new";
/// How often the file says the same: one damaged line costs nothing.
const COPIES: usize = 3;
/// Most bytes that are read of the file.
const MOST_BYTES: u64 = 256;

/// What a line of the file says: `KEY FORMAT TENANTS`.
#[derive(PartialEq)]
struct KeyMark {
    /// The short name of the key for all.
    key: String,
    format: String,
    /// What the keys of tenants come from; `None` in a line of an earlier build.
    tenants: Option<String>,
}

/// What a lane has.
enum MarkFile {
    /// No file.
    Nothing,
    /// A file without bytes, as a loss of power may leave it.
    Blank,
    Lines(Vec<KeyMark>),
}

impl KeyMark {
    fn of(keys: &EncryptKeys) -> Self {
        Self {
            key: keys.id(),
            format: SEALED_DISK_FORMAT_VERSION.to_string(),
            tenants: Some(keys.tenants_from().to_owned()),
        }
    }

    fn read(line: &str) -> Self {
        let mut words = line.split(' ').map(str::to_owned);
        Self {
            key: words.next().unwrap_or_default(),
            // The first format that was encrypted was not named.
            format: words.next().unwrap_or_else(|| "2".to_owned()),
            tenants: words.next(),
        }
    }

    fn line(&self) -> String {
        let tenants = self.tenants.as_deref().unwrap_or_default();
        format!("{} {} {tenants}\n", self.key, self.format)
    }

    /// Whether an earlier build wrote this, for the same key and format.
    fn is_older(&self, own: &Self) -> bool {
        self.key == own.key && self.format == own.format && self.tenants.is_none()
    }

    /// Why these keys are refused.
    fn refusal(&self, keys: Option<&Self>) -> String {
        let Self { key, format, .. } = self;
        match keys {
            Some(own) if own.key == *key && own.format == *format => {
                let said = |mark: &Self| match mark.tenants.as_deref() {
                    Some("alone") => "without lines `tenants`",
                    _ => "with lines `tenants`",
                };
                format!(
                    "expected an encrypt_key {}, which the entries there are encrypted with, found one {}: give the file \
                     that they were written with",
                    said(self),
                    said(own)
                )
            }
            Some(own) if own.key == *key => format!(
                "expected encrypted entries of format {SEALED_DISK_FORMAT_VERSION}, found entries of format {format}, \
                 which another version of hybrid-pages wrote"
            ),
            _ => {
                let given = keys.map_or("none".into(), |own| format!("the key {}", own.key));
                format!(
                    "expected encrypt_key with the key {key}, which the entries there are encrypted with, found {given}: \
                     give that key"
                )
            }
        }
    }
}

/// Refuses a lane whose entries are encrypted with other keys than these, or are in the clear. Writes the file if the
/// process has keys.
pub(crate) fn require_key(
    door: &dyn Door,
    lane: BorrowedFd<'_>,
    place: &dyn Display,
    keys: Option<&EncryptKeys>,
) -> Result<(), Trouble> {
    let failed = |what, error| {
        Trouble::of(
            DiskFailure::Directory,
            format!("{place}/{FILE}"),
            what,
            error,
        )
    };
    let refused = |why: &str| {
        Err(Trouble::Refused(Error::disk(format!(
            "{place}: {why}, name another disk_path, or empty this one"
        ))))
    };
    let found = read(lane).map_err(|error| failed("the short name of a key", error))?;
    let used = has_identities(lane).map_err(|error| failed("a list of its lane", error))?;
    let own = keys.map(KeyMark::of);
    match (&found, &own) {
        (MarkFile::Nothing | MarkFile::Blank, None) => return Ok(()),
        (MarkFile::Lines(_), None) if !used => {
            return unlinkat(lane, FILE, AtFlags::empty())
                .map_err(|error| failed("to remove it", error.into()));
        }
        (MarkFile::Lines(lines), Some(own)) if lines.iter().all(|line| line == own) => {
            return Ok(());
        }
        (MarkFile::Lines(lines), Some(own)) if lines.contains(own) => {}
        // Nobody knows what an earlier build has written with.
        (MarkFile::Lines(lines), Some(own)) if used && lines.iter().any(|it| it.is_older(own)) => {
            return Ok(());
        }
        (MarkFile::Lines(lines), own) if used => {
            return refused(&usual(lines).refusal(own.as_ref()));
        }
        (MarkFile::Nothing, Some(_)) if used => {
            return refused(
                "expected entries that are encrypted, found some in the clear, which encrypt_key would leave so: take \
                 encrypt_key out",
            );
        }
        _ => {}
    }
    let Some(own) = own else { return Ok(()) };
    write(door, lane, &own).map_err(|error| failed("to write it", error))
}

/// The short name of the key that the entries of a lane are encrypted with; `None` if none is.
pub(crate) fn key_in(lane: BorrowedFd<'_>) -> io::Result<Option<String>> {
    Ok(match read(lane)? {
        MarkFile::Lines(lines) => Some(usual(&lines).key.clone()),
        _ => None,
    })
}

/// What most lines say.
fn usual(lines: &[KeyMark]) -> &KeyMark {
    let equal = |line: &&KeyMark| lines.iter().filter(|other| other == line).count();
    lines
        .iter()
        .max_by_key(equal)
        .expect("a file with bytes has a line")
}

fn read(lane: BorrowedFd<'_>) -> io::Result<MarkFile> {
    let file = match open_file(lane, FILE) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(MarkFile::Nothing),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(MarkFile::Blank);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.trim().split('\n');
    let marks = lines.map(|line| KeyMark::read(&line.trim().escape_default().to_string()));
    Ok(MarkFile::Lines(marks.collect()))
}

fn write(door: &dyn Door, lane: BorrowedFd<'_>, mark: &KeyMark) -> io::Result<()> {
    let file = door.open(lane, DRAFT, false)?;
    file.set_length(0)?;
    file.write_all(mark.line().repeat(COPIES).as_bytes(), 0)?;
    file.sync()?;
    door.rename(lane, DRAFT, FILE)?;
    // Entries may outlive a loss of power, and then this file has to.
    Ok(fsync(lane)?)
}
