//! The content of a disk path, for tools that list it, verify it and remove what no process needs.
//!
//! Listing and verifying change nothing. A process may use the disk meanwhile: things that it changes are read again.

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

/// The directory of a disk tier, opened for tools.
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
    /// Number of the process that uses the lane now; 0 if the number is unknown.
    pub process: Option<u32>,
    /// The identities in the lane, the one used longest ago first.
    pub identities: Vec<IdentityView>,
    /// Cleared directories that no process uses, with their bytes on disk.
    pub cleared: Vec<(String, u64)>,
    /// One line for each thing that could not be read, with the reason.
    pub troubles: Vec<String>,
}

/// The entries of one identity in one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityView {
    /// The identity in 64 hexadecimal digits.
    pub identity: String,
    /// Bytes that the files of the identity take on disk.
    pub bytes: u64,
    /// When a file was last changed, in seconds since 1970.
    pub used: u64,
    /// The description of what the identity was made from, written by its engine.
    pub about: Option<String>,
    /// Number of ranks; 0 if the index can't be read.
    pub ranks: usize,
    /// For each class, the number of entries and the bytes of a cell.
    pub classes: Vec<(u64, u64)>,
    /// Number of damaged records in the index.
    pub damaged_records: u64,
    /// Bytes of an index that was set aside.
    pub aside_bytes: u64,
    /// The reason why the index can't be read, if it can't.
    pub trouble: Option<String>,
}

impl IdentityView {
    /// Number of entries that a process would find.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.classes.iter().map(|(entries, _)| entries).sum()
    }
}

impl DiskTree {
    /// Opens an existing disk path.
    ///
    /// # Errors
    /// [`Error::Disk`] if the path is no directory of this user; [`Error::Foreign`] if something else is in it, or it
    /// has another format.
    pub fn open(path: &Path) -> Result<Self> {
        let (root, lanes) = lane::lanes(path)?;
        let path = path.to_owned();
        Ok(Self { path, root, lanes })
    }

    /// Lists all lanes. Things that can't be read are among the troubles of their lane; things that are removed
    /// meanwhile are left out. `go_on` is called before each identity, and ends this if it returns false.
    ///
    /// # Errors
    /// [`Error::Disk`] if `go_on` returned false.
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
            // An identity that was removed while it was read is no trouble.
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

/// Whether a directory has slab files, so that a process has written entries there.
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
