//! Directories below a disk path: their names, and how they are opened, listed and removed.
//!
//! Everything is opened relative to its directory's descriptor, and no symbolic link is followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use hybrid_pages_tiers::Identity;

const LANE: &str = "lane-";
const CLEARED: &str = "cleared-";
/// Permissions for the owner alone.
pub(crate) const PRIVATE: Mode = Mode::RWXU;

/// A directory in a lane: that of an identity, or a cleared one.
#[derive(Debug, Clone)]
pub(crate) struct Other {
    pub(crate) name: String,
    /// Bytes that the directory takes on disk.
    pub(crate) bytes: u64,
    /// When the directory was last used, in seconds since 1970.
    pub(crate) used: u64,
}

/// The directories in a lane: identities, the one used longest ago first, and cleared ones.
pub(crate) fn directories(
    lane: BorrowedFd<'_>,
    trouble: &mut impl FnMut(&str, io::Error),
) -> io::Result<(Vec<Other>, Vec<Other>)> {
    let (mut identities, mut cleared) = (Vec::new(), Vec::new());
    for name in names(lane)? {
        let Some(name) = name.to_str().map(str::to_owned) else {
            continue;
        };
        let found = if is_cleared(&name) {
            &mut cleared
        } else if is_identity(&name) {
            &mut identities
        } else {
            continue;
        };
        let folder = open_folder(lane, &name).map_err(io::Error::from);
        match folder.and_then(|folder| size_of_files(folder.as_fd())) {
            Ok((bytes, used)) => found.push(Other { name, bytes, used }),
            // Another process has removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => trouble(&name, error),
        }
    }
    identities.sort_by_key(|identity| identity.used);
    Ok((identities, cleared))
}

/// Whether a lane has the directory of some identity.
pub(crate) fn has_identities(lane: BorrowedFd<'_>) -> io::Result<bool> {
    let names = names(lane)?;
    Ok(names
        .iter()
        .any(|name| name.to_str().is_some_and(is_identity)))
}

/// Removes a directory with its files, if it is there. Other processes may do the same meanwhile.
pub(crate) fn remove_folder(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let gone = |outcome: rustix::io::Result<()>| match outcome {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(io::Error::from(error)),
    };
    let folder = match open_folder(parent, name) {
        Ok(folder) => folder,
        Err(error) => return gone(Err(error)),
    };
    for file in names(folder.as_fd())? {
        gone(rustix::fs::unlinkat(&folder, file, AtFlags::empty()))?;
    }
    gone(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR))
}

pub(crate) fn lane_name(number: u32) -> String {
    format!("{LANE}{number}")
}

pub(crate) fn lane_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix(LANE)?.parse().ok()?;
    (name == lane_name(number)).then_some(number)
}

pub(crate) fn is_lane(name: &str) -> bool {
    lane_number(name).is_some()
}

/// Opens an existing file for reading, and never waits.
pub(crate) fn open_file(folder: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::openat(folder, name, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("expected a file, found something else"));
    }
    Ok(file)
}

/// The name of an identity's directory.
pub(crate) fn directory_of(identity: &Identity) -> String {
    hex(identity)
}

/// A new random name for a directory that is cleared.
pub(crate) fn cleared() -> io::Result<String> {
    random_name(CLEARED)
}

/// A new random name that begins with `start`.
pub(crate) fn random_name(start: &str) -> io::Result<String> {
    Ok(format!("{start}{}", hex(&random()?[..16])))
}

pub(crate) fn is_identity(name: &str) -> bool {
    name.len() == 64 && is_hex(name)
}

fn is_cleared(name: &str) -> bool {
    let number = name.strip_prefix(CLEARED);
    number.is_some_and(|number| number.len() == 32 && is_hex(number))
}

fn is_hex(text: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.bytes().all(digit)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Random bytes that nobody can guess.
pub(crate) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn make_folder(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, PRIVATE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let folder = open_folder(parent, name)?;
    make_private(folder.as_fd())?;
    Ok(folder)
}

pub(crate) fn open_folder(parent: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Makes a directory accessible to its owner alone.
pub(crate) fn make_private(folder: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let stat = rustix::fs::fstat(folder)?;
    if stat.st_mode & 0o777 != 0o700 {
        rustix::fs::fchmod(folder, PRIVATE)?;
    }
    // Reports missing permissions now rather than at the first write. Root may write anywhere.
    rustix::fs::accessat(
        folder,
        ".",
        rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
        AtFlags::empty(),
    )?;
    Ok(())
}

/// The names in a directory.
pub(crate) fn names(folder: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            found.push(name);
        }
    }
    Ok(found)
}

/// Bytes that the files in a directory take on disk, and the time of the last change in seconds since 1970.
fn size_of_files(folder: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let (mut bytes, mut used) = (0, 0);
    for name in names(folder)? {
        let stat = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
            used = used.max(u64::try_from(stat.st_mtime).unwrap_or(0));
        }
    }
    Ok((bytes, used))
}
