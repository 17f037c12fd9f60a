//! The catalog: the tables of all packs that this engine knows to be in the store.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use hashbrown::HashSet;
use hybrid_pages_tiers::{ByName, EntrySize, Name, TailNames};

use crate::pack::{PackId, PackName, PackRecord};

/// The place of an entry: the pack, and the place in the pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackSpot {
    pub(crate) pack: PackId,
    pub(crate) class: usize,
    pub(crate) offset: u64,
    pub(crate) sums: Box<[u64]>,
}

/// Most packs that are handled while the lock is held once.
const PART: usize = 1024;
/// Most entries that are handled while the lock is held once, since the cache may wait for it.
pub(crate) const PORTION: usize = 64;

/// Entries by name, and the packs that they are in. The time of a call depends only on the packs that it is about.
#[derive(Debug)]
pub(crate) struct Catalog {
    /// Most entries in all packs.
    most: usize,
    entries: ByName<PackSpot>,
    /// The tails among the entries.
    tails: TailNames,
    /// Other places of entries that several packs have.
    spare: ByName<PackSpot>,
    packs: BTreeMap<PackId, CatalogPack>,
    /// Number of entries in all packs. An entry that several packs have counts several times.
    records: usize,
    /// Objects that have the name of a pack but hold no pack of this identity. They are not read again.
    refused: BTreeSet<PackId>,
    /// Packs that were gone when they were read. A store may still list them for a while.
    missed: HashSet<PackId>,
    /// Writers that have taken back all their packs.
    gone: HashSet<u64>,
    /// The newest pack without room in the catalog. Older packs have none either.
    forgotten: Option<PackId>,
    bytes: u64,
}

#[derive(Debug)]
struct CatalogPack {
    name: PackName,
    entries: Vec<Name>,
    /// Whether some of its entries were removed, and the others will be.
    leaves: bool,
}

impl Catalog {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            entries: ByName::default(),
            tails: TailNames::default(),
            spare: ByName::default(),
            packs: BTreeMap::new(),
            records: 0,
            refused: BTreeSet::new(),
            missed: HashSet::new(),
            gone: HashSet::new(),
            forgotten: None,
            bytes: 0,
        }
    }

    pub(crate) fn find(&self, name: &Name) -> Option<&PackSpot> {
        self.entries.get(name)
    }

    /// Adds the numbers of tokens of the tails of a group. Returns whether there are any.
    pub(crate) fn tail_lengths(&self, group: u64, lengths: &mut Vec<u32>) -> bool {
        self.tails.lengths(group, lengths)
    }

    pub(crate) fn pack(&self, id: PackId) -> Option<PackName> {
        self.packs.get(&id).map(|pack| pack.name)
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn packs(&self) -> usize {
        self.packs.len()
    }

    /// Total payload of the entries in bytes.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the table of a pack should be read.
    pub(crate) fn wants(&self, pack: PackId) -> bool {
        !self.packs.contains_key(&pack)
            && !self.refused.contains(&pack)
            && !self.missed.contains(&pack)
            && !self.gone.contains(&pack.writer)
            && self.forgotten.is_none_or(|forgotten| pack > forgotten)
    }

    pub(crate) fn refuse(&mut self, pack: PackId) {
        self.refused.insert(pack);
    }

    /// Notes that a pack is gone.
    pub(crate) fn miss(&mut self, pack: PackId) {
        self.missed.insert(pack);
    }

    /// Allows another read of packs that were gone, in case they are still listed.
    pub(crate) fn look_again(&mut self) {
        self.missed.clear();
    }

    /// Adds a pack, of which so many entries come next. Returns whether it is wanted.
    pub(crate) fn begin(&mut self, name: PackName, entries: usize) -> bool {
        if self.gone.contains(&name.id.writer) || self.packs.contains_key(&name.id) {
            return false;
        }
        let (entries, leaves) = (Vec::with_capacity(entries), false);
        let pack = CatalogPack {
            name,
            entries,
            leaves,
        };
        self.packs.insert(name.id, pack);
        true
    }

    /// Adds an entry of a pack, unless the pack is to go. If another pack has the entry, too, that one stays in use,
    /// unless the new pack is this process's own.
    pub(crate) fn add(&mut self, id: PackId, record: PackRecord, classes: &[EntrySize], own: bool) {
        let Some(pack) = self.packs.get_mut(&id).filter(|pack| !pack.leaves) else {
            return;
        };
        let PackRecord {
            name: entry,
            class,
            offset,
            sums,
        } = record;
        pack.entries.push(entry);
        self.records += 1;
        let spot = PackSpot {
            pack: id,
            class,
            offset,
            sums,
        };
        // The cache relies on the checksums it got before, and another engine may have computed other bits.
        if !own && self.entries.contains(&entry) {
            self.spare.insert(entry, spot);
            return;
        }
        self.bytes += classes[class].bytes;
        match self.entries.insert(entry, spot) {
            Some(old) => self.bytes -= classes[old.class].bytes,
            None => self.tails.add(&entry),
        }
    }

    /// Forgets some of the oldest pack if there are too many entries. Returns whether it did: then it is called again,
    /// since a pack is forgotten as a whole.
    pub(crate) fn shrink(&mut self, classes: &[EntrySize]) -> bool {
        let Some((&oldest, pack)) = self.packs.first_key_value() else {
            return false;
        };
        if self.records <= self.most && !pack.leaves {
            return false;
        }
        self.forgotten = self.forgotten.max(Some(oldest));
        self.remove_some(oldest, classes);
        true
    }

    /// Removes an entry, if its place is in this pack; with `None`, wherever it is.
    pub(crate) fn remove(&mut self, name: &Name, pack: Option<PackId>, classes: &[EntrySize]) {
        let known = self.entries.get(name);
        if known.is_some_and(|spot| pack.is_none_or(|pack| pack == spot.pack))
            && let Some(spot) = self.entries.remove(name)
        {
            self.bytes -= classes[spot.class].bytes;
            // Another pack may have the entry, too.
            if let Some(spot) = self.spare.remove(name) {
                self.bytes += classes[spot.class].bytes;
                self.entries.insert(*name, spot);
            } else {
                self.tails.remove(name);
            }
        }
    }

    /// Forgets some entries of a pack that the store does not have any more, whether its table was added or refused.
    /// Returns whether there are more.
    pub(crate) fn remove_some(&mut self, id: PackId, classes: &[EntrySize]) -> bool {
        self.refused.remove(&id);
        let Some(pack) = self.packs.get_mut(&id) else {
            return false;
        };
        pack.leaves = true;
        let left = pack.entries.len().saturating_sub(PORTION);
        let names = pack.entries.split_off(left);
        if left == 0 {
            self.packs.remove(&id);
        }
        self.records -= names.len();
        for name in &names {
            if self.spare.get(name).is_some_and(|spot| spot.pack == id) {
                self.spare.remove(name);
            }
            self.remove(name, Some(id), classes);
        }
        left > 0
    }

    /// Notes that a writer has taken back its packs, so that none is added any more. False if that was known.
    pub(crate) fn take_back(&mut self, writer: u64) -> bool {
        self.gone.insert(writer)
    }

    /// The next known or refused packs after `last`, in order. Empty at the end.
    pub(crate) fn after(&self, last: Option<PackId>) -> Vec<PackId> {
        let from = (last.map_or(Unbounded, Excluded), Unbounded);
        let packs = self.packs.range(from).map(|(&id, _)| id).take(PART);
        let refused = self.refused.range(from).copied().take(PART);
        let mut part: Vec<PackId> = packs.chain(refused).collect();
        part.sort_unstable();
        part.truncate(PART);
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::PackTable;

    const CLASSES: [EntrySize; 1] = [EntrySize {
        shard_bytes: 10,
        bytes: 10,
        slots: 1,
    }];

    fn add(catalog: &mut Catalog, made: u64, names: &[u8], own: bool) -> bool {
        let id = id(made);
        let entries: Vec<(Name, usize, &[u64])> =
            names.iter().map(|&name| ([name; 32], 0, &[][..])).collect();
        let name = PackName { id, table_bytes: 0 };
        assert!(catalog.begin(name, names.len()));
        for record in PackTable::of(&entries, &CLASSES).records {
            catalog.add(id, record, &CLASSES, own);
        }
        let mut full = false;
        while catalog.shrink(&CLASSES) {
            full = true;
        }
        full
    }

    fn remove_pack(catalog: &mut Catalog, id: PackId) {
        while catalog.remove_some(id, &CLASSES) {}
    }

    const fn id(made: u64) -> PackId {
        PackId {
            made,
            writer: made % 2,
            number: 0,
        }
    }

    fn found(catalog: &Catalog) -> Vec<(u8, u64)> {
        let mut found: Vec<_> = (0..100)
            .filter_map(|name| Some((name, catalog.find(&[name; 32])?.pack.made)))
            .collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn entries_leave_with_their_packs_unless_another_has_them() {
        let mut catalog = Catalog::new(100);
        add(&mut catalog, 1, &[1, 2], false);
        add(&mut catalog, 2, &[2, 3], false);
        add(&mut catalog, 3, &[3, 4], true);
        assert_eq!(found(&catalog), [(1, 1), (2, 1), (3, 3), (4, 3)]);
        remove_pack(&mut catalog, id(1));
        assert_eq!(found(&catalog), [(2, 2), (3, 3), (4, 3)]);
        remove_pack(&mut catalog, id(2));
        assert_eq!(found(&catalog), [(3, 3), (4, 3)]);
        assert_eq!((catalog.bytes(), catalog.records), (20, 2));
        remove_pack(&mut catalog, id(3));
        let empty = catalog.entries.is_empty() && catalog.spare.is_empty();
        assert!(empty && catalog.packs.is_empty() && catalog.tails.is_empty());
        assert_eq!((catalog.bytes(), catalog.records), (0, 0));
    }

    #[test]
    fn the_oldest_packs_make_room_and_are_not_wanted_again() {
        let mut catalog = Catalog::new(5);
        assert!(!add(&mut catalog, 4, &[1, 2], true));
        assert!(!add(&mut catalog, 5, &[3, 4], true));
        assert!(add(&mut catalog, 6, &[5, 6], true), "the first has to go");
        assert_eq!(found(&catalog), [(3, 5), (4, 5), (5, 6), (6, 6)]);
        assert!(!catalog.wants(id(4)) && !catalog.wants(id(3)) && catalog.wants(id(7)));
    }

    #[test]
    fn a_pack_leaves_a_portion_at_a_time_and_takes_nothing_more() {
        let mut catalog = Catalog::new(1 << 20);
        let (id, many) = (id(1), 2 * PORTION + 7);
        let record = |number: usize| PackRecord {
            name: *blake3::hash(&number.to_le_bytes()).as_bytes(),
            class: 0,
            offset: 0,
            sums: Box::default(),
        };
        let table_bytes = 0;
        assert!(catalog.begin(PackName { id, table_bytes }, many));
        (0..many).for_each(|number| catalog.add(id, record(number), &CLASSES, false));
        assert!(catalog.remove_some(id, &CLASSES));
        assert_eq!(catalog.entries(), many - PORTION);
        catalog.add(id, record(many), &CLASSES, false);
        assert!(!catalog.wants(id) && !catalog.begin(PackName { id, table_bytes }, 1));
        assert_eq!(catalog.entries(), many - PORTION);
        // What leaves is forgotten as a whole, also where there is room now.
        while catalog.shrink(&CLASSES) {}
        assert_eq!(
            (catalog.entries(), catalog.packs(), catalog.bytes()),
            (0, 0, 0)
        );
    }

    #[test]
    fn packs_are_looked_through_a_part_at_a_time() {
        let mut catalog = Catalog::new(1 << 20);
        for made in 0..2 * PART as u64 + 7 {
            if made % 3 == 0 {
                catalog.refuse(id(made));
            } else {
                add(&mut catalog, made, &[1], false);
            }
        }
        let (mut last, mut seen) = (None, Vec::new());
        loop {
            let part = catalog.after(last);
            assert!(part.len() <= PART);
            last = part.last().copied();
            if last.is_none() {
                break;
            }
            seen.extend(part.iter().map(|id| id.made));
        }
        assert!(seen.into_iter().eq(0..2 * PART as u64 + 7));
    }
}
