//! The book: which entries and cells a disk has, in memory, and which go when room is needed.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::cells::Cells;
use crate::door::Door;
use crate::format::{Change, IndexRecord};
use crate::job::DiskJob;
use crate::path::folder::Other;
use crate::shape::CellShape;
use crate::store::DiskStore;
use hybrid_pages::tier::CopyId;
use hybrid_pages_tiers::Name;

/// Uses within one minute count as one: each costs a write to the index. What hangs from a page was used no later
/// than the page, to the minute, and of what was used in one minute the deepest goes first.
const USE_SECONDS: u64 = 60;

/// An entry that is whole on disk.
#[derive(Debug)]
pub(crate) struct DiskEntry {
    pub(crate) place: IndexRecord,
    /// Whether this cache knows it: has written it, or has found it again.
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

/// The order in which entries go: the one used longest ago first, then the deepest block, then the checkpoint of a
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

/// What is to go to make room.
#[derive(Debug)]
pub(crate) enum Victim {
    /// An entry, which has gone already.
    Entry,
    /// A stale cell is to be punched.
    Cell(usize, u64),
    /// A directory is to be removed.
    Directory(Trash),
    /// Somebody makes room at this moment.
    Wait,
    /// Nothing can go.
    Nobody,
}

/// Everything that is known of a disk. When a cell is taken, all bytes together do not exceed the quota.
#[derive(Debug)]
pub(crate) struct Book {
    /// Tells the time.
    door: Arc<dyn Door>,
    pub(crate) quota: u64,
    pub(crate) store: Option<Arc<DiskStore>>,
    pub(crate) epoch: u64,
    /// Whether a store has been opened.
    pub(crate) connected: bool,
    /// Whether the disk was cleared before a store was opened.
    pub(crate) cleared_early: bool,
    pub(crate) entries: HashMap<Name, DiskEntry>,
    /// Entries that this cache does not know, those to go first in front.
    left: BTreeSet<EvictionTurn>,
    cells: Vec<Cells>,
    /// Reads of a cell that are under way, and whether it is to be given back with the last.
    reading: HashMap<(usize, u64), (u32, bool)>,
    /// Writes under way that somebody wants.
    pub(crate) writing: HashMap<Name, Arc<DiskJob>>,
    /// Copies that have not ended.
    pub(crate) running: HashMap<CopyId, Arc<DiskJob>>,
    /// Changes that the index has not got yet.
    pub(crate) changes: Vec<Change>,
    /// Entries written since the start.
    pub(crate) published: u64,
    /// How many of the published entries outlive the process.
    pub(crate) durable: u64,
    /// Other identities, the one used longest ago in front.
    pub(crate) others: VecDeque<Other>,
    pub(crate) trash: Vec<Trash>,
    /// Bytes that somebody is giving back now.
    giving: u64,
}

impl Book {
    pub(crate) fn new(quota: u64, shapes: &[CellShape], door: Arc<dyn Door>) -> Self {
        Self {
            door,
            quota,
            store: None,
            epoch: 0,
            connected: false,
            cleared_early: false,
            entries: HashMap::new(),
            left: BTreeSet::new(),
            cells: shapes.iter().map(|it| Cells::new(it.cell_bytes)).collect(),
            reading: HashMap::new(),
            writing: HashMap::new(),
            running: HashMap::new(),
            changes: Vec::new(),
            published: 0,
            durable: 0,
            others: VecDeque::new(),
            trash: Vec::new(),
            giving: 0,
        }
    }

    /// Takes over the content of an index.
    pub(crate) fn fill(&mut self, shapes: &[CellShape], places: Vec<(Name, IndexRecord)>) {
        for (class, shape) in shapes.iter().enumerate() {
            let of_it = places.iter().filter(|(_, place)| place.class == class);
            let taken: Vec<u64> = of_it.map(|(_, place)| place.cell).collect();
            self.cells[class] = Cells::over(shape.cell_bytes, &taken);
        }
        for (name, place) in places {
            self.left.insert(turn(&name, &place));
            let known = false;
            self.entries.insert(name, DiskEntry { place, known });
        }
    }

    pub(crate) fn cells(&self) -> &[Cells] {
        &self.cells
    }

    pub(crate) fn left_over(&self) -> usize {
        self.left.len()
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.cells.iter().map(Cells::live_bytes).sum()
    }

    /// Bytes outside of this identity's cells.
    pub(crate) fn other_bytes(&self) -> u64 {
        let others: u64 = self.others.iter().map(|other| other.bytes).sum();
        let trash: u64 = self.trash.iter().map(|trash| trash.bytes).sum();
        others + trash + self.giving
    }

    /// Everything that the quota counts.
    pub(crate) fn footprint(&self) -> u64 {
        let stale: u64 = self.cells.iter().map(Cells::stale_bytes).sum();
        self.live_bytes() + stale + self.other_bytes()
    }

    /// Whether entries that earlier processes left have to go for what is written next.
    pub(crate) fn left_fills_it(&self) -> bool {
        let cell = self.cells.iter().map(Cells::cell_bytes).max();
        let needed = self.live_bytes() + self.other_bytes() + cell.unwrap_or_default();
        !self.left.is_empty() && self.others.is_empty() && needed > self.quota
    }

    /// Looks an entry up. It counts as used and known from now on.
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

    /// An entry is used, and known from now on.
    pub(crate) fn know(&mut self, name: &Name) -> Option<()> {
        let record = self.entries.get_mut(name)?;
        if !record.known {
            self.left.remove(&turn(name, &record.place));
            record.known = true;
        }
        self.note_use(name)
    }

    /// An entry was used; the cache may know it no longer.
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

    /// The cache does not know an entry any more.
    pub(crate) fn forget(&mut self, name: &Name) {
        if let Some(record) = self.entries.get_mut(name) {
            record.known = false;
            self.left.insert(turn(name, &record.place));
        }
    }

    /// Notes a change for the index. Changes before a store is opened are noted, too; a store without an index needs
    /// none.
    fn change(&mut self, name: Name, place: Option<IndexRecord>) {
        if self.store.as_ref().is_none_or(|store| store.persistent) {
            self.changes.push((name, place));
        }
    }

    /// An entry is whole on disk.
    pub(crate) fn publish(&mut self, name: Name, place: IndexRecord) {
        self.remove(&name);
        self.published += 1;
        self.change(name, Some(place.clone()));
        self.entries.insert(name, DiskEntry { place, known: true });
    }

    /// An entry is gone. Its cell is given back when nobody reads it.
    pub(crate) fn remove(&mut self, name: &Name) {
        let Some(DiskEntry { place, known }) = self.entries.remove(name) else {
            return;
        };
        if !known {
            self.left.remove(&turn(name, &place));
        }
        self.change(*name, None);
        self.give_cell(place.class, place.cell);
    }

    /// Removes an entry if it is still in that cell.
    pub(crate) fn remove_from(&mut self, name: &Name, class: usize, cell: u64) {
        let at = self
            .entries
            .get(name)
            .map(|it| (it.place.class, it.place.cell));
        if at == Some((class, cell)) {
            self.remove(name);
        }
    }

    /// Undoes the write of an entry that is under way: nobody wants it any more.
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

    /// A cell for an entry, if the quota has room now.
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

    /// Chooses what goes to make room: stale cells first, then what was used longest ago of other identities and of
    /// entries that earlier processes left.
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

    /// A directory to remove now, and not when room is needed.
    pub(crate) fn take_trash(&mut self) -> Option<Trash> {
        let trash = self.trash.pop()?;
        self.giving += trash.bytes;
        Some(trash)
    }

    /// An empty directory is to be removed.
    pub(crate) fn throw_away(&mut self, name: String) {
        self.trash.push(Trash { name, bytes: 0 });
    }

    /// A cell of the store of that epoch was punched.
    pub(crate) fn punched(&mut self, epoch: u64, class: usize, cell: u64) {
        let bytes = self.cells[class].cell_bytes();
        self.giving -= bytes;
        if epoch == self.epoch {
            self.cells[class].punched(cell);
        }
    }

    /// A directory was removed, or could not be: then its bytes stay counted and others have to go.
    pub(crate) fn removed(&mut self, trash: Trash, gone: bool) {
        self.giving -= trash.bytes;
        if !gone {
            self.quota = self.quota.saturating_sub(trash.bytes);
        }
    }

    /// Forgets everything; writes under way are undone. The bytes of the store are to be removed with the directory
    /// `aside`.
    pub(crate) fn clear(&mut self, shapes: &[CellShape], aside: Option<String>) {
        for (_, job) in self.writing.drain() {
            job.undo();
        }
        let stale: u64 = self.cells.iter().map(Cells::stale_bytes).sum();
        let bytes = self.live_bytes() + stale;
        if let Some(name) = aside {
            self.trash.push(Trash { name, bytes });
        }
        self.cells = shapes.iter().map(|it| Cells::new(it.cell_bytes)).collect();
        self.epoch += 1;
        self.store = None;
        self.entries = HashMap::new();
        self.left.clear();
        self.reading.clear();
        self.changes.clear();
        self.durable = self.published;
    }

    /// Every entry, for a new index.
    pub(crate) fn snapshot(&self) -> Vec<Change> {
        let record = |(name, record): (&Name, &DiskEntry)| (*name, Some(record.place.clone()));
        self.entries.iter().map(record).collect()
    }

    /// The first contradiction: for tests.
    pub(crate) fn audit(&self) -> Option<String> {
        let mut cells = HashSet::new();
        for record in self.entries.values() {
            if !cells.insert((record.place.class, record.place.cell)) {
                return Some(format!("two entries in {:?}", record.place));
            }
        }
        let unknown = self.entries.values().filter(|record| !record.known).count();
        if unknown != self.left.len() {
            return Some(format!("{unknown} unknown, {} left over", self.left.len()));
        }
        let used: u64 = self
            .entries
            .values()
            .map(|record| self.cells[record.place.class].cell_bytes())
            .sum();
        let idle = self.running.is_empty() && self.reading.is_empty();
        if idle && used != self.live_bytes() {
            return Some(format!(
                "{used} bytes of entries, {} of cells",
                self.live_bytes()
            ));
        }
        if idle && self.live_bytes() + self.other_bytes() > self.quota {
            return Some(format!(
                "{} bytes over a quota of {}",
                self.footprint(),
                self.quota
            ));
        }
        None
    }
}

/// Seconds since 1970 when this minute began.
pub(crate) fn minute(door: &dyn Door) -> u64 {
    door.seconds() / USE_SECONDS * USE_SECONDS
}
