//! Lanes: parts of a disk path, each of which one process owns.
//!
//! Everything is opened relative to its directory's descriptor, and no symbolic link is followed. So changes of the
//! path can't redirect writes.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::folder::{
    Other, PRIVATE, cleared, directories, lane_name, lane_number, make_folder, make_private, names,
    open_file, open_folder, remove_folder,
};
use super::marker;
use super::trouble::Trouble;
use crate::door::Door;
use crate::stats::DiskFailure;
use hybrid_pages::error::{Error, Result};
use hybrid_pages_tiers::{PriorityMutex, lock};

const LOCK: &str = "lock";
/// Longest time to wait for a lock, which another process may hold only to see whether it is free.
const LOOK: Duration = Duration::from_millis(200);

/// A lane of a disk path. This process owns the lane while this value lives.
#[derive(Debug)]
pub(crate) struct DiskLane {
    folder: OwnedFd,
    lock: PriorityMutex<Option<File>>,
}

fn failed(path: &Path, what: &str, error: impl Into<io::Error>) -> Trouble {
    Trouble::of(DiskFailure::Directory, path.display(), what, error)
}

impl DiskLane {
    /// Opens the disk path and takes one of its lanes. The path is made if its parent exists. A damaged marker is
    /// reported to `note`.
    ///
    /// # Errors
    /// [`Trouble`] if the path is no directory of this user, has something else in it, or is of another format, or if
    /// another process has the lane.
    pub(crate) fn open(
        path: &Path,
        lane: u32,
        note: &mut dyn FnMut(DiskFailure, &str),
    ) -> std::result::Result<Self, Trouble> {
        let path = &plain(path);
        let root = open_root(path)?;
        marker::claim(path, &root, note)?;
        // This comes after the claim, so that a foreign directory stays as it is.
        make_private(root.as_fd())
            .map_err(|error| Trouble::of_path(path.display(), "a directory of this user", error))?;
        let name = lane_name(lane);
        let here = path.join(&name);
        let folder = make_folder(root.as_fd(), &name)
            .map_err(|error| failed(&here, "a directory of this user", error))?;
        let lock = take_lock(&here, folder.as_fd())?;
        Ok(Self {
            folder,
            lock: PriorityMutex::new(Some(lock)),
        })
    }

    /// Takes an existing lane.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub(crate) fn enter(path: &Path, root: BorrowedFd<'_>, name: &str) -> Result<Self> {
        let here = path.join(name);
        let folder = open_folder(root, name)
            .map_err(|error| failed(&here, "a directory of this user", error))?;
        let lock = take_lock(&here, folder.as_fd())?;
        // The directory's owner, who may be another user, must be able to open the lock file later.
        let chown = || -> rustix::io::Result<()> {
            let (owner, mine) = (rustix::fs::fstat(&folder)?, rustix::fs::fstat(&lock)?);
            if owner.st_uid == mine.st_uid {
                return Ok(());
            }
            let (user, group) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
            rustix::fs::fchown(&lock, Some(user), Some(group))
        };
        chown()
            .map_err(|error| failed(&here.join(LOCK), "a file of the directory's owner", error))?;
        Ok(Self {
            folder,
            lock: PriorityMutex::new(Some(lock)),
        })
    }

    /// Opens the directory of an identity, and makes it if it is missing.
    pub(crate) fn identity(&self, name: &str) -> io::Result<OwnedFd> {
        make_folder(self.folder.as_fd(), name)
    }

    /// Makes a directory that the next process will remove. Returns its name, too.
    pub(crate) fn ephemeral(&self) -> io::Result<(String, OwnedFd)> {
        let name = cleared()?;
        let folder = make_folder(self.folder.as_fd(), &name)?;
        Ok((name, folder))
    }

    /// The lane's directory, for files that belong to no identity.
    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Whether the path still leads to this lane. It does not if a directory was removed, moved or replaced. After
    /// other errors it is taken to do so.
    pub(crate) fn is_at(&self, path: &Path, lane: u32) -> bool {
        match rustix::fs::lstat(plain(path).join(lane_name(lane))) {
            Err(Errno::NOENT | Errno::NOTDIR) => false,
            Err(_) => true,
            Ok(there) => rustix::fs::fstat(&self.folder).map_or(true, |here| {
                (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
            }),
        }
    }

    /// Releases the lane for other processes.
    pub(crate) fn release(&self) -> io::Result<()> {
        match lock(&self.lock).take() {
            // Closing the file is not enough, since a forked child may still have it open.
            Some(file) => Ok(rustix::fs::flock(&file, FlockOperation::Unlock)?),
            None => Ok(()),
        }
    }

    /// Renames a directory so that nobody opens it again. Returns the new name, which stays even if the process ends
    /// now. To survive a loss of power it needs a [`sync`](Self::sync).
    pub(crate) fn set_aside(&self, door: &dyn Door, name: &str) -> io::Result<String> {
        let aside = cleared()?;
        match door.rename(self.folder.as_fd(), name, &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(aside),
        }
    }

    /// Removes a directory with its files.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        remove_folder(self.folder.as_fd(), name)
    }

    /// Makes renames survive a loss of power.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.folder)?)
    }

    /// Other identities in this lane, the one used longest ago first, and directories that earlier processes cleared
    /// and did not remove. A directory that can't be read is reported to `trouble` and left alone.
    pub(crate) fn others(
        &self,
        own: &str,
        mut trouble: impl FnMut(&str, io::Error),
    ) -> io::Result<(Vec<Other>, Vec<Other>)> {
        let (mut others, cleared) = directories(self.folder.as_fd(), &mut trouble)?;
        others.retain(|other| other.name != own);
        Ok((others, cleared))
    }
}

/// Lists the lanes of an existing disk path, in order. Makes and changes nothing.
///
/// # Errors
/// The errors of [`DiskLane::open`], except that a lane may be in use.
pub(crate) fn lanes(path: &Path) -> Result<(OwnedFd, Vec<String>)> {
    let path = &plain(path);
    let root = open_there(path)?;
    if marker::owner_of(path, &root)? == marker::MarkerOwner::Nobody {
        return Err(marker::missing(path, &root));
    }
    let names = names(root.as_fd()).map_err(|error| failed(path, "a list of files", error))?;
    let number = |name: OsString| lane_number(name.to_str()?);
    let mut lanes: Vec<u32> = names.into_iter().filter_map(number).collect();
    lanes.sort_unstable();
    Ok((root, lanes.into_iter().map(lane_name).collect()))
}

/// The path of a lane, for messages.
pub(crate) fn lane_path(path: &Path, lane: u32) -> String {
    plain(path).join(lane_name(lane)).display().to_string()
}

/// The number of the process that has a lane, or 0 if the number is unknown; `None` if no process has the lane.
///
/// # Errors
/// The errors of the system.
pub(crate) fn holder(lane: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let file = match open_file(lane, LOCK) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            rustix::fs::flock(&file, FlockOperation::Unlock)?;
            Ok(None)
        }
        Err(Errno::WOULDBLOCK) => {
            let mut text = String::new();
            file.take(32).read_to_string(&mut text)?;
            Ok(Some(text.trim().parse().unwrap_or(0)))
        }
        Err(error) => Err(error.into()),
    }
}

/// The path without a trailing slash or dot, which would make the system follow a symbolic link.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

fn open_root(path: &Path) -> std::result::Result<OwnedFd, Trouble> {
    match rustix::fs::mkdir(path, PRIVATE) {
        Ok(()) | Err(Errno::EXIST) => open_there(path),
        Err(error) => {
            let what = "a directory, or a place for one";
            // A directory that exists already is good enough, even if none could be made now.
            open_there(path).map_err(|_| Trouble::of_path(path.display(), what, error))
        }
    }
}

fn open_there(path: &Path) -> std::result::Result<OwnedFd, Trouble> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::LOOP | Errno::NOTDIR => Trouble::Refused(Error::disk(format!(
            "{}: expected a directory, found a symbolic link or a file: name the directory itself",
            path.display()
        ))),
        error => Trouble::of_path(path.display(), "a directory of this user", error),
    })
}

/// Takes a lock. Tries for some time, since a process that only tests the lock also holds it for a moment.
fn lock_soon(file: &File) -> rustix::io::Result<()> {
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if begun.elapsed() < LOOK => std::thread::sleep(LOOK / 20),
            outcome => return outcome,
        }
    }
}

/// Takes the lock of a lane. The system releases it when the process ends.
fn take_lock(here: &Path, folder: BorrowedFd<'_>) -> std::result::Result<File, Trouble> {
    let path = here.join(LOCK);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, LOCK, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|error| failed(&path, "a file of this user", error))?;
    let mut file = File::from(file);
    let found = file
        .metadata()
        .map_err(|error| failed(&path, "a file of this user", error))?;
    if !found.is_file() {
        return Err(Trouble::Refused(Error::disk(format!(
            "{}: expected a file of this user, found something else: remove it",
            path.display()
        ))));
    }
    match lock_soon(&file) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // The process with the lock may not have written its number yet.
            let _ = (&file).take(32).read_to_string(&mut holder);
            let holder = holder.trim();
            let holder = if holder.is_empty() { "unknown" } else { holder };
            return Err(Trouble::Refused(Error::disk(format!(
                "{}: expected to be its only user, found that process {holder} uses it: give each server a \
                 disk path of its own, or stop the other one",
                here.display()
            ))));
        }
        Err(error) => return Err(failed(&path, "a file that can be locked", error)),
    }
    let write = |file: &mut File| -> io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "{}", std::process::id())
    };
    write(&mut file).map_err(|error| failed(&path, "a file that can be written", error))?;
    Ok(file)
}
