//! A simulated remote store: packs of entries, and the requests that write, find and read them.
//!
//! An engine gathers entries in a pack, and sends the pack when it is large or its first entry has waited long
//! enough. A pack is an object whose key begins with the time, and whose first bytes are a table of its entries. To
//! find packs of others, an engine lists the keys after the last one that it knows, and gets the table of each new
//! pack. One request gets a run of neighbouring entries of a pack.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::network::NetworkLink;
use crate::store_load::{PackFormat, StoreLoad};

/// The place of an entry: a pack, and the entry's number in the pack.
#[derive(Clone, Copy)]
struct PackPlace {
    pack: u32,
    place: u32,
}

const NOWHERE: PackPlace = PackPlace {
    pack: u32::MAX,
    place: 0,
};
/// Stands for the time from which a pack can be read while it is not sent yet.
const NEVER: u64 = u64::MAX;

struct SimulatedPack {
    engine: u32,
    entries: u32,
    bytes: u64,
    opened: u64,
    /// Time from which the pack can be read, in ms.
    there: u64,
}

/// A number of packs, and the number of entries in them.
#[derive(Clone, Copy, Default)]
struct Counted {
    packs: u64,
    entries: u64,
}

/// An engine's knowledge of the store's content.
#[derive(Clone, Default)]
struct EngineIndex {
    /// When the engine last looked for new packs; `None` before the first time.
    looked: Option<u64>,
    /// When the engine last listed everything.
    whole: u64,
    /// Packs that were there when the engine last looked.
    known: Counted,
    /// The engine's own packs that are there now.
    own: Counted,
    /// The engine's own packs that were there when it last looked.
    own_known: Counted,
    open: Option<u32>,
}

pub(crate) struct SimulatedPacks {
    packing: PackFormat,
    link: NetworkLink,
    packs: Vec<SimulatedPack>,
    /// Place of each entry, by kind and block.
    spots: [Vec<PackPlace>; 2],
    engines: Vec<EngineIndex>,
    /// Packs that were opened, the oldest first. Some are closed already.
    open: VecDeque<u32>,
    /// Packs that are being sent, by the time at which they can be read.
    on_the_way: BinaryHeap<Reverse<(u64, u32)>>,
    /// Packs that can be read, those to be deleted first in front.
    stored: VecDeque<u32>,
    there: Counted,
    /// The times from which packs could be read, deleted packs included.
    came: Vec<u64>,
    /// Number of packs in the store.
    pub(crate) live_packs: u64,
    /// Number of entries in the store's packs.
    pub(crate) live_entries: u64,
    /// Bytes of the store's packs.
    pub(crate) live_bytes: u64,
    /// The load of each second.
    pub(crate) seconds: Vec<StoreLoad>,
}

impl SimulatedPacks {
    pub(crate) fn new(
        packing: PackFormat,
        link: NetworkLink,
        blocks: usize,
        engines: usize,
    ) -> Self {
        Self {
            packing,
            link,
            packs: Vec::new(),
            spots: [vec![NOWHERE; blocks], vec![NOWHERE; blocks]],
            engines: vec![EngineIndex::default(); engines],
            open: VecDeque::new(),
            on_the_way: BinaryHeap::new(),
            stored: VecDeque::new(),
            there: Counted::default(),
            came: Vec::new(),
            live_packs: 0,
            live_entries: 0,
            live_bytes: 0,
            seconds: Vec::new(),
        }
    }

    fn load(&mut self, now: u64) -> &mut StoreLoad {
        let second = (now / 1000) as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, StoreLoad::default());
        }
        &mut self.seconds[second]
    }

    const fn size(&self, kind: usize) -> u64 {
        [self.link.page_bytes, self.link.checkpoint_bytes][kind]
    }

    /// Advances the time, and does everything that is due until then.
    pub(crate) fn advance(&mut self, now: u64) {
        while let Some(&pack) = self.open.front() {
            let due = self.packs[pack as usize]
                .opened
                .saturating_add(self.packing.wait);
            let engine = self.packs[pack as usize].engine as usize;
            let still = self.engines[engine].open == Some(pack);
            if still && due > now {
                break;
            }
            self.open.pop_front();
            if still {
                self.send(engine, due);
            }
        }
        while let Some(&Reverse((there, pack))) = self.on_the_way.peek() {
            if there > now {
                break;
            }
            self.on_the_way.pop();
            let SimulatedPack {
                engine,
                entries,
                bytes,
                ..
            } = self.packs[pack as usize];
            for count in [&mut self.there, &mut self.engines[engine as usize].own] {
                count.packs += 1;
                count.entries += u64::from(entries);
            }
            self.came.push(there);
            self.live_packs += 1;
            self.live_entries += u64::from(entries);
            self.live_bytes = self.live_bytes.saturating_add(bytes);
            self.stored.push_back(pack);
        }
        let Some(retention) = self.packing.retention else {
            return;
        };
        while let Some(&pack) = self.stored.front() {
            let pack = &self.packs[pack as usize];
            if pack.there.saturating_add(retention) > now {
                break;
            }
            self.live_packs -= 1;
            self.live_entries -= u64::from(pack.entries);
            self.live_bytes = self.live_bytes.saturating_sub(pack.bytes);
            self.stored.pop_front();
        }
    }

    /// Sends the open pack of an engine.
    fn send(&mut self, engine: usize, now: u64) {
        let Some(open) = self.engines[engine].open.take() else {
            return;
        };
        let table = self
            .packing
            .table(1, u64::from(self.packs[open as usize].entries));
        let pack = &mut self.packs[open as usize];
        pack.bytes = pack.bytes.saturating_add(table);
        let bytes = pack.bytes;
        let takes = (self.link.fetch(bytes) * 1000.0).ceil() as u64;
        pack.there = now.saturating_add(takes).min(NEVER - 1);
        self.on_the_way.push(Reverse((pack.there, open)));
        let load = self.load(now);
        load.puts += 1;
        load.up_bytes = load.up_bytes.saturating_add(bytes);
    }

    /// Counts a lookup by an engine. If the engine's index is too old, it lists the store and gets new tables.
    pub(crate) fn look(&mut self, engine: usize, now: u64) {
        let packing = self.packing;
        let there = self.there;
        let index = &mut self.engines[engine];
        if index
            .looked
            .is_some_and(|looked| now - looked < packing.stale)
        {
            return;
        }
        let own_packs = index.own.packs - index.own_known.packs;
        let own_entries = index.own.entries - index.own_known.entries;
        // An engine that looks for the first time does not find deleted packs.
        let new = (there.packs - index.known.packs).min(self.live_packs);
        let entries = (there.entries - index.known.entries).min(self.live_entries);
        let (tables, rows) = (
            new.saturating_sub(own_packs),
            entries.saturating_sub(own_entries),
        );
        let keys = match index.looked {
            Some(looked) if now - index.whole < packing.whole => {
                let from = looked.saturating_sub(packing.overlap);
                let older = self.came.partition_point(|&came| came <= from) as u64;
                (there.packs - older).min(self.live_packs)
            }
            _ => {
                index.whole = now;
                self.live_packs
            }
        };
        index.looked = Some(now);
        (index.known, index.own_known) = (there, index.own);
        let load = self.load(now);
        load.looks += 1;
        // After a full reply there may be more keys, so one more request is made.
        load.lists += 1 + keys / packing.list_keys;
        load.table_gets += tables;
        load.table_bytes = load.table_bytes.saturating_add(packing.table(tables, rows));
    }

    fn alive(&self, pack: &SimulatedPack, now: u64) -> bool {
        let retention = self.packing.retention;
        pack.there == NEVER
            || retention.is_none_or(|retention| now < pack.there.saturating_add(retention))
    }

    /// Whether an engine can get an entry.
    pub(crate) fn has(&self, engine: usize, kind: usize, block: usize, now: u64) -> bool {
        let spot = self.spots[kind][block];
        let Some(pack) = self.packs.get(spot.pack as usize) else {
            return false;
        };
        let looked = self.engines[engine].looked.unwrap_or(0);
        let own = pack.engine as usize == engine;
        pack.there <= if own { now } else { looked } && self.alive(pack, now)
    }

    /// Counts the requests by which an engine gets entries, each given as a kind and a block.
    pub(crate) fn fetch(&mut self, now: u64, entries: impl Iterator<Item = (usize, usize)>) {
        let entry = |(kind, block): (usize, usize)| (self.spots[kind][block], self.size(kind));
        let mut wanted: Vec<(PackPlace, u64)> = entries.map(entry).collect();
        wanted.sort_unstable_by_key(|(spot, _)| (spot.pack, spot.place));
        let (mut gets, mut bytes) = (0, 0);
        let mut run: Option<(PackPlace, u64)> = None;
        for (spot, size) in wanted {
            bytes = u64::saturating_add(bytes, size);
            run = match run {
                Some((last, length))
                    if last.pack == spot.pack
                        && last.place + 1 == spot.place
                        && length.saturating_add(size) <= self.packing.run_bytes =>
                {
                    Some((spot, length + size))
                }
                _ => {
                    gets += 1;
                    Some((spot, size))
                }
            };
        }
        let load = self.load(now);
        load.data_gets += gets;
        load.down_bytes = load.down_bytes.saturating_add(bytes);
    }

    /// Adds an entry to an engine's open pack, unless the engine knows that the entry is in the store or on the way
    /// there.
    pub(crate) fn store(&mut self, engine: usize, kind: usize, block: usize, now: u64) {
        let spot = self.spots[kind][block];
        let mut elsewhere = false;
        if let Some(pack) = self.packs.get(spot.pack as usize)
            && self.alive(pack, now)
        {
            let looked = self.engines[engine].looked.unwrap_or(0);
            if pack.engine as usize == engine || pack.there <= looked {
                return;
            }
            elsewhere = true;
        }
        let open = self.engines[engine].open.unwrap_or_else(|| {
            let pack = self.packs.len() as u32;
            self.packs.push(SimulatedPack {
                engine: engine as u32,
                entries: 0,
                bytes: 0,
                opened: now,
                there: NEVER,
            });
            self.engines[engine].open = Some(pack);
            self.open.push_back(pack);
            pack
        });
        let size = self.size(kind);
        let pack = &mut self.packs[open as usize];
        let place = pack.entries;
        pack.entries += 1;
        pack.bytes = pack.bytes.saturating_add(size);
        let full = pack.bytes >= self.packing.pack_bytes;
        // If two packs have an entry, engines find the first.
        if !elsewhere {
            self.spots[kind][block] = PackPlace { pack: open, place };
        }
        if full {
            self.send(engine, now);
        }
    }
}
