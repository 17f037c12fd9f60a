//! The marker: a file that says that a disk path belongs to disks of this format.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::folder::{is_lane, names, open_file, random_name};
use super::trouble::Trouble;
use crate::format::DISK_FORMAT_VERSION;
use crate::stats::DiskFailure;
use hybrid_pages::error::{Cause, Error};

const MARKER: &str = "hybrid-pages-disk";
/// The marker's text before the number of the format.
const TEXT: &str = "hybrid-pages disk store, format ";
/// Most bytes that are read of a marker, more than any has.
const MOST_BYTES: u64 = 256;
/// Most bytes, zeros aside, in which a damaged marker may differ from a whole one. A file with more belongs to
/// another program.
const MOST_STRAYS: usize = 4;

/// The meaning of a marker.
#[derive(Debug, PartialEq, Eq)]
enum Says {
    /// This format.
    Ours,
    /// Another format, or another program.
    Others,
    /// A damaged marker of this format. `sure`: whether at least half of it is left.
    Damaged { sure: bool },
}

/// The owner of a disk path that exists.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MarkerOwner {
    /// A disk of this format.
    Ours,
    /// A disk of this format with a damaged marker.
    Damaged,
    /// There is no marker.
    Nobody,
}

/// Finds the owner of a disk path. Changes nothing.
///
/// # Errors
/// [`Error::Foreign`] if the path belongs to another program or format.
pub(crate) fn owner_of(path: &Path, root: &OwnedFd) -> Result<MarkerOwner, Trouble> {
    let Some(found) = read(path, root)? else {
        return Ok(MarkerOwner::Nobody);
    };
    match meaning(&found) {
        Says::Ours => Ok(MarkerOwner::Ours),
        Says::Damaged { sure: true } => Ok(MarkerOwner::Damaged),
        Says::Damaged { sure: false } if stranger(path, root, is_lane)?.is_none() => {
            Ok(MarkerOwner::Damaged)
        }
        _ => Err(foreign(path, Some(&found))),
    }
}

/// Accepts a directory with the marker of this format, or an empty one, which gets a marker. A damaged marker is
/// written anew and reported to `note`.
///
/// # Errors
/// [`Error::Foreign`] if the path belongs to another program or format.
pub(crate) fn claim(
    path: &Path,
    root: &OwnedFd,
    note: &mut dyn FnMut(DiskFailure, &str),
) -> Result<(), Trouble> {
    let here = path.join(MARKER);
    match owner_of(path, root)? {
        MarkerOwner::Ours => Ok(()),
        MarkerOwner::Damaged => {
            let what = format!("{}: expected the marker, found it damaged", here.display());
            match write(root) {
                Ok(()) => note(
                    DiskFailure::Directory,
                    &format!("{what}: it was written anew"),
                ),
                // The next start will try again.
                Err(error) => note(DiskFailure::Directory, &format!("{what}, and {error}")),
            }
            Ok(())
        }
        MarkerOwner::Nobody => {
            if let Some(name) = stranger(path, root, |_| false)? {
                return Err(strange(path, &name));
            }
            write(root).map_err(|error| {
                Trouble::of(DiskFailure::Directory, here.display(), "a new file", error)
            })?;
            // The process of another lane may have written its marker meanwhile.
            match owner_of(path, root)? {
                MarkerOwner::Nobody => Err(foreign(path, None)),
                _ => Ok(()),
            }
        }
    }
}

/// The error for a missing marker, which names what is there instead.
pub(crate) fn missing(path: &Path, root: &OwnedFd) -> Error {
    match stranger(path, root, |_| false) {
        Ok(Some(name)) => strange(path, &name),
        _ => foreign(path, None),
    }
    .into()
}

fn strange(path: &Path, name: &str) -> Trouble {
    Trouble::Refused(Error::Foreign(format!(
        "{}: expected an empty directory or one that hybrid-pages made, found '{name}' in it: name another directory, \
         for the disk tier alone",
        path.display(),
    )))
}

fn expected() -> String {
    format!("{TEXT}{DISK_FORMAT_VERSION}\n")
}

fn meaning(found: &[u8]) -> Says {
    let expected = expected().into_bytes();
    if found == expected {
        return Says::Ours;
    }
    if let Some(rest) = found.strip_prefix(TEXT.as_bytes()) {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
        let number = digits.fold(0_u64, |number, &digit| {
            number
                .saturating_mul(10)
                .saturating_add(u64::from(digit - b'0'))
        });
        let longer = rest.iter().filter(|&&byte| byte != 0).count() > expected.len() - TEXT.len();
        if number > u64::from(DISK_FORMAT_VERSION) || longer {
            return Says::Others;
        }
    }
    let at = |place: usize| expected.get(place).copied();
    let same = |(place, byte): &(usize, &u8)| at(*place) == Some(**byte);
    let kept = found.iter().enumerate().filter(same).count();
    let zeros = found.iter().filter(|&&byte| byte == 0).count();
    if found.len() - kept - zeros > MOST_STRAYS {
        return Says::Others;
    }
    Says::Damaged {
        sure: 2 * kept >= expected.len(),
    }
}

/// The name of something in the directory that is neither a file of disks nor accepted by `other`.
fn stranger(
    path: &Path,
    root: &OwnedFd,
    other: impl Fn(&str) -> bool,
) -> Result<Option<String>, Trouble> {
    let names = names(root.as_fd()).map_err(|error| {
        Trouble::of(
            DiskFailure::Directory,
            path.display(),
            "a list of its files",
            error,
        )
    })?;
    // The process of another lane may be writing its marker now. A new file system has `lost+found`.
    let ours = |name: &str| name.starts_with(MARKER) || name == "lost+found" || other(name);
    let mut names = names.iter().map(|name| name.to_string_lossy());
    Ok(names.find(|name| !ours(name)).map(Into::into))
}

fn read(path: &Path, root: &OwnedFd) -> Result<Option<Vec<u8>>, Trouble> {
    let read = || -> io::Result<Option<Vec<u8>>> {
        match open_file(root.as_fd(), MARKER) {
            Ok(file) => {
                let mut bytes = Vec::new();
                file.take(MOST_BYTES).read_to_end(&mut bytes)?;
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    };
    let here = path.join(MARKER);
    read().map_err(|error| {
        if error.raw_os_error().is_none() {
            let text = format!(
                "{}: expected a file of this user, found something else: remove it",
                here.display()
            );
            return Trouble::Refused(Error::disk(Cause::new(text, error)));
        }
        Trouble::of(
            DiskFailure::Directory,
            here.display(),
            "a file of this user",
            error,
        )
    })
}

fn foreign(path: &Path, found: Option<&[u8]>) -> Trouble {
    let found = found.map_or_else(
        || "none".to_owned(),
        |found| format!("'{}'", found.trim_ascii_end().escape_ascii()),
    );
    Trouble::Refused(Error::Foreign(format!(
        "{}: expected '{}', found {found}: it was left as it is; name another directory, or remove this one \
         if nothing uses it",
        path.join(MARKER).display(),
        expected().trim_end(),
    )))
}

/// Writes the marker whole or not at all.
fn write(root: &OwnedFd) -> io::Result<()> {
    let draft = random_name(&format!("{MARKER}."))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, &draft, flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(file);
    let written = file
        .write_all(expected().as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| Ok(rustix::fs::renameat(root, &draft, root, MARKER)?));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(root, &draft, rustix::fs::AtFlags::empty());
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_from_other_formats_and_other_programs() {
        let ours = expected();
        assert_eq!(meaning(ours.as_bytes()), Says::Ours);
        for others in [
            "hybrid-pages disk store, format 2\n",
            "hybrid-pages disk store, format 9",
            "hybrid-pages disk store, format 10\n",
            "hybrid-pages disk store, format 1.2\n",
            "hybrid-pages disk store, format 1 (b)\n",
            "another-program's disk, format 1\n",
            "x\ny\nz\nw",
        ] {
            assert_eq!(meaning(others.as_bytes()), Says::Others, "{others:?}");
        }
        for length in 0..ours.len() {
            let sure = 2 * length >= ours.len();
            let cut = &ours.as_bytes()[..length];
            assert_eq!(meaning(cut), Says::Damaged { sure }, "{length} bytes");
        }
        assert_eq!(meaning(&[0; 256]), Says::Damaged { sure: false });
        for bit in 0..8 * ours.len() {
            let mut flipped = ours.clone().into_bytes();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // Some flips make another format's number.
            let expected = match flipped[TEXT.len()] {
                b'2'..=b'9' => Says::Others,
                _ => Says::Damaged { sure: true },
            };
            assert_eq!(meaning(&flipped), expected, "bit {bit}");
        }
    }
}
