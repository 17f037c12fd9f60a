//! Reads every entry of an identity and compares it with its checksums, after its seals were opened if it is encrypted.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::copy::Copied;
use super::{DiskTree, folder, interrupted};
use crate::door::{ALIGNMENT, DoorFile};
use crate::format::{CellHeader, HEADER_BYTES, IndexRecord, ON_DISK, SEALED_DISK_FORMAT_VERSION};
use crate::index::Claim;
use crate::path::folder::open_file;
use crate::path::{key_mark, lane};
use crate::stats::DiskFailure;
use hybrid_pages::error::{Error, Result};
use hybrid_pages::transfer::{TILE_BYTES, combine, tile_digest};
use hybrid_pages_tiers::{EncryptKeys, Name, SEAL_BYTES, Seal, SealedPlace, Seals, sealed_bytes};

/// Time after which a process's change is in the index or the journal, unless they can't be written.
const LAG: Duration = Duration::from_secs(1);
/// How often a bad entry is read again, since entries may leave and come back.
const ROUNDS: usize = 4;
/// Tiles that are read at a time.
const STEP: usize = 64;

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
    /// Number of entries whose header and bytes are right, as far as the keys tell.
    pub good: u64,
    /// Number of the good entries whose header alone was compared, since the key that opens the rest is not there.
    pub unopened: u64,
    /// Total bytes of the good entries.
    pub bytes: u64,
    /// Number of entries that moved or left meanwhile.
    pub changed: u64,
    /// Damaged entries, which a process would not get.
    pub bad: Vec<Bad>,
    /// Number of damaged records in the index.
    pub damaged_records: u64,
    /// Whether the entries are encrypted.
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
    /// Reads all entries of an identity in a lane; `None` if the identity was removed meanwhile. `keys` opens those that
    /// are encrypted. `progress` gets the bytes done and the total, and returns whether to go on.
    ///
    /// A process may use the lane meanwhile. So an entry counts as bad only if it is read several times, and is still
    /// bad and still in the same cell each time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such lane or identity, and for keys with which the lane's entries were
    /// not encrypted; [`Error::Disk`] for an index or a slab that can't be read, and if `progress` returned false.
    pub fn verify(
        &self,
        lane: &str,
        identity: &str,
        keys: Option<&EncryptKeys>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Verdict>> {
        if !self.lanes.iter().any(|name| name == lane) || !folder::is_identity(identity) {
            return Err(Error::InvalidArgument(format!(
                "expected a lane and an identity of {}, found {lane}/{identity}",
                self.path.display()
            )));
        }
        let outcome = self.verify_it(lane, identity, keys, progress);
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
        keys: Option<&EncryptKeys>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Verdict> {
        let name = format!("{lane}/{identity}");
        let failed = |error: io::Error| self.failed(&name, "a directory of this user", error);
        let lane = folder::open_folder(self.root.as_fd(), lane).map_err(|it| failed(it.into()))?;
        if let Some(keys) = keys {
            let found = key_mark::key_in(lane.as_fd()).map_err(failed)?;
            if let Some(found) = found.filter(|found| *found != keys.id()) {
                return Err(Error::InvalidArgument(format!(
                    "encrypt_key: expected the key {found}, which the entries of {name} are encrypted with, found the key \
                     {}: give that key",
                    keys.id()
                )));
            }
        }
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
        let reader = CellReader::new(inside.as_fd(), &claim, keys)
            .map_err(|error| self.failed(&name, "slabs that can be read", error))?;
        let mut places = found.places;
        places.sort_unstable_by_key(|(_, place)| (place.class, place.cell));
        let total = places.iter().map(|(_, it)| claim.cells[it.class]).sum();
        let mut verdict = Verdict {
            encrypted: claim.format == SEALED_DISK_FORMAT_VERSION,
            damaged_records: found.damaged.len() as u64,
            ..Verdict::default()
        };
        let (mut done, mut doubts) = (0, Vec::new());
        for (name, place) in places {
            let bytes = claim.cells[place.class];
            match reader.check(&name, &place) {
                Ok(opened) => {
                    verdict.good += 1;
                    verdict.unopened += u64::from(!opened);
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
    seals: Seals,
}

impl<'a> CellReader<'a> {
    fn new(
        folder: BorrowedFd<'_>,
        claim: &'a Claim,
        keys: Option<&EncryptKeys>,
    ) -> io::Result<Self> {
        let slab = |class| match open_file(folder, &format!("class-{class}.slab")) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let slabs = (0..claim.cells.len()).map(slab);
        Ok(Self {
            claim,
            slabs: slabs.collect::<io::Result<_>>()?,
            seals: Seals::new(keys.cloned()),
        })
    }

    /// Checks whether an entry is whole. Returns whether its bytes could be compared, and not its header alone; the error
    /// is the kind of damage.
    fn check(&self, name: &Name, place: &IndexRecord) -> std::result::Result<bool, DiskFailure> {
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
    ) -> std::result::Result<bool, DiskFailure> {
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
            owner: CellHeader::owner(&header),
        };
        let is_sealed = self.claim.format == SEALED_DISK_FORMAT_VERSION;
        let seal_bytes = if is_sealed { SEAL_BYTES } else { 0 };
        let tiles = shard_bytes.div_ceil(TILE_BYTES) as u64;
        let stored = (shard_bytes as u64).checked_add(tiles.saturating_mul(seal_bytes as u64));
        let padded = stored.and_then(|bytes| bytes.checked_next_multiple_of(ALIGNMENT as u64));
        let shards = padded.and_then(|bytes| bytes.checked_mul(self.claim.ranks as u64));
        let whole = shards.and_then(|bytes| bytes.checked_add(HEADER_BYTES as u64));
        let owned = is_sealed || expected.owner.iter().all(|&byte| byte == 0);
        if !expected.is(&header) || !owned || whole != Some(self.claim.cells[place.class]) {
            return Err(DiskFailure::Header);
        }
        let seal = self.seals.seal_of(name, &expected.owner);
        let seal = seal.filter(|_| is_sealed);
        if is_sealed && seal.is_none() {
            return Ok(false);
        }
        let sums = seal.as_ref().map(|seal| seal.mask(&place.sums));
        let sums = sums.as_ref().unwrap_or(&place.sums);
        let sealed_at = SealedPlace {
            identity: &self.claim.identity,
            place: [
                ON_DISK,
                place.class as u64,
                place.cell,
                u64::from(place.block),
            ],
            shard_bytes,
            sums,
        };
        let at = |rank| start + HEADER_BYTES as u64 + rank as u64 * padded.unwrap_or(0);
        for (rank, sum) in sums.iter().enumerate() {
            let found = shard_sum(
                file,
                at(rank),
                (seal.as_ref(), &sealed_at, rank),
                seal_bytes,
            )?;
            if found != *sum {
                return Err(DiskFailure::Checksum);
            }
        }
        Ok(true)
    }
}

/// The checksum of the bytes of a rank's shard, which begins at an offset of a slab file.
fn shard_sum(
    file: &dyn DoorFile,
    at: u64,
    (seal, sealed_at, rank): (Option<&Seal>, &SealedPlace<'_>, usize),
    seal_bytes: usize,
) -> std::result::Result<u64, DiskFailure> {
    let stored = sealed_bytes(sealed_at.shard_bytes, seal_bytes);
    let tile_bytes = TILE_BYTES + seal_bytes;
    let mut bytes = vec![0; stored.min(STEP * tile_bytes)];
    let mut digests = Vec::with_capacity(sealed_at.shard_bytes.div_ceil(TILE_BYTES));
    for offset in (0..stored).step_by(STEP * tile_bytes) {
        let tiles = &mut bytes[..(stored - offset).min(STEP * tile_bytes)];
        file.read_all(tiles, at + offset as u64)
            .map_err(reason_of)?;
        if seal.is_some_and(|seal| !seal.open(sealed_at, rank, offset / tile_bytes, tiles)) {
            return Err(DiskFailure::Sealed);
        }
        let tiles = tiles.chunks(tile_bytes);
        digests.extend(tiles.map(|tile| tile_digest(&tile[..tile.len() - seal_bytes])));
    }
    Ok(combine(digests.into_iter(), sealed_at.shard_bytes))
}

fn reason_of(error: io::Error) -> DiskFailure {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        DiskFailure::Short
    } else {
        DiskFailure::Read
    }
}
