//! Removes what no process needs: never from a lane that one uses.

use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::DiskTree;
use crate::error::Result;
use crate::tier::disk::folder::{self, Lane};
use crate::tier::disk::index;

/// What goes beyond what was cleared or set aside.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Identities that no process has changed for so long.
    pub unused: Option<Duration>,
    /// Lanes from this number on.
    pub lanes: Option<u32>,
    /// Nothing is removed: only named.
    pub dry: bool,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    /// Paths below the disk path, and what they took on disk.
    pub removed: Vec<(String, u64)>,
    /// Lanes that a process uses, and its number; they were left alone.
    pub busy: Vec<(String, u32)>,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
}

impl DiskTree {
    /// Removes what was cleared, indexes that were set aside, and what the limits name.
    ///
    /// # Errors
    /// [`Error::Disk`](crate::error::Error::Disk) for a lane that can't be read.
    pub fn collect(&self, limits: &Limits) -> Result<Collected> {
        let mut done = Collected::default();
        for name in &self.lanes {
            self.collect_lane(name, limits, &mut done)?;
        }
        Ok(done)
    }

    fn collect_lane(&self, name: &str, limits: &Limits, done: &mut Collected) -> Result<()> {
        let folder = self.open_lane(name)?;
        let holder = || folder::holder(folder.as_fd());
        let failed = |error| self.failed(name, "a lock that can be read", &error);
        if let Some(process) = holder().map_err(failed)? {
            done.busy.push((name.to_owned(), process));
            return Ok(());
        }
        // Nobody starts on it meanwhile.
        let mut lane = None;
        if !limits.dry {
            match Lane::enter(&self.path, self.root.as_fd(), name) {
                Ok(entered) => lane = Some(entered),
                Err(error) => {
                    match holder().map_err(failed)? {
                        Some(process) => done.busy.push((name.to_owned(), process)),
                        None => done.failed.push(error.to_string()),
                    }
                    return Ok(());
                }
            }
        }
        let mut troubles = Vec::new();
        let mut note = |what: &str, error| troubles.push(format!("{name}/{what}: {error}"));
        let found = folder::directories(folder.as_fd(), &mut note);
        let (identities, cleared) =
            found.map_err(|error| self.failed(name, "a list of directories", &error))?;
        done.failed.append(&mut troubles);
        let number = name
            .rsplit('-')
            .next()
            .and_then(|number| number.parse().ok());
        let is_gone = limits.lanes.is_some_and(|lanes| number >= Some(lanes));
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        let is_old = |used: u64| {
            limits
                .unused
                .is_some_and(|unused| now.saturating_sub(used) >= unused.as_secs())
        };
        let mut remove = |what: String, bytes: u64, outcome: std::io::Result<()>| match outcome {
            Ok(()) => done.removed.push((what, bytes)),
            Err(error) => done.failed.push(format!("{what}: {error}")),
        };
        let take = |directory: &str| {
            if limits.dry {
                return Ok(());
            }
            folder::remove_folder(folder.as_fd(), directory)
        };
        for directory in cleared {
            let outcome = take(&directory.name);
            remove(
                format!("{name}/{}", directory.name),
                directory.bytes,
                outcome,
            );
        }
        for directory in identities {
            let what = format!("{name}/{}", directory.name);
            if is_gone || is_old(directory.used) {
                remove(what, directory.bytes, take(&directory.name));
                continue;
            }
            let Ok(inside) = folder::open_folder(folder.as_fd(), &directory.name) else {
                continue; // it is in `failed` already
            };
            let aside = rustix::fs::statat(&inside, index::ASIDE, AtFlags::SYMLINK_NOFOLLOW);
            match aside {
                Ok(stat) => {
                    let bytes = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
                    let outcome = if limits.dry {
                        Ok(())
                    } else {
                        rustix::fs::unlinkat(&inside, index::ASIDE, AtFlags::empty())
                    };
                    let what = format!("{what}/{}", index::ASIDE);
                    remove(what, bytes, outcome.map_err(Into::into));
                }
                Err(Errno::NOENT) => {}
                Err(error) => remove(format!("{what}/{}", index::ASIDE), 0, Err(error.into())),
            }
        }
        if let Some(lane) = lane {
            lane.release()
                .map_err(|error| self.failed(name, "to give its lock back", &error))?;
        }
        Ok(())
    }
}
