//! A remote store as objects: packs of entries, and the requests that writing, finding and reading them takes.
//!
//! An engine gathers entries in a pack, and sends it when it is large or its first entry has waited. An object's
//! key begins with the time, and its first bytes are a table of its entries. To learn what others have sent, an
//! engine lists the keys after the last one that it knows, and gets the table of each new pack. It gets entries
//! by one request for each run of neighbours in a pack.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::link::Link;
use crate::load::{Load, Packing};

/// Where an entry is.
#[derive(Clone, Copy)]
struct Spot {
    pack: u32,
    place: u32,
}

const NOWHERE: Spot = Spot {
    pack: u32::MAX,
    place: 0,
};
/// Of a pack that nobody can read yet.
const NEVER: u64 = u64::MAX;

struct Pack {
    engine: u32,
    entries: u32,
    bytes: u64,
    opened: u64,
    /// When it is there, in ms.
    there: u64,
}

/// Packs that are there, or that an engine knows.
#[derive(Clone, Copy, Default)]
struct Counted {
    packs: u64,
    entries: u64,
}

/// What an engine knows.
#[derive(Clone, Default)]
struct Index {
    /// When it looked; `None` before it ever did.
    looked: Option<u64>,
    /// When it listed everything.
    whole: u64,
    /// Of what was there then.
    known: Counted,
    /// Of its own packs: what is there now, and what was when it looked.
    own: Counted,
    own_known: Counted,
    open: Option<u32>,
}

pub(crate) struct Packs {
    packing: Packing,
    link: Link,
    packs: Vec<Pack>,
    /// By kind, then by block.
    spots: [Vec<Spot>; 2],
    engines: Vec<Index>,
    /// Open packs, the oldest first; some are closed already.
    open: VecDeque<u32>,
    /// By when they will be there.
    on_the_way: BinaryHeap<Reverse<(u64, u32)>>,
    /// In the order in which they will be deleted.
    stored: VecDeque<u32>,
    there: Counted,
    /// When each pack that is or was there came.
    came: Vec<u64>,
    /// Of what is there and not deleted.
    pub(crate) live_packs: u64,
    pub(crate) live_entries: u64,
    pub(crate) live_bytes: u64,
    /// By second.
    pub(crate) seconds: Vec<Load>,
}

impl Packs {
    pub(crate) fn new(packing: Packing, link: Link, blocks: usize, engines: usize) -> Self {
        Self {
            packing,
            link,
            packs: Vec::new(),
            spots: [vec![NOWHERE; blocks], vec![NOWHERE; blocks]],
            engines: vec![Index::default(); engines],
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

    fn load(&mut self, now: u64) -> &mut Load {
        let second = (now / 1000) as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, Load::default());
        }
        &mut self.seconds[second]
    }

    const fn size(&self, kind: usize) -> u64 {
        [self.link.page_bytes, self.link.checkpoint_bytes][kind]
    }

    /// What happens until a time.
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
            let Pack {
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

    /// Sends an engine's pack.
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

    /// A lookup of an engine: it lists and gets tables if its index is old.
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
        // Who looks for the first time finds only what is not deleted.
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
        // A full reply says that there may be more.
        load.lists += 1 + keys / packing.list_keys;
        load.table_gets += tables;
        load.table_bytes = load.table_bytes.saturating_add(packing.table(tables, rows));
    }

    fn alive(&self, pack: &Pack, now: u64) -> bool {
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

    /// An engine gets entries, each a kind and a block.
    pub(crate) fn fetch(&mut self, now: u64, entries: impl Iterator<Item = (usize, usize)>) {
        let entry = |(kind, block): (usize, usize)| (self.spots[kind][block], self.size(kind));
        let mut wanted: Vec<(Spot, u64)> = entries.map(entry).collect();
        wanted.sort_unstable_by_key(|(spot, _)| (spot.pack, spot.place));
        let (mut gets, mut bytes) = (0, 0);
        let mut run: Option<(Spot, u64)> = None;
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

    /// An engine puts an entry unless it knows that it is there or on the way.
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
            self.packs.push(Pack {
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
        // Who comes second is not found: the first is as good.
        if !elsewhere {
            self.spots[kind][block] = Spot { pack: open, place };
        }
        if full {
            self.send(engine, now);
        }
    }
}
