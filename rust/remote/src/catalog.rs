//! What the store is known to have: the tables of all packs that were listed.

use std::collections::BTreeMap;

use hashbrown::{HashMap, HashSet};
use hybrid_pages::tier::Name;

use crate::class::Class;
use crate::pack::{PackId, PackName, Record, Table};

/// Where an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) pack: PackId,
    pub(crate) class: usize,
    pub(crate) offset: u64,
    pub(crate) sums: Box<[u64]>,
}

/// Entries by name, and the packs that they are in.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    entries: HashMap<Name, Spot>,
    /// Where entries are that another pack has, too.
    spare: HashMap<Name, Spot>,
    packs: BTreeMap<PackId, PackName>,
    /// Packs that are none, so that they are looked at once.
    refused: HashSet<PackId>,
    /// Writers who have taken back what they wrote.
    gone: HashSet<u64>,
    bytes: u64,
}

impl Catalog {
    pub(crate) fn find(&self, name: &Name) -> Option<&Spot> {
        self.entries.get(name)
    }

    pub(crate) fn pack(&self, id: PackId) -> Option<PackName> {
        self.packs.get(&id).copied()
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn packs(&self) -> usize {
        self.packs.len()
    }

    /// Payload of the entries.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the table of a pack is still to be read.
    pub(crate) fn wants(&self, pack: PackId) -> bool {
        !self.packs.contains_key(&pack)
            && !self.refused.contains(&pack)
            && !self.gone.contains(&pack.writer)
    }

    pub(crate) fn refuse(&mut self, pack: PackId) {
        self.refused.insert(pack);
    }

    /// Takes a pack in. Of entries that two packs have, the one that is known counts, and this process's own.
    pub(crate) fn add(&mut self, name: PackName, table: Table, classes: &[Class], own: bool) {
        if self.gone.contains(&name.id.writer) {
            return;
        }
        self.packs.insert(name.id, name);
        for record in table.records {
            let Record {
                name: entry,
                class,
                offset,
                sums,
            } = record;
            let spot = Spot {
                pack: name.id,
                class,
                offset,
                sums,
            };
            // The cache counts on what it was told: another engine may have computed other bits.
            if !own && self.entries.contains_key(&entry) {
                self.spare.insert(entry, spot);
                continue;
            }
            self.bytes += classes[class].bytes;
            if let Some(old) = self.entries.insert(entry, spot) {
                self.bytes -= classes[old.class].bytes;
            }
        }
    }

    /// The entry of that pack is no longer counted on.
    pub(crate) fn remove(&mut self, name: &Name, pack: Option<PackId>, classes: &[Class]) {
        let known = self.entries.get(name);
        if known.is_some_and(|spot| pack.is_none_or(|pack| pack == spot.pack))
            && let Some(spot) = self.entries.remove(name)
        {
            self.bytes -= classes[spot.class].bytes;
            self.use_spare(*name, classes);
        }
    }

    /// Another pack may have an entry that was lost.
    fn use_spare(&mut self, name: Name, classes: &[Class]) {
        let spare = self.spare.remove(&name);
        if let Some(spot) = spare.filter(|spot| self.packs.contains_key(&spot.pack)) {
            self.bytes += classes[spot.class].bytes;
            self.entries.insert(name, spot);
        }
    }

    /// These packs are gone.
    pub(crate) fn remove_packs(&mut self, gone: &HashSet<PackId>, classes: &[Class]) {
        if !gone.iter().any(|id| self.packs.contains_key(id)) {
            return;
        }
        self.packs.retain(|id, _| !gone.contains(id));
        let (bytes, mut lost) = (&mut self.bytes, Vec::new());
        self.entries.retain(|name, spot| {
            let stays = !gone.contains(&spot.pack);
            if !stays {
                *bytes -= classes[spot.class].bytes;
                lost.push(*name);
            }
            stays
        });
        for name in lost {
            self.use_spare(name, classes);
        }
        let packs = &self.packs;
        self.spare.retain(|_, spot| packs.contains_key(&spot.pack));
    }

    /// A writer has taken back what it wrote.
    pub(crate) fn take_back(&mut self, writer: u64, classes: &[Class]) {
        if self.gone.insert(writer) {
            let packs = self.packs.keys().copied();
            let gone = packs.filter(|pack| pack.writer == writer).collect();
            self.remove_packs(&gone, classes);
        }
    }

    /// A whole listing had these packs: others are gone, but for those that were made later.
    pub(crate) fn keep(&mut self, listed: &HashSet<PackId>, made_by: u64, classes: &[Class]) {
        let packs = self.packs.keys().copied();
        let gone = packs.filter(|pack| pack.made < made_by && !listed.contains(pack));
        let gone = gone.collect();
        self.remove_packs(&gone, classes);
        self.refused.retain(|pack| listed.contains(pack));
    }

    /// Forgets the oldest packs beyond so many entries. Returns whether it had to.
    pub(crate) fn shrink(&mut self, most: usize, classes: &[Class]) -> bool {
        if self.entries.len() <= most {
            return false;
        }
        let mut per_pack: HashMap<PackId, usize> = HashMap::new();
        for spot in self.entries.values() {
            *per_pack.entry(spot.pack).or_default() += 1;
        }
        // A tenth more, so that it isn't done again for every new pack.
        let mut excess = self.entries.len() - most + most / 10;
        let mut gone = HashSet::new();
        for id in self.packs.keys() {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(per_pack.get(id).copied().unwrap_or(0));
            gone.insert(*id);
        }
        self.refused.extend(&gone);
        self.remove_packs(&gone, classes);
        true
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.spare.clear();
        self.packs.clear();
        self.bytes = 0;
    }
}
