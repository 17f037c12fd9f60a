//! The book: an account, in memory, of a disk's entries and cells, and of what leaves when room is needed.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::cells::Cells;
use crate::door::Door;
use crate::format::{Change, IndexRecord};
use crate::job::{DiskDirection, DiskJob};
use crate::path::folder::Other;
use crate::shape::CellShape;
use crate::store::DiskStore;
use hybrid_pages::rows::Rows;
use hybrid_pages::tier::CopyId;
use hybrid_pages_tiers::{ByName, Name, TailNames};

/// Uses within one minute count as one, since each costs a write to the index. Counted in minutes, the last use of a
/// page is no earlier than that of any entry that needs it. Of entries last used in the same minute, the deepest leave
/// first.
const USE_SECONDS: u64 = 60;

/// An entry that is whole on disk.
#[derive(Debug)]
pub(crate) struct DiskEntry {
    pub(crate) place: IndexRecord,
    /// Whether this cache knows the entry, having written it or found it again.
    pub(crate) known: bool,
}

/// The result of a lookup of an entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BookFinding {
    /// Checksums of the entry, one per rank.
    pub(crate) sums: Vec<u64>,
    /// Milliseconds since the last use, if an earlier process left the entry.
    pub(crate) unused: Option<u64>,
}

/// The order in which entries leave: the one used longest ago first, then the deepest block, then the checkpoint of a
/// block before its page.
type EvictionTurn = (u64, Reverse<u32>, Reverse<usize>, Name);

fn turn(name: &Name, place: &IndexRecord) -> EvictionTurn {
    (
        place.used,
        Reverse(place.block),
        Reverse(place.class),
        *name,
    )
}

/// A directory that is to be removed.
#[derive(Debug, Clone)]
pub(crate) struct Trash {
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// Something that can be removed to make room.
#[derive(Debug)]
pub(crate) enum Victim {
    /// An entry, which is removed already.
    Entry,
    /// A stale cell, to be punched: its class and number.
    Cell(usize, u64),
    /// A directory, to be removed.
    Directory(Trash),
    /// Another thread is making room now.
    Wait,
    /// Nothing can be removed.
    Nobody,
}

/// Copies that have not ended.
#[derive(Debug, Default)]
pub(crate) struct RunningJobs {
    jobs: HashMap<CopyId, Arc<DiskJob>>,
    writes: u64,
}

impl RunningJobs {
    pub(crate) fn add(&mut self, job: &Arc<DiskJob>) {
        self.writes += u64::from(job.direction == DiskDirection::Write);
        self.jobs.insert(job.copy, Arc::clone(job));
    }

    /// Removes a copy. Returns whether it was there.
    pub(crate) fn remove(&mut self, copy: CopyId) -> bool {
        let job = self.jobs.remove(&copy);
        let writes = |job: &Arc<DiskJob>| job.direction == DiskDirection::Write;
        self.writes -= u64::from(job.as_ref().is_some_and(writes));
        job.is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Number of reads, and of writes.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.jobs.len() as u64 - self.writes, self.writes)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<DiskJob>> {
        self.jobs.values()
    }
}

/// The entries and cells of a store. They are made, and dropped, without the book's lock.
#[derive(Debug)]
pub(crate) struct BookContents {
    entries: ByName<DiskEntry>,
    tails: TailNames,
    left: BTreeSet<EvictionTurn>,
    cells: Vec<Cells>,
}

impl BookContents {
    fn empty(shapes: &[CellShape]) -> Self {
        Self {
            entries: ByName::default(),
            tails: TailNames::default(),
            left: BTreeSet::new(),
            cells: shapes.iter().map(|it| Cells::new(it.cell_bytes)).collect(),
        }
    }

    /// The content of an index.
    pub(crate) fn of(shapes: &[CellShape], places: Vec<(Name, IndexRecord)>) -> Self {
        let mut contents = Self::empty(shapes);
        for (class, shape) in shapes.iter().enumerate() {
            let of_it = places.iter().filter(|(_, place)| place.class == class);
            let taken: Vec<u64> = of_it.map(|(_, place)| place.cell).collect();
            contents.cells[class] = Cells::over(shape.cell_bytes, &taken);
        }
        let turns = places.iter().map(|(name, place)| turn(name, place));
        contents.left = turns.collect();
        for (name, place) in places {
            let known = false;
            contents.tails.add(&name);
            contents.entries.insert(name, DiskEntry { place, known });
        }
        contents
    }

    /// For each class, where its last cell ends, and the gaps before it.
    pub(crate) fn room(&self) -> Vec<(u64, Vec<std::ops::Range<u64>>)> {
        let cells = self.cells.iter();
        cells.map(|cells| (cells.end(), cells.gaps())).collect()
    }
}

/// All knowledge about a disk. A cell is taken only if all bytes together stay within the quota.
#[derive(Debug)]
pub(crate) struct Book {
    /// The clock.
    door: Arc<dyn Door>,
    pub(crate) quota: u64,
    pub(crate) store: Option<Arc<DiskStore>>,
    pub(crate) epoch: u64,
    /// Whether a store has been opened.
    pub(crate) connected: bool,
    /// Whether the disk was cleared before a store was opened.
    pub(crate) cleared_early: bool,
    pub(crate) entries: ByName<DiskEntry>,
    /// The tails among the entries.
    tails: TailNames,
    /// Entries that this cache does not know, in the order in which they leave.
    left: BTreeSet<EvictionTurn>,
    cells: Vec<Cells>,
    /// Cells that are being read: the number of reads, and whether to give the cell back after the last one.
    reading: HashMap<(usize, u64), (u32, bool)>,
    /// Writes under way that are still wanted.
    pub(crate) writing: HashMap<Name, Arc<DiskJob>>,
    /// Copies that have not ended.
    pub(crate) running: RunningJobs,
    /// Changes that are not in the index yet.
    pub(crate) changes: Rows<Change>,
    /// Entries written since the start.
    pub(crate) published: u64,
    /// How many of the published entries outlive the process.
    pub(crate) durable: u64,
    /// Other identities, the one used longest ago in front.
    pub(crate) others: VecDeque<Other>,
    pub(crate) trash: Vec<Trash>,
    /// Bytes that threads are giving back now.
    giving: u64,
}

impl Book {
    pub(crate) fn new(quota: u64, shapes: &[CellShape], door: Arc<dyn Door>) -> Self {
        let BookContents {
            entries,
            tails,
            left,
            cells,
        } = BookContents::empty(shapes);
        Self {
            door,
            quota,
            store: None,
            epoch: 0,
            connected: false,
            cleared_early: false,
            entries,
            tails,
            left,
            cells,
            reading: HashMap::new(),
            writing: HashMap::new(),
            running: RunningJobs::default(),
            changes: Rows::default(),
            published: 0,
            durable: 0,
            others: VecDeque::new(),
            trash: Vec::new(),
            giving: 0,
        }
    }

    /// Takes over other contents. Returns those that there were.
    pub(crate) fn replace(&mut self, contents: BookContents) -> BookContents {
        BookContents {
            entries: std::mem::replace(&mut self.entries, contents.entries),
            tails: std::mem::replace(&mut self.tails, contents.tails),
            left: std::mem::replace(&mut self.left, contents.left),
            cells: std::mem::replace(&mut self.cells, contents.cells),
        }
    }

    pub(crate) fn left_over(&self) -> usize {
        self.left.len()
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.cells.iter().map(Cells::live_bytes).sum()
    }

    /// Bytes outside this identity's cells.
    pub(crate) fn other_bytes(&self) -> u64 {
        let others: u64 = self.others.iter().map(|other| other.bytes).sum();
        let trash: u64 = self.trash.iter().map(|trash| trash.bytes).sum();
        others + trash + self.giving
    }

    /// All bytes that count against the quota.
    pub(crate) fn footprint(&self) -> u64 {
        let stale: u64 = self.cells.iter().map(Cells::stale_bytes).sum();
        self.live_bytes() + stale + self.other_bytes()
    }

    /// Whether the next write needs the room of an entry that an earlier process left.
    pub(crate) fn left_fills_it(&self) -> bool {
        let cell = self.cells.iter().map(Cells::cell_bytes).max();
        let needed = self.live_bytes() + self.other_bytes() + cell.unwrap_or_default();
        !self.left.is_empty() && self.others.is_empty() && needed > self.quota
    }

    /// Looks an entry up. If it is there, it counts as used and known from now on.
    pub(crate) fn find(&mut self, name: &Name) -> Option<BookFinding> {
        self.store.as_ref()?;
        let record = self.entries.get(name)?;
        let age = minute(&*self.door).saturating_sub(record.place.used);
        let found = BookFinding {
            sums: record.place.sums.to_vec(),
            unused: (!record.known).then(|| age.saturating_mul(1000)),
        };
        self.know(name)?;
        Some(found)
    }

    /// Whether an entry would be found.
    pub(crate) fn has(&self, name: &Name) -> bool {
        self.store.is_some() && self.entries.contains(name)
    }

    /// Adds the numbers of tokens of the tails of a group.
    pub(crate) fn tail_lengths(&self, group: u64, lengths: &mut Vec<u32>) {
        if self.store.is_some() {
            self.tails.lengths(group, lengths);
        }
    }

    /// Marks an entry as used and known.
    pub(crate) fn know(&mut self, name: &Name) -> Option<()> {
        let record = self.entries.get_mut(name)?;
        if !record.known {
            self.left.remove(&turn(name, &record.place));
            record.known = true;
        }
        self.note_use(name)
    }

    /// Notes a use of an entry, which the cache may not know any more.
    pub(crate) fn note_use(&mut self, name: &Name) -> Option<()> {
        let record = self.entries.get_mut(name)?;
        let now = minute(&*self.door);
        if record.place.used < now {
            let before = turn(name, &record.place);
            record.place.used = now;
            if self.left.remove(&before) {
                self.left.insert(turn(name, &record.place));
            }
            let place = record.place.clone();
            self.change(*name, Some(place));
        }
        Some(())
    }

    /// Notes that the cache does not know an entry any more.
    pub(crate) fn forget(&mut self, name: &Name) {
        if let Some(record) = self.entries.get_mut(name) {
            record.known = false;
            self.left.insert(turn(name, &record.place));
        }
    }

    /// Notes a change for the index, also before a store is opened. A store without an index needs none.
    fn change(&mut self, name: Name, place: Option<IndexRecord>) {
        if self.store.as_ref().is_none_or(|store| store.persistent) {
            self.changes.push((name, place));
        }
    }

    /// Adds an entry that is whole on disk.
    pub(crate) fn publish(&mut self, name: Name, place: IndexRecord) {
        self.remove(&name);
        self.published += 1;
        self.change(name, Some(place.clone()));
        self.tails.add(&name);
        self.entries.insert(name, DiskEntry { place, known: true });
    }

    /// Removes an entry. Its cell is given back when no thread reads it.
    pub(crate) fn remove(&mut self, name: &Name) {
        let Some(DiskEntry { place, known }) = self.entries.remove(name) else {
            return;
        };
        self.tails.remove(name);
        if !known {
            self.left.remove(&turn(name, &place));
        }
        self.change(*name, None);
        self.give_cell(place.class, place.cell);
    }

    /// Removes an entry if it is still in this cell.
    pub(crate) fn remove_from(&mut self, name: &Name, class: usize, cell: u64) {
        let at = self
            .entries
            .get(name)
            .map(|it| (it.place.class, it.place.cell));
        if at == Some((class, cell)) {
            self.remove(name);
        }
    }

    /// Undoes the write of an entry that is under way and not wanted any more.
    pub(crate) fn undo_write(&mut self, name: &Name) {
        if let Some(job) = self.writing.remove(name) {
            job.undo();
        }
    }

    pub(crate) fn begin_read(&mut self, class: usize, cell: u64) {
        self.reading.entry((class, cell)).or_default().0 += 1;
    }

    pub(crate) fn end_read(&mut self, class: usize, cell: u64) {
        let Some((readers, doomed)) = self.reading.get_mut(&(class, cell)) else {
            return;
        };
        *readers -= 1;
        if *readers == 0 {
            let doomed = *doomed;
            self.reading.remove(&(class, cell));
            if doomed {
                self.cells[class].give(cell);
            }
        }
    }

    pub(crate) fn give_cell(&mut self, class: usize, cell: u64) {
        match self.reading.get_mut(&(class, cell)) {
            Some((_, doomed)) => *doomed = true,
            None => self.cells[class].give(cell),
        }
    }

    /// Takes a cell for an entry, if the quota has room now.
    pub(crate) fn take_cell(&mut self, class: usize) -> Option<u64> {
        let footprint = self.footprint();
        if footprint <= self.quota
            && let Some(cell) = self.cells[class].take_stale()
        {
            return Some(cell);
        }
        let after = footprint.checked_add(self.cells[class].cell_bytes())?;
        (after <= self.quota).then(|| self.cells[class].take_new())
    }

    /// Chooses what to remove to make room: first stale cells, then the directory of another identity or the entry of
    /// an earlier process that was used longest ago.
    pub(crate) fn next_victim(&mut self) -> Victim {
        let stale = self.cells.iter_mut().enumerate();
        let cell = stale
            .filter(|(_, cells)| cells.stale_bytes() > 0)
            .find_map(|(class, cells)| Some((class, cells.take_to_punch()?, cells.cell_bytes())));
        if let Some((class, cell, bytes)) = cell {
            self.giving += bytes;
            return Victim::Cell(class, cell);
        }
        if let Some(trash) = self.take_trash() {
            return Victim::Directory(trash);
        }
        if self.giving > 0 {
            return Victim::Wait;
        }
        let left = self.left.first().map(|&(used, _, _, name)| (used, name));
        let other = self.others.front().map(|other| other.used);
        match (left, other) {
            (Some((used, name)), other) if other.is_none_or(|other| used < other) => {
                self.remove(&name);
                Victim::Entry
            }
            (_, Some(_)) => {
                let Some(Other { name, bytes, .. }) = self.others.pop_front() else {
                    return Victim::Nobody;
                };
                self.giving += bytes;
                Victim::Directory(Trash { name, bytes })
            }
            _ => Victim::Nobody,
        }
    }

    /// Takes a directory that can be removed at once, before room is needed.
    pub(crate) fn take_trash(&mut self) -> Option<Trash> {
        let trash = self.trash.pop()?;
        self.giving += trash.bytes;
        Some(trash)
    }

    /// Adds an empty directory to those to be removed.
    pub(crate) fn throw_away(&mut self, name: String) {
        self.trash.push(Trash { name, bytes: 0 });
    }

    /// Notes that a cell of the store with this epoch was punched.
    pub(crate) fn punched(&mut self, epoch: u64, class: usize, cell: u64) {
        let bytes = self.cells[class].cell_bytes();
        self.giving -= bytes;
        if epoch == self.epoch {
            self.cells[class].punched(cell);
        }
    }

    /// Notes that a directory was removed. If that failed, its bytes stay counted, and other bytes have to go.
    pub(crate) fn removed(&mut self, trash: Trash, gone: bool) {
        self.giving -= trash.bytes;
        if !gone {
            self.quota = self.quota.saturating_sub(trash.bytes);
        }
    }

    /// Forgets everything, and undoes writes under way. The bytes of the store will be removed with the directory
    /// `aside`. Returns what was known, and what the index had not taken yet, to be dropped without the lock.
    #[must_use]
    pub(crate) fn clear(
        &mut self,
        shapes: &[CellShape],
        aside: Option<String>,
    ) -> (BookContents, Rows<Change>) {
        for (_, job) in self.writing.drain() {
            job.undo();
        }
        let stale: u64 = self.cells.iter().map(Cells::stale_bytes).sum();
        let bytes = self.live_bytes() + stale;
        if let Some(name) = aside {
            self.trash.push(Trash { name, bytes });
        }
        self.epoch += 1;
        self.store = None;
        self.reading.clear();
        let changes = std::mem::take(&mut self.changes);
        self.durable = self.published;
        (self.replace(BookContents::empty(shapes)), changes)
    }

    /// The entries of one [part](hybrid_pages_tiers::PARTS), as changes that make a new index.
    pub(crate) fn snapshot(&self, part: usize) -> impl Iterator<Item = Change> {
        let record = |(name, record): (&Name, &DiskEntry)| (*name, Some(record.place.clone()));
        self.entries.part(part).map(record)
    }

    /// The first contradiction, for tests.
    pub(crate) fn audit(&self) -> Option<String> {
        let mut cells = HashSet::new();
        for (_, record) in self.entries.all() {
            if !cells.insert((record.place.class, record.place.cell)) {
                return Some(format!("two entries in {:?}", record.place));
            }
        }
        let mut tails = TailNames::default();
        self.entries.names().for_each(|name| tails.add(name));
        if tails != self.tails {
            return Some("the tails are others than the entries say".into());
        }
        let unknown = self.entries.all().filter(|(_, it)| !it.known).count();
        if unknown != self.left.len() {
            return Some(format!("{unknown} unknown, {} left over", self.left.len()));
        }
        let used: u64 = self
            .entries
            .all()
            .map(|(_, record)| self.cells[record.place.class].cell_bytes())
            .sum();
        let idle = self.running.is_empty() && self.reading.is_empty();
        if idle && used != self.live_bytes() {
            return Some(format!(
                "{used} bytes of entries, {} of cells",
                self.live_bytes()
            ));
        }
        // A disk that is being opened removes what a lower quota has no room for before it is used.
        if idle && self.connected && self.live_bytes() + self.other_bytes() > self.quota {
            return Some(format!(
                "{} bytes over a quota of {}",
                self.footprint(),
                self.quota
            ));
        }
        None
    }
}

/// The start of the current minute, in seconds since 1970.
pub(crate) fn minute(door: &dyn Door) -> u64 {
    door.seconds() / USE_SECONDS * USE_SECONDS
}
