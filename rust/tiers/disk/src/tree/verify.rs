//! Reads every entry of an identity and compares it with its checksums.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::copy::Copied;
use super::{DiskTree, folder, interrupted};
use crate::door::{ALIGNMENT, DoorFile};
use crate::format::{CellHeader, HEADER_BYTES, IndexRecord};
use crate::index::Claim;
use crate::path::folder::open_file;
use crate::path::lane;
use crate::stats::DiskFailure;
use hybrid_pages::error::{Error, Result};
use hybrid_pages::transfer::{TILE_BYTES, combine, tile_digest};
use hybrid_pages_tiers::{Name, SEAL_BYTES, SEALED_FORMAT_VERSION};

/// Time after which a process's change is in the index or the journal, unless they can't be written.
const LAG: Duration = Duration::from_secs(1);
/// How often a bad entry is read again, since entries may leave and come back.
const ROUNDS: usize = 4;
/// Bytes that are read at a time.
const STEP: usize = 64 * TILE_BYTES;

/// A damaged entry, which a process would not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bad {
    /// Index of the entry's class.
    pub class: usize,
    /// Index of the entry's block in the prefix.
    pub block: u32,
    /// Number of the entry's cell in the slab file of the class.
    pub cell: u64,
    /// The kind of damage.
    pub reason: DiskFailure,
}

/// The result of reading all entries of an identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Number of entries whose header and bytes are right.
    pub good: u64,
    /// Total bytes of the good entries.
    pub bytes: u64,
    /// Number of entries that moved or left meanwhile.
    pub changed: u64,
    /// Damaged entries, which a process would not get.
    pub bad: Vec<Bad>,
    /// Number of damaged records in the index.
    pub damaged_records: u64,
    /// Whether the entries are encrypted: then only the headers of their cells were compared, since reading the rest
    /// takes the key.
    pub encrypted: bool,
}

impl Verdict {
    /// How many entries have each kind of damage, by name.
    #[must_use]
    pub fn reasons(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for bad in &self.bad {
            *counts.entry(bad.reason.name()).or_insert(0) += 1;
        }
        counts
    }
}

impl DiskTree {
    /// Reads all entries of an identity in a lane; `None` if the identity was removed meanwhile. `progress` gets the
    /// bytes done and the total, and returns whether to go on.
    ///
    /// A process may use the lane meanwhile. So an entry counts as bad only if it is read several times, and is still
    /// bad and still in the same cell each time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such lane or identity; [`Error::Disk`] for an index or a slab that
    /// can't be read, and if `progress` returned false.
    pub fn verify(
        &self,
        lane: &str,
        identity: &str,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Verdict>> {
        if !self.lanes.iter().any(|name| name == lane) || !folder::is_identity(identity) {
            return Err(Error::InvalidArgument(format!(
                "expected a lane and an identity of {}, found {lane}/{identity}",
                self.path.display()
            )));
        }
        let outcome = self.verify_it(lane, identity, progress);
        let is_there = || -> io::Result<OwnedFd> {
            let lane = folder::open_folder(self.root.as_fd(), lane)?;
            Ok(folder::open_folder(lane.as_fd(), identity)?)
        };
        match is_there() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => outcome.map(Some),
        }
    }

    fn verify_it(
        &self,
        lane: &str,
        identity: &str,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Verdict> {
        let name = format!("{lane}/{identity}");
        let failed = |error: io::Error| self.failed(&name, "a directory of this user", error);
        let lane = folder::open_folder(self.root.as_fd(), lane).map_err(|it| failed(it.into()))?;
        let inside = folder::open_folder(lane.as_fd(), identity);
        let inside = inside.map_err(|error| failed(error.into()))?;
        let is_used =
            || -> Result<bool> { Ok(lane::holder(lane.as_fd()).map_err(failed)?.is_some()) };
        let used_before = is_used()?;
        let copied = || {
            let copied = Copied::of(inside.as_fd(), is_used()?);
            copied.map_err(|why| self.failed(&name, "an index", io::Error::other(why)))
        };
        let Some(Copied { claim, found }) = copied()? else {
            return Ok(Verdict::default());
        };
        if folder::directory_of(&claim.identity) != identity {
            let found = io::Error::other("that of another identity");
            return Err(self.failed(&name, "its own index", found));
        }
        let reader = CellReader::new(inside.as_fd(), &claim)
            .map_err(|error| self.failed(&name, "slabs that can be read", error))?;
        let mut places = found.places;
        places.sort_unstable_by_key(|(_, place)| (place.class, place.cell));
        let total = places.iter().map(|(_, it)| claim.cells[it.class]).sum();
        let mut verdict = Verdict {
            encrypted: claim.format == SEALED_FORMAT_VERSION,
            damaged_records: found.damaged.len() as u64,
            ..Verdict::default()
        };
        let (mut done, mut doubts) = (0, Vec::new());
        for (name, place) in places {
            let bytes = claim.cells[place.class];
            match reader.check(&name, &place) {
                Ok(()) => {
                    verdict.good += 1;
                    verdict.bytes += bytes;
                }
                Err(reason) => doubts.push((name, place, reason)),
            }
            done += bytes;
            if !progress(done, total) {
                return Err(interrupted());
            }
        }
        // A process that ended meanwhile has left its last changes in the index.
        let rounds = if used_before || is_used()? { ROUNDS } else { 1 };
        for _ in 0..rounds {
            if doubts.is_empty() {
                break;
            }
            if is_used()? {
                std::thread::sleep(LAG);
            }
            let there: HashMap<Name, IndexRecord> = match copied()? {
                Some(copied) => copied.found.places.into_iter().collect(),
                None => HashMap::new(),
            };
            let before = doubts.len();
            doubts.retain(|(name, place, _)| {
                // The time of use may differ: a use moves nothing.
                let is = |now: &IndexRecord| {
                    (now.class, now.cell, &now.sums) == (place.class, place.cell, &place.sums)
                };
                there.get(name).is_some_and(is) && reader.check(name, place).is_err()
            });
            verdict.changed += (before - doubts.len()) as u64;
            if !progress(total, total) {
                return Err(interrupted());
            }
        }
        let bad = |(_, place, reason): (Name, IndexRecord, DiskFailure)| Bad {
            class: place.class,
            block: place.block,
            cell: place.cell,
            reason,
        };
        verdict.bad = doubts.into_iter().map(bad).collect();
        Ok(verdict)
    }
}

/// Reads cells in the slab files of an identity.
struct CellReader<'a> {
    claim: &'a Claim,
    slabs: Vec<Option<File>>,
}

impl<'a> CellReader<'a> {
    fn new(folder: BorrowedFd<'_>, claim: &'a Claim) -> io::Result<Self> {
        let slab = |class| match open_file(folder, &format!("class-{class}.slab")) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let slabs = (0..claim.cells.len()).map(slab);
        Ok(Self {
            claim,
            slabs: slabs.collect::<io::Result<_>>()?,
        })
    }

    /// Checks whether an entry is whole. The error is the kind of damage.
    fn check(&self, name: &Name, place: &IndexRecord) -> std::result::Result<(), DiskFailure> {
        let file = self.slabs[place.class].as_ref().ok_or(DiskFailure::Short)?;
        let cell_bytes = self.claim.cells[place.class];
        let length = file.metadata().map_err(|_| DiskFailure::Read)?.len();
        let start = place
            .cell
            .checked_mul(cell_bytes)
            .ok_or(DiskFailure::Short)?;
        if start.checked_add(cell_bytes).is_none_or(|end| end > length) {
            return Err(DiskFailure::Short);
        }
        let outcome = self.check_cell(file, start, name, place);
        // The cell isn't read again soon, so the system's cache need not keep it.
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(
            file,
            start,
            std::num::NonZeroU64::new(cell_bytes),
            rustix::fs::Advice::DontNeed,
        );
        outcome
    }

    fn check_cell(
        &self,
        file: &File,
        start: u64,
        name: &Name,
        place: &IndexRecord,
    ) -> std::result::Result<(), DiskFailure> {
        let file: &dyn DoorFile = file;
        let mut header = [0; HEADER_BYTES];
        file.read_all(&mut header, start).map_err(reason_of)?;
        let shard_bytes = CellHeader::shard_bytes(&header).ok_or(DiskFailure::Header)?;
        let expected = CellHeader {
            format: self.claim.format,
            identity: &self.claim.identity,
            name,
            class: place.class,
            block: place.block,
            cell: place.cell,
            shard_bytes,
            sums: &place.sums,
        };
        let is_sealed = self.claim.format == SEALED_FORMAT_VERSION;
        let seals = if is_sealed { SEAL_BYTES as u64 } else { 0 };
        let tiles = shard_bytes.div_ceil(TILE_BYTES) as u64;
        let stored = (shard_bytes as u64).checked_add(tiles.saturating_mul(seals));
        let padded = stored.and_then(|bytes| bytes.checked_next_multiple_of(ALIGNMENT as u64));
        let shards = padded.and_then(|bytes| bytes.checked_mul(self.claim.ranks as u64));
        let whole = shards.and_then(|bytes| bytes.checked_add(HEADER_BYTES as u64));
        if !expected.is(&header) || whole != Some(self.claim.cells[place.class]) {
            return Err(DiskFailure::Header);
        }
        if is_sealed {
            return Ok(());
        }
        let padded = padded.unwrap_or(0);
        let mut bytes = vec![0; STEP.min(shard_bytes)];
        for (rank, sum) in place.sums.iter().enumerate() {
            let at = start + HEADER_BYTES as u64 + rank as u64 * padded;
            let mut digests = Vec::with_capacity(shard_bytes.div_ceil(TILE_BYTES));
            for offset in (0..shard_bytes).step_by(STEP) {
                let step = &mut bytes[..STEP.min(shard_bytes - offset)];
                file.read_all(step, at + offset as u64).map_err(reason_of)?;
                digests.extend(step.chunks(TILE_BYTES).map(tile_digest));
            }
            if combine(digests.into_iter(), shard_bytes) != *sum {
                return Err(DiskFailure::Checksum);
            }
        }
        Ok(())
    }
}

fn reason_of(error: io::Error) -> DiskFailure {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        DiskFailure::Short
    } else {
        DiskFailure::Read
    }
}
