//! A disk path as it lies there, for tools: what is in it, whether it is whole, and what nobody needs.
//!
//! Looking and verifying change nothing, and a process may use the disk meanwhile: what it changed while
//! somebody looked is looked at again.

mod collect;
mod copy;
mod verify;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

pub use collect::{Collected, Limits};
pub use verify::{Bad, Verdict};

use super::folder::{self, Other};
use super::index;
use crate::error::{Error, Result};
use copy::Copied;

/// What an identity was made from.
pub(super) const ABOUT: &str = "about.json";
/// Most bytes of it.
pub(super) const MOST_ABOUT: u64 = 1 << 20;

/// The directory of a disk tier.
#[derive(Debug)]
pub struct DiskTree {
    path: PathBuf,
    root: OwnedFd,
    lanes: Vec<String>,
}

/// What one process uses, or used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneView {
    /// Of its directory.
    pub name: String,
    /// Number of the process that uses it now, 0 where it is unknown.
    pub process: Option<u32>,
    /// The one used longest ago first.
    pub identities: Vec<IdentityView>,
    /// Directories that were cleared and are of no use to anybody, and what they take on disk.
    pub cleared: Vec<(String, u64)>,
    /// What could not be read, and why.
    pub troubles: Vec<String>,
}

/// The entries of one identity in one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityView {
    /// 64 hexadecimal digits.
    pub identity: String,
    /// What its files take on disk.
    pub bytes: u64,
    /// Seconds since 1970 when a file was last changed.
    pub used: u64,
    /// What the identity was made from, as whoever made it wrote it down.
    pub about: Option<String>,
    /// Ranks that share an entry; 0 if the index can't be read.
    pub ranks: usize,
    /// By class: entries, and the bytes of a cell.
    pub classes: Vec<(u64, u64)>,
    /// Records of the index that are damaged.
    pub damaged_records: u64,
    /// Bytes of an index that was set aside.
    pub aside_bytes: u64,
    /// Why the index can't be read.
    pub trouble: Option<String>,
}

impl IdentityView {
    /// Entries that a process would find.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.classes.iter().map(|(entries, _)| entries).sum()
    }
}

impl DiskTree {
    /// A disk path that is there.
    ///
    /// # Errors
    /// [`Error::Disk`] if it is no directory of this user's; [`Error::Foreign`] if something else is in it,
    /// or another format.
    pub fn open(path: &Path) -> Result<Self> {
        let (root, lanes) = folder::lanes(path)?;
        let path = path.to_owned();
        Ok(Self { path, root, lanes })
    }

    /// All lanes.
    ///
    /// # Errors
    /// [`Error::Disk`] for a lane that can't be read.
    pub fn lanes(&self) -> Result<Vec<LaneView>> {
        self.lanes.iter().map(|name| self.lane(name)).collect()
    }

    fn lane(&self, name: &str) -> Result<LaneView> {
        let lane = self.open_lane(name)?;
        let mut troubles = Vec::new();
        let failed = |error| self.failed(name, "a directory that can be read", &error);
        let process = folder::holder(lane.as_fd()).map_err(failed)?;
        let mut note = |name: &str, error: io::Error| troubles.push(format!("{name}: {error}"));
        let (identities, cleared) = folder::directories(lane.as_fd(), &mut note).map_err(failed)?;
        let identities = identities.into_iter();
        Ok(LaneView {
            name: name.to_owned(),
            process,
            identities: identities.map(|it| view(lane.as_fd(), it)).collect(),
            cleared: cleared.into_iter().map(|it| (it.name, it.bytes)).collect(),
            troubles,
        })
    }

    fn open_lane(&self, name: &str) -> Result<OwnedFd> {
        folder::open_folder(self.root.as_fd(), name)
            .map_err(|error| self.failed(name, "a directory of this user", &error.into()))
    }

    fn failed(&self, name: &str, what: &str, error: &io::Error) -> Error {
        let here = self.path.join(name);
        Error::Disk(format!(
            "{}: expected {what}, found {error}",
            here.display()
        ))
    }
}

fn view(lane: BorrowedFd<'_>, directory: Other) -> IdentityView {
    let Other { name, bytes, used } = directory;
    let mut view = IdentityView {
        identity: name.clone(),
        bytes,
        used,
        about: None,
        ranks: 0,
        classes: Vec::new(),
        damaged_records: 0,
        aside_bytes: 0,
        trouble: None,
    };
    let folder = match folder::open_folder(lane, &name) {
        Ok(folder) => folder,
        Err(error) => {
            view.trouble = Some(error.to_string());
            return view;
        }
    };
    view.about = read_about(folder.as_fd());
    view.aside_bytes = open(folder.as_fd(), index::ASIDE)
        .and_then(|file| Ok(file.metadata()?.len()))
        .unwrap_or(0);
    match Copied::of(folder.as_fd()) {
        Ok(Copied { claim, found }) => {
            let mut entries = BTreeMap::new();
            for (_, place) in &found.places {
                *entries.entry(place.class).or_insert(0) += 1;
            }
            let cells = claim.cells.iter().enumerate();
            let of = |class| entries.get(&class).copied().unwrap_or(0);
            view.classes = cells.map(|(class, &bytes)| (of(class), bytes)).collect();
            view.ranks = claim.ranks;
            view.damaged_records = found.damaged.len() as u64;
        }
        Err(why) => view.trouble = Some(why),
    }
    view
}

/// Opens a file that is there, for reading.
fn open(folder: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::openat(folder, name, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("expected a file, found something else"));
    }
    Ok(file)
}

fn read_about(folder: BorrowedFd<'_>) -> Option<String> {
    let mut text = String::new();
    let file = open(folder, ABOUT).ok()?;
    file.take(MOST_ABOUT).read_to_string(&mut text).ok()?;
    Some(text)
}
