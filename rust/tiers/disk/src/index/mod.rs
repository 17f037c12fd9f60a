//! The index of one identity: a redb file and a journal that say which entry is in which cell.
//!
//! A damaged file is set aside, and a damaged record is left out. Cells have headers of their own, so a wrong record
//! is found out. A file counts as damaged only after it was opened and read: if the system refuses a call, the file
//! stays as it is.

mod backend;
mod header;
pub(crate) mod journal;

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use redb::{Builder, Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use crate::door::Door;
use crate::format::{
    Change, DISK_FORMAT_VERSION, IndexRecord, MAX_RANKS, SEALED_DISK_FORMAT_VERSION,
};
use crate::path::folder::random;
use backend::{Backend, InMemory, Refused};
use hybrid_pages::error::Cause;
use hybrid_pages::policy::MOST_LEARNT;
use hybrid_pages::transfer::panic_message;
use hybrid_pages_tiers::{Identity, Name};
use journal::Journal;

pub(crate) const FILE: &str = "index.redb";
pub(crate) const ASIDE: &str = "index.damaged";
/// Name of a new index until it is whole.
const NEW: &str = "index.new";
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const ENTRIES: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("entries");
const OWNER: &str = "owner";
const GENERATION: &str = "journal";
const LEARNT: &str = "learnt";
/// The index takes the journal's changes after this time, or after [`MOST_UNSAVED`] changes.
const SAVE: Duration = Duration::from_secs(2);
const MOST_UNSAVED: usize = 50_000;
const CACHE_BYTES: usize = 16 << 20;

/// An open index.
pub(crate) struct DiskIndex {
    database: Database,
    journal: Journal,
    /// Changes that are in the journal and not in the database.
    unsaved: Vec<Change>,
    /// The knowledge of the policy that the next save will write.
    learnt: Option<Vec<u8>>,
    saved: Instant,
}

/// The content of an index at the time when it was opened.
#[derive(Debug, Default)]
pub(crate) struct IndexContents {
    pub(crate) places: Vec<(Name, IndexRecord)>,
    /// Names of damaged records, which were left out and shall be removed.
    pub(crate) damaged: Vec<Name>,
    /// The knowledge of the tier's policy: empty if none was kept, `None` if it is damaged.
    pub(crate) learnt: Option<Vec<u8>>,
    /// Why the file was set aside, if it was.
    pub(crate) aside: Option<String>,
    /// Whether there was no file, or an empty one.
    pub(crate) is_new: bool,
}

impl Debug for DiskIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DiskIndex")
    }
}

/// The owner of an index. Records are valid only for an equal owner.
pub(crate) struct IndexOwner<'a> {
    pub(crate) format: u32,
    pub(crate) identity: &'a Identity,
    pub(crate) ranks: usize,
    /// Bytes of a cell of each class.
    pub(crate) cells: Vec<u64>,
}

/// The owner that is named in an index file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) format: u32,
    pub(crate) identity: Identity,
    pub(crate) ranks: usize,
    pub(crate) cells: Vec<u64>,
}

impl Claim {
    /// Decodes an owner; `None` for another format or invalid bytes.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, cells) = bytes.split_at_checked(40)?;
        let half = |at: usize| Some(u32::from_le_bytes(head[at..at + 4].try_into().ok()?));
        let cells = cells
            .chunks(8)
            .map(|cell| Some(u64::from_le_bytes(cell.try_into().ok()?)));
        let claim = Self {
            format: half(0)?,
            identity: head[8..].try_into().ok()?,
            ranks: half(4)? as usize,
            cells: cells.collect::<Option<_>>()?,
        };
        let known = [DISK_FORMAT_VERSION, SEALED_DISK_FORMAT_VERSION].contains(&claim.format);
        let sound = known && (1..=MAX_RANKS).contains(&claim.ranks);
        sound.then_some(claim)
    }
}

impl IndexOwner<'_> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.format.to_le_bytes().to_vec();
        bytes.extend((self.ranks as u32).to_le_bytes());
        bytes.extend(self.identity);
        for cell in &self.cells {
            bytes.extend(cell.to_le_bytes());
        }
        bytes
    }
}

impl DiskIndex {
    /// Opens the index of a directory. An index that is damaged or has another owner is set aside, and an empty one
    /// takes its place.
    ///
    /// # Errors
    /// The errors of the system. Then the index stays as it was.
    pub(crate) fn open(
        door: &dyn Door,
        folder: &OwnedFd,
        owner: &IndexOwner<'_>,
    ) -> io::Result<(Self, IndexContents)> {
        let refused = Refused::default();
        let why = match guarded(|| Self::read(door, folder, owner, &refused)) {
            Ok(opened) => return Ok(opened),
            Err(why) => why,
        };
        if let Some(error) = refused.take() {
            return Err(error);
        }
        door.rename(folder.as_fd(), FILE, ASIDE)?;
        let (index, mut found) = guarded(|| Self::read(door, folder, owner, &refused))
            .map_err(|why| refused.take().unwrap_or_else(|| io::Error::other(why)))?;
        found.aside = Some(why.to_string());
        Ok((index, found))
    }

    /// Reads copies of an index and of its journal.
    ///
    /// # Errors
    /// A text that says what is wrong with the copies.
    pub(crate) fn read_copy(
        index: Vec<u8>,
        journal: Vec<u8>,
    ) -> Result<(Claim, IndexContents), Cause> {
        guarded(|| {
            require_fit(index.first_chunk(), index.len() as u64)?;
            let database = Builder::new()
                .set_cache_size(CACHE_BYTES)
                .set_check_integrity_on_open(true)
                .create_with_backend(InMemory::new(index))
                .map_err(Cause::of)?;
            contents(&database, &journal)
        })
    }

    /// Reads an index. Errors of the system are noted in `refused`; any other error means damage.
    fn read(
        door: &dyn Door,
        folder: &OwnedFd,
        owner: &IndexOwner<'_>,
        refused: &Refused,
    ) -> Result<(Self, IndexContents), Cause> {
        let open = |name| refused.call(door.open(folder.as_fd(), name, false));
        let mut file = open(FILE)?;
        let length = refused.call(file.length())?;
        let is_new = length == 0;
        let mut start = [0; header::BYTES];
        if length >= start.len() as u64 {
            refused.call(file.read_all(&mut start, 0))?;
            require_fit(Some(&start), length)?;
        }
        if is_new {
            // The file has another name until it is whole, since this process may be killed before.
            refused.call(remove(folder, NEW))?;
            file = open(NEW)?;
        }
        let backend = Backend {
            file,
            refused: refused.clone(),
        };
        let database = Builder::new()
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(!is_new)
            .create_with_backend(backend)
            .map_err(Cause::of)?;
        let claim = owner.encode();
        if is_new {
            // A random generation keeps the journal of an earlier index from being used with this one.
            let generation = refused.call(random())?;
            let claimed = claim_new(&database, &claim, &generation[..8]);
            claimed.map_err(Cause::of)?;
            refused.call(door.rename(folder.as_fd(), NEW, FILE))?;
        }
        let loaded = load(&database, &claim, owner).map_err(Cause::of)?;
        let Some(Loaded {
            generation,
            mut records,
            mut damaged,
            learnt,
        }) = loaded
        else {
            return Err("an index of another identity".into());
        };
        let journal = Journal::open(open(journal::FILE)?, generation, owner.ranks);
        let (journal, unsaved) = refused.call(journal)?;
        apply(&mut records, &unsaved);
        let places = check(records, owner.cells.len(), &mut damaged);
        let found = IndexContents {
            places,
            damaged,
            learnt,
            aside: None,
            is_new,
        };
        let index = Self {
            database,
            journal,
            unsaved,
            learnt: None,
            saved: Instant::now(),
        };
        Ok((index, found))
    }

    /// Keeps the knowledge of the policy for the next save.
    pub(crate) fn learn(&mut self, learnt: &[u8]) {
        let check = xxh3_64(learnt).to_le_bytes();
        self.learnt = Some([learnt, &check[..]].concat());
    }

    /// Makes changes, in order. They outlive the process once this has returned.
    pub(crate) fn commit(&mut self, changes: &[Change]) -> Result<(), Cause> {
        if !changes.is_empty() {
            let appended = self.journal.append(changes);
            appended.map_err(|error| Cause::new(format!("the journal: {error}"), error))?;
            self.unsaved.extend_from_slice(changes);
        }
        let due = self.saved.elapsed() >= SAVE || self.unsaved.len() >= MOST_UNSAVED;
        if due && self.has_unsaved() {
            self.save()?;
        }
        Ok(())
    }

    fn has_unsaved(&self) -> bool {
        !self.unsaved.is_empty() || self.learnt.is_some()
    }

    /// Writes the changes of the journal to the database, where they also outlive a loss of power.
    fn save(&mut self) -> Result<(), Cause> {
        let generation = self.journal.generation().wrapping_add(1);
        let (database, unsaved, learnt) = (&self.database, &self.unsaved, self.learnt.as_deref());
        guarded(|| write(database, unsaved, generation, learnt).map_err(Cause::of))?;
        self.journal.restart(generation);
        self.learnt = None;
        self.unsaved.clear();
        self.saved = Instant::now();
        Ok(())
    }

    /// Removes the index file, so that no process finds any entry in this directory.
    pub(crate) fn forget(folder: &OwnedFd) -> io::Result<()> {
        remove(folder, FILE)
    }

    /// Saves unsaved changes and closes the file. A panic in redb becomes an error.
    pub(crate) fn close(mut self) -> Result<(), Cause> {
        if self.has_unsaved() {
            self.save()?;
        }
        guarded(|| self.database.close().map_err(Cause::of))
    }
}

fn remove(folder: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Checks the first bytes of a file of some length, if it has as many.
fn require_fit(start: Option<&[u8; header::BYTES]>, length: u64) -> Result<(), Cause> {
    match start {
        Some(start) if !header::fits(start, length) => {
            Err("expected pages in the file, found one that is larger than it".into())
        }
        _ => Ok(()),
    }
}

fn claim_new(database: &Database, claim: &[u8], generation: &[u8]) -> Result<(), redb::Error> {
    let mut writing = database.begin_write()?;
    writing.set_durability(Durability::Immediate)?;
    {
        let mut meta = writing.open_table(META)?;
        meta.insert(OWNER, claim)?;
        meta.insert(GENERATION, generation)?;
    }
    writing.open_table(ENTRIES)?;
    writing.commit()?;
    Ok(())
}

/// Records by name.
type IndexRecords = HashMap<Name, IndexRecord>;

/// The content of an index's database.
struct Loaded {
    /// Generation of the journal that belongs to the database.
    generation: u64,
    /// The records that are not damaged.
    records: IndexRecords,
    /// Names of the damaged records.
    damaged: Vec<Name>,
    /// The knowledge of the tier's policy: empty if none was kept, `None` if it is damaged.
    learnt: Option<Vec<u8>>,
}

/// What a database and a copy of its journal say, for the owner that the database names.
pub(crate) fn contents(
    database: &Database,
    journal: &[u8],
) -> Result<(Claim, IndexContents), Cause> {
    let claim = claim_of(database).map_err(Cause::of)?;
    let format = claim.as_deref().and_then(|bytes| bytes.first_chunk());
    let format = format.map_or(0, |format| u32::from_le_bytes(*format));
    let claim = claim.as_deref().and_then(Claim::decode).ok_or_else(|| {
        format!(
            "expected an index of format {DISK_FORMAT_VERSION} or {SEALED_DISK_FORMAT_VERSION}, found one of format \
             {format} or damage"
        )
    })?;
    let owner = IndexOwner {
        format: claim.format,
        identity: &claim.identity,
        ranks: claim.ranks,
        cells: claim.cells.clone(),
    };
    let loaded = load(database, &owner.encode(), &owner).map_err(Cause::of)?;
    let Loaded {
        generation,
        mut records,
        mut damaged,
        ..
    } = loaded.ok_or("expected a generation, found none")?;
    let unsaved = journal::read(journal, generation, claim.ranks);
    apply(&mut records, &unsaved);
    let places = check(records, claim.cells.len(), &mut damaged);
    let found = IndexContents {
        places,
        damaged,
        ..IndexContents::default()
    };
    Ok((claim, found))
}

/// Reads the database; `None` if the index has another owner.
fn load(
    database: &Database,
    claim: &[u8],
    owner: &IndexOwner<'_>,
) -> Result<Option<Loaded>, redb::Error> {
    let reading = database.begin_read()?;
    let meta = reading.open_table(META)?;
    if meta.get(OWNER)?.is_none_or(|found| found.value() != claim) {
        return Ok(None);
    }
    // The first indexes had no journal and so no generation.
    let generation = meta.get(GENERATION)?.map_or(Some(0), |found| {
        Some(u64::from_le_bytes(found.value().try_into().ok()?))
    });
    let Some(generation) = generation else {
        return Ok(None);
    };
    let learnt = match meta.get(LEARNT)? {
        Some(found) => unseal(found.value()).map(<[u8]>::to_vec),
        None => Some(Vec::new()),
    };
    let (mut records, mut damaged) = (HashMap::new(), Vec::new());
    for record in reading.open_table(ENTRIES)?.iter()? {
        let (name, bytes) = record?;
        let name = *name.value();
        match IndexRecord::decode(&name, bytes.value(), owner.ranks) {
            Some(place) => drop(records.insert(name, place)),
            None => damaged.push(name),
        }
    }
    Ok(Some(Loaded {
        generation,
        records,
        damaged,
        learnt,
    }))
}

/// The knowledge of a policy without its checksum; `None` if the checksum is wrong.
fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (learnt, check) = bytes.split_last_chunk::<8>()?;
    let sound = learnt.len() <= MOST_LEARNT && xxh3_64(learnt).to_le_bytes() == *check;
    sound.then_some(learnt)
}

fn apply(records: &mut IndexRecords, changes: &[Change]) {
    for (name, place) in changes {
        match place {
            Some(place) => records.insert(*name, place.clone()),
            None => records.remove(name),
        };
    }
}

fn claim_of(database: &Database) -> Result<Option<Vec<u8>>, redb::Error> {
    let reading = database.begin_read()?;
    let found = reading.open_table(META)?.get(OWNER)?;
    Ok(found.map(|found| found.value().to_vec()))
}

/// The records that are consistent with each other. The names of the others are added to `damaged`.
fn check(
    records: IndexRecords,
    classes: usize,
    damaged: &mut Vec<Name>,
) -> Vec<(Name, IndexRecord)> {
    let mut cells: HashMap<(usize, u64), u32> = HashMap::new();
    for place in records.values() {
        *cells.entry((place.class, place.cell)).or_default() += 1;
    }
    // If two records name one cell, either may be wrong.
    let sound = |(_, place): &(Name, IndexRecord)| {
        place.class < classes && cells[&(place.class, place.cell)] == 1
    };
    let (sound, others): (Vec<_>, Vec<_>) = records.into_iter().partition(sound);
    damaged.extend(others.into_iter().map(|(name, _)| name));
    sound
}

fn write(
    database: &Database,
    changes: &[Change],
    generation: u64,
    learnt: Option<&[u8]>,
) -> Result<(), redb::Error> {
    let mut writing = database.begin_write()?;
    writing.set_durability(Durability::Immediate)?;
    {
        let mut entries = writing.open_table(ENTRIES)?;
        for (name, place) in changes {
            match place {
                Some(place) => entries.insert(name, &place.encode(name)[..])?,
                None => entries.remove(name)?,
            };
        }
        let mut meta = writing.open_table(META)?;
        meta.insert(GENERATION, &generation.to_le_bytes()[..])?;
        if let Some(learnt) = learnt {
            meta.insert(LEARNT, learnt)?;
        }
    }
    writing.commit()?;
    Ok(())
}

/// Turns a panic of redb, which a damaged file may cause, into an error.
fn guarded<T>(run: impl FnOnce() -> Result<T, Cause>) -> Result<T, Cause> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome,
        Err(panic) => Err(format!("a panic: {}", panic_message(&*panic)).into()),
    }
}
