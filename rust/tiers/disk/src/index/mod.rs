//! The index of one identity: which entry is in which cell, in a redb file and a journal.
//!
//! Damage is never trusted: a damaged file is set aside, a damaged record is left out, and the cells that records name
//! have headers of their own. But only a file that was opened and read can be damaged: where the system refuses a call,
//! nothing is known of the file, and it stays as it is.

mod backend;
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
use crate::format::{Change, DISK_FORMAT_VERSION, IndexRecord, MAX_RANKS};
use crate::path::folder::random;
use backend::{Backend, InMemory, Refused};
use hybrid_pages::error::Cause;
use hybrid_pages::policy::MOST_LEARNT;
use hybrid_pages::transfer::panic_message;
use hybrid_pages_tiers::{Identity, Name};
use journal::Journal;

pub(crate) const FILE: &str = "index.redb";
pub(crate) const ASIDE: &str = "index.damaged";
/// A new index, until it is whole.
const NEW: &str = "index.new";
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const ENTRIES: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("entries");
const OWNER: &str = "owner";
const GENERATION: &str = "journal";
const LEARNT: &str = "learnt";
/// The journal is taken in after so long, or so many changes.
const SAVE: Duration = Duration::from_secs(2);
const MOST_UNSAVED: usize = 50_000;
const CACHE_BYTES: usize = 16 << 20;

/// An open index.
pub(crate) struct DiskIndex {
    database: Database,
    journal: Journal,
    /// Changes that the journal has and the database has not.
    unsaved: Vec<Change>,
    /// The knowledge of the policy, for the next save.
    learnt: Option<Vec<u8>>,
    saved: Instant,
}

/// The content of an index when it was opened.
#[derive(Debug, Default)]
pub(crate) struct IndexContents {
    pub(crate) places: Vec<(Name, IndexRecord)>,
    /// Records that were left out, and are to be removed.
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

/// The owner of an index. Records make sense only for an equal owner.
pub(crate) struct IndexOwner<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) ranks: usize,
    /// Bytes of a cell of each class.
    pub(crate) cells: Vec<u64>,
}

/// The owner that an index names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) identity: Identity,
    pub(crate) ranks: usize,
    pub(crate) cells: Vec<u64>,
}

impl Claim {
    /// `None` for another format, and what makes no sense.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, cells) = bytes.split_at_checked(40)?;
        let half = |at: usize| Some(u32::from_le_bytes(head[at..at + 4].try_into().ok()?));
        let cells = cells
            .chunks(8)
            .map(|cell| Some(u64::from_le_bytes(cell.try_into().ok()?)));
        let claim = Self {
            identity: head[8..].try_into().ok()?,
            ranks: half(4)? as usize,
            cells: cells.collect::<Option<_>>()?,
        };
        let sound = half(0)? == DISK_FORMAT_VERSION && (1..=MAX_RANKS).contains(&claim.ranks);
        sound.then_some(claim)
    }
}

impl IndexOwner<'_> {
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

impl DiskIndex {
    /// Opens the index of a directory. One that is damaged, or another's, is set aside, and an empty one
    /// takes its place.
    ///
    /// # Errors
    /// Those of the system: the index stays as it was, and its content is not known.
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
    /// Says what is wrong with them.
    pub(crate) fn read_copy(
        index: Vec<u8>,
        journal: Vec<u8>,
    ) -> Result<(Claim, IndexContents), Cause> {
        guarded(|| {
            let database = Builder::new()
                .set_cache_size(CACHE_BYTES)
                .set_check_integrity_on_open(true)
                .create_with_backend(InMemory::new(index))
                .map_err(Cause::of)?;
            let claim = claim_of(&database).map_err(Cause::of)?;
            let claim = claim.as_deref().and_then(Claim::decode);
            let claim = claim.ok_or("expected an index of this format, found another")?;
            let owner = IndexOwner {
                identity: &claim.identity,
                ranks: claim.ranks,
                cells: claim.cells.clone(),
            };
            let loaded = load(&database, &owner.encode(), &owner);
            let loaded = loaded.map_err(Cause::of)?;
            let Loaded {
                generation,
                mut records,
                mut damaged,
                ..
            } = loaded.ok_or("expected a generation, found none")?;
            let unsaved = journal::read(&journal, generation, claim.ranks);
            apply(&mut records, &unsaved);
            let places = check(records, claim.cells.len(), &mut damaged);
            let found = IndexContents {
                places,
                damaged,
                ..IndexContents::default()
            };
            Ok((claim, found))
        })
    }

    /// Notes in `refused` what the system refused; any other error is damage.
    fn read(
        door: &dyn Door,
        folder: &OwnedFd,
        owner: &IndexOwner<'_>,
        refused: &Refused,
    ) -> Result<(Self, IndexContents), Cause> {
        let open = |name| refused.call(door.open(folder.as_fd(), name, false));
        let mut file = open(FILE)?;
        let is_new = refused.call(file.length())? == 0;
        if is_new {
            // This process may be killed before it is whole.
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
            // A journal of an index that was here before must not be taken for this one's.
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

    /// Has the next save keep the knowledge of the policy.
    pub(crate) fn learn(&mut self, learnt: &[u8]) {
        let check = xxh3_64(learnt).to_le_bytes();
        self.learnt = Some([learnt, &check[..]].concat());
    }

    /// Makes changes, in their order; they outlive the process when it returns.
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

    /// Writes the changes of the journal to the database: then they outlive a loss of power, too.
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

    /// Removes the file: no process finds anything in this directory again.
    pub(crate) fn forget(folder: &OwnedFd) -> io::Result<()> {
        remove(folder, FILE)
    }

    /// Saves what is unsaved and closes the file. A panic in there costs no more than the close.
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

/// The content of the database of an index.
struct Loaded {
    /// Generation of the journal that goes with the database.
    generation: u64,
    /// The whole records.
    records: IndexRecords,
    /// Names of the others.
    damaged: Vec<Name>,
    /// The knowledge of the tier's policy: empty if none was kept, `None` if it is damaged.
    learnt: Option<Vec<u8>>,
}

/// `None` if the index is another's.
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
    let generation = meta.get(GENERATION)?;
    let generation =
        generation.and_then(|found| Some(u64::from_le_bytes(found.value().try_into().ok()?)));
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

/// The knowledge of a policy without its checksum, if the checksum is right.
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

/// The records that make sense beside each other; the names of the others are added to `damaged`.
fn check(
    records: IndexRecords,
    classes: usize,
    damaged: &mut Vec<Name>,
) -> Vec<(Name, IndexRecord)> {
    let mut cells: HashMap<(usize, u64), u32> = HashMap::new();
    for place in records.values() {
        *cells.entry((place.class, place.cell)).or_default() += 1;
    }
    // Of two entries in one cell, nobody knows which is there.
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

/// A damaged file may make redb panic: that is an error like the others.
fn guarded<T>(run: impl FnOnce() -> Result<T, Cause>) -> Result<T, Cause> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome,
        Err(panic) => Err(format!("a panic: {}", panic_message(&*panic)).into()),
    }
}
