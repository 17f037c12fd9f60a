//! The slab files of one identity.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::MmapMut;

use crate::door::{ALIGNMENT, Door, DoorFile};
use crate::format::{ABOUT, ABOUT_DRAFT, MOST_ABOUT};
use crate::shape::CellShape;
use hybrid_pages_tiers::Identity;

/// An open store. When the disk opens another one, copies under way keep theirs.
#[derive(Debug)]
pub(crate) struct DiskStore {
    pub(crate) identity: Identity,
    /// Number of the store, greater than that of each earlier store of the disk.
    pub(crate) epoch: u64,
    /// Name of the directory.
    pub(crate) directory: String,
    pub(crate) folder: OwnedFd,
    /// Whether the store has an index, and so outlives the process.
    pub(crate) persistent: bool,
    /// Whether reads and writes go past the system's cache.
    pub(crate) direct: bool,
    slabs: Vec<Box<dyn DoorFile>>,
    punches: AtomicBool,
}

/// Identity, number and directory of a store that is to be opened.
pub(crate) struct StoreNames {
    pub(crate) identity: Identity,
    pub(crate) epoch: u64,
    pub(crate) directory: String,
    pub(crate) persistent: bool,
}

impl DiskStore {
    /// Opens the slabs, one per class, and makes missing ones.
    pub(crate) fn open(
        door: &dyn Door,
        folder: OwnedFd,
        names: StoreNames,
        classes: usize,
    ) -> io::Result<Self> {
        let direct = probe(door, &folder);
        let open = |class| door.open(folder.as_fd(), &format!("class-{class}.slab"), direct);
        let slabs = (0..classes).map(open).collect::<io::Result<_>>()?;
        Ok(Self {
            identity: names.identity,
            epoch: names.epoch,
            directory: names.directory,
            persistent: names.persistent,
            folder,
            direct,
            slabs,
            punches: AtomicBool::new(true),
        })
    }

    /// How many whole cells each slab has room for.
    pub(crate) fn cells(&self, shapes: &[CellShape]) -> io::Result<Vec<u64>> {
        let slabs = self.slabs.iter().zip(shapes);
        slabs
            .map(|(slab, shape)| Ok(slab.length()? / shape.cell_bytes))
            .collect()
    }

    /// Writes a description of what the identity was made from.
    pub(crate) fn describe(&self, door: &dyn Door, about: &str) -> io::Result<()> {
        if about.len() as u64 > MOST_ABOUT {
            let found = about.len();
            return Err(io::Error::other(format!(
                "expected at most {MOST_ABOUT} bytes, found {found}"
            )));
        }
        let folder = self.folder.as_fd();
        let file = door.open(folder, ABOUT_DRAFT, false)?;
        file.set_length(0)?;
        file.write_all(about.as_bytes(), 0)?;
        door.rename(folder, ABOUT_DRAFT, ABOUT)
    }

    pub(crate) fn slab(&self, class: usize) -> &dyn DoorFile {
        &*self.slabs[class]
    }

    /// Gives the room of a cell back to the file system, if that supports holes.
    pub(crate) fn punch(&self, shapes: &[CellShape], class: usize, cell: u64) -> io::Result<()> {
        let bytes = shapes[class].cell_bytes;
        self.punch_range(class, cell * bytes, bytes)
    }

    fn punch_range(&self, class: usize, offset: u64, length: u64) -> io::Result<()> {
        if !self.punches.load(Ordering::Relaxed) {
            return Ok(());
        }
        let outcome = self.slabs[class].punch(offset, length);
        if let Err(error) = &outcome
            && error.kind() == io::ErrorKind::Unsupported
        {
            self.punches.store(false, Ordering::Relaxed);
        }
        outcome
    }

    /// Gives the room that no cell needs back: for each class, everything behind the last cell, and the gaps before
    /// it.
    pub(crate) fn tidy(
        &self,
        shapes: &[CellShape],
        room: &[(u64, Vec<std::ops::Range<u64>>)],
    ) -> io::Result<()> {
        for (class, (end, gaps)) in room.iter().enumerate() {
            let bytes = shapes[class].cell_bytes;
            let end = end * bytes;
            if self.slabs[class].length()? > end {
                self.slabs[class].set_length(end)?;
            }
            for gap in gaps {
                self.punch_range(class, gap.start * bytes, (gap.end - gap.start) * bytes)?;
            }
        }
        Ok(())
    }

    /// Makes written entries survive a loss of power.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.slabs.iter().try_for_each(|slab| slab.sync())
    }
}

/// Tests whether files in this directory can be written and read past the system's cache.
fn probe(door: &dyn Door, folder: &OwnedFd) -> bool {
    const FILE: &str = "probe";
    let works = || -> io::Result<bool> {
        let file = door.open(folder.as_fd(), FILE, true)?;
        let mut bytes = buffer(ALIGNMENT)?;
        file.write_all(&bytes, 0)?;
        bytes.fill(1);
        file.read_all(&mut bytes, 0)?;
        Ok(bytes.iter().all(|&byte| byte == 0))
    };
    // After any error, files go through the system's cache, and report their own errors.
    let works = works().unwrap_or(false);
    let _ = rustix::fs::unlinkat(folder, FILE, rustix::fs::AtFlags::empty());
    works
}

/// Aligned bytes, all zero.
pub(crate) fn buffer(bytes: usize) -> io::Result<MmapMut> {
    MmapMut::map_anon(bytes)
}
