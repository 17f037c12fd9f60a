//! The index of one identity: which entry is in which cell, in a redb file.
//!
//! What is wrong in it is never trusted: a damaged file is set aside, a damaged record is left out, and the
//! cells that records name have headers of their own.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Debug};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::{
    BackendError, Builder, Database, Durability, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition,
};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::door::{Door, DoorFile};
use super::format::{DISK_FORMAT_VERSION, Identity, Name, Place};
use crate::transfer::panic_message;

const FILE: &str = "index.redb";
const ASIDE: &str = "index.damaged";
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const ENTRIES: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("entries");
const OWNER: &str = "owner";
const CACHE_BYTES: usize = 16 << 20;

/// A change: where an entry is from now on, or that it is gone.
pub(super) type Change = (Name, Option<Place>);

/// An open index.
pub(super) struct Index {
    database: Database,
}

/// What an index had when it was opened.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) places: Vec<(Name, Place)>,
    /// Records that were left out, and are to be removed.
    pub(super) damaged: Vec<Name>,
    /// Why the file was set aside, if it was.
    pub(super) aside: Option<String>,
    /// Whether there was no file, or an empty one.
    pub(super) is_new: bool,
}

impl Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Index")
    }
}

/// What must be alike for the records to mean anything.
pub(super) struct Owner<'a> {
    pub(super) identity: &'a Identity,
    pub(super) ranks: usize,
    /// Bytes of a cell of each class.
    pub(super) cells: Vec<u64>,
}

impl Owner<'_> {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = DISK_FORMAT_VERSION.to_le_bytes().to_vec();
        bytes.extend((self.ranks as u32).to_le_bytes());
        bytes.extend(self.identity);
        for cell in &self.cells {
            bytes.extend(cell.to_le_bytes());
        }
        bytes
    }
}

impl Index {
    /// Opens the index of a directory. One that is damaged, or another's, is set aside, and an empty one
    /// takes its place.
    ///
    /// # Errors
    /// Why not even an empty one can be made.
    pub(super) fn open(
        door: &dyn Door,
        folder: &OwnedFd,
        owner: &Owner<'_>,
    ) -> Result<(Self, Found), String> {
        let why = match guarded(|| Self::read(door, folder, owner)) {
            Ok(opened) => return Ok(opened),
            Err(why) => why,
        };
        let (index, mut found) = Self::anew(door, folder, owner)?;
        found.aside = Some(why);
        Ok((index, found))
    }

    /// An empty index; the old one is set aside.
    pub(super) fn anew(
        door: &dyn Door,
        folder: &OwnedFd,
        owner: &Owner<'_>,
    ) -> Result<(Self, Found), String> {
        match rustix::fs::renameat(folder, FILE, folder, ASIDE) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(format!("{FILE} cannot be set aside: {error}")),
        }
        guarded(|| Self::read(door, folder, owner))
    }

    fn read(door: &dyn Door, folder: &OwnedFd, owner: &Owner<'_>) -> Result<(Self, Found), String> {
        let file = door
            .open(folder.as_fd(), FILE, false)
            .map_err(|error| error.to_string())?;
        let is_new = file.length().map_err(|error| error.to_string())? == 0;
        let database = Builder::new()
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(!is_new)
            .create_with_backend(Backend(file))
            .map_err(|error| error.to_string())?;
        let index = Self { database };
        let claim = owner.encode();
        if is_new {
            index.claim(&claim).map_err(|error| error.to_string())?;
            let found = Found {
                is_new,
                ..Found::default()
            };
            return Ok((index, found));
        }
        let found = index
            .load(&claim, owner)
            .map_err(|error| error.to_string())?;
        found
            .map(|found| (index, found))
            .ok_or_else(|| "an index of another identity".into())
    }

    fn claim(&self, claim: &[u8]) -> Result<(), redb::Error> {
        let mut writing = self.database.begin_write()?;
        writing.set_durability(Durability::Immediate)?;
        writing.open_table(META)?.insert(OWNER, claim)?;
        writing.open_table(ENTRIES)?;
        writing.commit()?;
        Ok(())
    }

    /// Every record, unless the index is another's.
    fn load(&self, claim: &[u8], owner: &Owner<'_>) -> Result<Option<Found>, redb::Error> {
        let reading = self.database.begin_read()?;
        let meta = reading.open_table(META)?;
        if meta.get(OWNER)?.is_none_or(|found| found.value() != claim) {
            return Ok(None);
        }
        let mut found = Found::default();
        let mut cells: HashMap<(usize, u64), usize> = HashMap::new();
        let mut twice = HashSet::new();
        for record in reading.open_table(ENTRIES)?.iter()? {
            let (name, bytes) = record?;
            let name = *name.value();
            let place = Place::decode(&name, bytes.value(), owner.ranks);
            let Some(place) = place.filter(|place| place.class < owner.cells.len()) else {
                found.damaged.push(name);
                continue;
            };
            let at = (place.class, place.cell);
            if let Some(other) = cells.insert(at, found.places.len()) {
                twice.extend([other, found.places.len()]);
            }
            found.places.push((name, place));
        }
        // Of two entries in one cell, nobody knows which is there.
        let (mut at, damaged) = (0, &mut found.damaged);
        found.places.retain(|(name, _)| {
            let keep = !twice.contains(&at);
            at += 1;
            if !keep {
                damaged.push(*name);
            }
            keep
        });
        Ok(Some(found))
    }

    /// Makes changes, in their order; they outlive the process and a loss of power when it returns.
    pub(super) fn commit(&self, changes: &[Change]) -> Result<(), String> {
        guarded(|| self.write(changes).map_err(|error| error.to_string()))
    }

    fn write(&self, changes: &[Change]) -> Result<(), redb::Error> {
        let mut writing = self.database.begin_write()?;
        writing.set_durability(Durability::Immediate)?;
        {
            let mut entries = writing.open_table(ENTRIES)?;
            for (name, place) in changes {
                match place {
                    Some(place) => entries.insert(name, &place.encode(name)[..])?,
                    None => entries.remove(name)?,
                };
            }
        }
        writing.commit()?;
        Ok(())
    }

    /// Removes the file: no process finds anything in this directory again.
    pub(super) fn forget(folder: &OwnedFd) -> io::Result<()> {
        match rustix::fs::unlinkat(folder, FILE, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Closes the file. A panic in there costs no more than the close.
    pub(super) fn close(self) -> Result<(), String> {
        guarded(|| self.database.close().map_err(|error| error.to_string()))
    }
}

/// A damaged file may make redb panic: that is an error like the others.
fn guarded<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome,
        Err(panic) => Err(format!("a panic: {}", panic_message(&*panic))),
    }
}

/// redb's file, through the door. The lane's lock keeps other processes away.
#[derive(Debug)]
struct Backend(Box<dyn DoorFile>);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_all(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_length(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all(data, offset)
    }

    fn try_lock_range(
        &self,
        _: std::ops::Bound<u64>,
        _: std::ops::Bound<u64>,
    ) -> Result<bool, BackendError> {
        Err(BackendError::Unsupported)
    }
}
