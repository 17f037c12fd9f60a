//! Removes files that no process needs. Lanes in use are left alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::DiskTree;
use crate::index;
use crate::path::folder;
use crate::path::lane::{self, DiskLane};

/// Limits for the removal of more than cleared directories and indexes that were set aside.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Removes identities that no process has changed for this long.
    pub unused: Option<Duration>,
    /// Removes lanes with this number or a higher one.
    pub lanes: Option<u32>,
    /// Removes nothing, but reports what would be removed.
    pub dry: bool,
}

/// The result of a removal, or of a dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    /// Paths below the disk path that were removed, and the bytes that they took on disk.
    pub removed: Vec<(String, u64)>,
    /// Lanes in use, which were left alone, and the numbers of their processes.
    pub busy: Vec<(String, u32)>,
    /// One line for each path that could not be removed, with the reason.
    pub failed: Vec<String>,
}

impl DiskTree {
    /// Removes cleared directories, indexes that were set aside, and what the limits name. Paths that can't be
    /// removed are reported, and the others go.
    #[must_use]
    pub fn collect(&self, limits: &Limits) -> Collected {
        let mut done = Collected::default();
        for name in &self.lanes {
            if let Err(error) = self.collect_lane(name, limits, &mut done)
                && error.kind() != io::ErrorKind::NotFound
            {
                done.failed.push(format!("{name}: {error}"));
            }
        }
        done
    }

    fn collect_lane(&self, name: &str, limits: &Limits, done: &mut Collected) -> io::Result<()> {
        let folder = folder::open_folder(self.root.as_fd(), name)?;
        if let Some(process) = lane::holder(folder.as_fd())? {
            done.busy.push((name.to_owned(), process));
            return Ok(());
        }
        // Directories are renamed under the lock of the lane and removed after it, so that a process that starts now
        // waits only for the renames.
        let mut lock = None;
        if !limits.dry {
            match DiskLane::enter(&self.path, self.root.as_fd(), name) {
                Ok(entered) => lock = Some(entered),
                Err(error) => {
                    match lane::holder(folder.as_fd())? {
                        Some(process) => done.busy.push((name.to_owned(), process)),
                        None => done.failed.push(error.to_string()),
                    }
                    return Ok(());
                }
            }
        }
        let mut lane = Swept {
            name,
            folder: folder.as_fd(),
            limits,
            done,
            going: Vec::new(),
        };
        lane.sweep()?;
        let going = std::mem::take(&mut lane.going);
        if let Some(lock) = lock {
            lock.release()?;
        }
        for (what, directory, bytes) in going {
            let outcome = if limits.dry {
                Ok(())
            } else {
                folder::remove_folder(folder.as_fd(), &directory)
            };
            done.note(what, bytes, outcome);
        }
        Ok(())
    }
}

impl Collected {
    fn note(&mut self, what: String, bytes: u64, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.removed.push((what, bytes)),
            Err(error) => self.failed.push(format!("{what}: {error}")),
        }
    }
}

/// A lane that no process uses.
struct Swept<'a> {
    name: &'a str,
    folder: BorrowedFd<'a>,
    limits: &'a Limits,
    done: &'a mut Collected,
    /// Directories to be removed: the name to show, the current name, and the bytes.
    going: Vec<(String, String, u64)>,
}

impl Swept<'_> {
    fn sweep(&mut self) -> io::Result<()> {
        let mut troubles = Vec::new();
        let mut note = |what: &str, error| troubles.push(format!("{}/{what}: {error}", self.name));
        let (identities, cleared) = folder::directories(self.folder, &mut note)?;
        self.done.failed.append(&mut troubles);
        for it in cleared {
            let what = format!("{}/{}", self.name, it.name);
            self.going.push((what, it.name, it.bytes));
        }
        for it in identities {
            let what = format!("{}/{}", self.name, it.name);
            if !self.is_gone() && !self.is_old(it.used) {
                self.remove_aside(&it.name, &what)?;
                continue;
            }
            match self.move_away(&it.name) {
                Ok(aside) => self.going.push((what, aside, it.bytes)),
                Err(error) => self.done.note(what, 0, Err(error)),
            }
        }
        Ok(())
    }

    /// Whether no engine core has the lane any more.
    fn is_gone(&self) -> bool {
        let number = self.name.rsplit('-').next();
        let number = number.and_then(|number| number.parse().ok());
        self.limits.lanes.is_some_and(|lanes| number >= Some(lanes))
    }

    fn is_old(&self, used: u64) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let age = now.map_or(0, |now| now.as_secs()).saturating_sub(used);
        let unused = self.limits.unused;
        unused.is_some_and(|unused| age >= unused.as_secs())
    }

    fn move_away(&self, name: &str) -> io::Result<String> {
        if self.limits.dry {
            return Ok(name.to_owned());
        }
        let aside = folder::cleared()?;
        rustix::fs::renameat(self.folder, name, self.folder, &aside)?;
        Ok(aside)
    }

    fn remove_aside(&mut self, name: &str, what: &str) -> io::Result<()> {
        let inside = folder::open_folder(self.folder, name)?;
        let stat = match rustix::fs::statat(&inside, index::ASIDE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let outcome = if self.limits.dry {
            Ok(())
        } else {
            rustix::fs::unlinkat(&inside, index::ASIDE, AtFlags::empty()).map_err(Into::into)
        };
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        let what = format!("{what}/{}", index::ASIDE);
        self.done.note(what, bytes, outcome);
        Ok(())
    }
}
