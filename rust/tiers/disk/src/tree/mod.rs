//! A disk path as it lies there, for tools: what is in it, whether it is whole, and what nobody needs.
//!
//! Looking and verifying change nothing, and a process may use the disk meanwhile: what it changed while
//! somebody looked is looked at again.

mod collect;
mod copy;
mod verify;

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

pub use collect::{Collected, Limits};
pub use verify::{Bad, Verdict};

use crate::format::{ABOUT, MOST_ABOUT};
use crate::index;
use crate::path::folder::{self, Other, open_file};
use crate::path::lane;
use copy::Copied;
use hybrid_pages::error::{Cause, Error, Result};

/// The directory of a disk tier, as tools see it.
#[derive(Debug)]
pub struct DiskTree {
    path: PathBuf,
    root: OwnedFd,
    lanes: Vec<String>,
}

/// The lane of one process, past or present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneView {
    /// Name of the lane's directory.
    pub name: String,
    /// Number of the process that uses it now, 0 where it is unknown.
    pub process: Option<u32>,
    /// The identities in the lane, the one used longest ago first.
    pub identities: Vec<IdentityView>,
    /// Directories that were cleared and that nobody uses, with their bytes on disk.
    pub cleared: Vec<(String, u64)>,
    /// What could not be read, and why: a line each.
    pub troubles: Vec<String>,
}

/// The entries of one identity in one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityView {
    /// The identity in 64 hexadecimal digits.
    pub identity: String,
    /// Bytes that the files of the identity take on disk.
    pub bytes: u64,
    /// Seconds since 1970 when a file was last changed.
    pub used: u64,
    /// Description of what the identity was made from, as its engine wrote it.
    pub about: Option<String>,
    /// Ranks that share an entry; 0 if the index can't be read.
    pub ranks: usize,
    /// Entries and bytes of a cell, by class.
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
    /// Opens a disk path that exists.
    ///
    /// # Errors
    /// [`Error::Disk`] if it is no directory of this user's; [`Error::Foreign`] if something else is in it,
    /// or another format.
    pub fn open(path: &Path) -> Result<Self> {
        let (root, lanes) = lane::lanes(path)?;
        let path = path.to_owned();
        Ok(Self { path, root, lanes })
    }

    /// All lanes. What can't be read is a trouble of its lane; what goes meanwhile is left out. `go_on` is
    /// asked before each identity, and ends this if it says no.
    ///
    /// # Errors
    /// [`Error::Disk`] if `go_on` said no.
    pub fn lanes(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Vec<LaneView>> {
        let mut views = Vec::new();
        for name in &self.lanes {
            let mut view = LaneView {
                name: name.clone(),
                process: None,
                identities: Vec::new(),
                cleared: Vec::new(),
                troubles: Vec::new(),
            };
            match self.look_at(name, &mut view, go_on) {
                Ok(true) => {}
                Ok(false) => return Err(interrupted()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => view.troubles.push(error.to_string()),
            }
            views.push(view);
        }
        Ok(views)
    }

    fn look_at(
        &self,
        name: &str,
        found: &mut LaneView,
        go_on: &mut dyn FnMut() -> bool,
    ) -> io::Result<bool> {
        let lane = folder::open_folder(self.root.as_fd(), name)?;
        found.process = lane::holder(lane.as_fd())?;
        let mut note =
            |name: &str, error: io::Error| found.troubles.push(format!("{name}: {error}"));
        let (identities, cleared) = folder::directories(lane.as_fd(), &mut note)?;
        found.cleared = cleared.into_iter().map(|it| (it.name, it.bytes)).collect();
        for identity in identities {
            if !go_on() {
                return Ok(false);
            }
            let inside = match folder::open_folder(lane.as_fd(), &identity.name) {
                Ok(inside) => inside,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            let view = view(inside.as_fd(), identity, found.process.is_some());
            // What went while it was read is no trouble.
            if folder::open_folder(lane.as_fd(), &view.identity).is_ok() {
                found.identities.push(view);
            }
        }
        Ok(true)
    }

    fn failed(
        &self,
        name: &str,
        what: &str,
        error: impl StdError + Send + Sync + 'static,
    ) -> Error {
        let here = self.path.join(name);
        let text = format!("{}: expected {what}, found {error}", here.display());
        Error::disk(Cause::new(text, error))
    }
}

fn interrupted() -> Error {
    Error::disk("expected to end, found an interruption")
}

fn view(folder: BorrowedFd<'_>, directory: Other, is_used: bool) -> IdentityView {
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
    view.about = read_about(folder);
    view.aside_bytes = open_file(folder, index::ASIDE)
        .and_then(|file| Ok(file.metadata()?.blocks() * 512))
        .unwrap_or(0);
    match Copied::of(folder, is_used) {
        Ok(None) if has_slabs(folder) => view.trouble = Some("there is none".into()),
        Ok(None) => {}
        Ok(Some(Copied { claim, .. })) if folder::directory_of(&claim.identity) != name => {
            view.trouble = Some("it is that of another identity".into());
        }
        Ok(Some(Copied { claim, found })) => {
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
        Err(why) => view.trouble = Some(why.to_string()),
    }
    view
}

/// Whether a process wrote entries here.
fn has_slabs(folder: BorrowedFd<'_>) -> bool {
    open_file(folder, "class-0.slab")
        .and_then(|file| file.metadata())
        .is_ok_and(|found| found.len() > 0)
}

fn read_about(folder: BorrowedFd<'_>) -> Option<String> {
    let mut text = String::new();
    let file = open_file(folder, ABOUT).ok()?;
    file.take(MOST_ABOUT).read_to_string(&mut text).ok()?;
    Some(text)
}
