//! A cache as plain lists, in which everything is looked up by definition: what the real one is compared with.

use std::collections::{BTreeMap, HashSet};

use hybrid_pages::cache::{ClassConfig, Skipped};
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::prefix::{Hit, Missing};

use crate::cache_support::is_tail;

/// A class and the prefix that it stands for: `abc` for block 2 of `abcd`.
pub type Place = (usize, String);

#[derive(Debug, Clone)]
pub struct Entry {
    pub place: Place,
    pub slots: Vec<SlotId>,
    pub checksum: Option<u64>,
    pub holds: usize,
    /// Of these, the holds that are not by a deeper page alone: only they keep its slots when it is dropped.
    pub direct: usize,
    pub known: bool,
}

/// Identities, and the letters of their prompts: the same place has the same keys in both.
pub const IDENTITIES: [&[u8]; 2] = [b"engine", b"adapter"];
pub const LETTERS: [[char; 2]; 2] = [['a', 'b'], ['c', 'd']];

/// Which identity a prompt belongs to.
pub fn identity(prompt: &str) -> usize {
    usize::from(prompt.starts_with(LETTERS[1]))
}

pub struct Model {
    pub classes: Vec<ClassConfig>,
    pub slots: usize,
    /// By the order of their making.
    pub entries: BTreeMap<u64, Entry>,
    pub made: u64,
    /// Holds on each identity.
    pub namespaces: [u64; 2],
    /// Prefixes that have an entry, and had a checkpoint that went.
    pub gone: HashSet<String>,
    /// Entries that nobody holds, the next to go first.
    pub order: Vec<u64>,
    pub evicted: BTreeMap<ClassKind, u64>,
    pub reclaimed: u64,
    /// Slots of prefixes of which writers hold the last page alone.
    pub alone: usize,
}

/// What a lease holds.
#[derive(Default)]
pub struct Held {
    /// The deepest first.
    pub all: Vec<u64>,
    pub direct: Vec<u64>,
    /// Slots of the prefix of which it holds the last page alone.
    pub alone: usize,
}

pub struct Reserved {
    pub ids: Vec<u64>,
    pub held: Held,
    pub skipped: Skipped,
}

impl Model {
    pub fn new(classes: &[ClassConfig], slots: usize) -> Self {
        Self {
            classes: classes.to_vec(),
            slots,
            entries: BTreeMap::new(),
            made: 0,
            namespaces: [1; 2],
            gone: HashSet::new(),
            order: Vec::new(),
            evicted: BTreeMap::new(),
            reclaimed: 0,
            alone: 0,
        }
    }

    pub fn kind(&self, class: usize) -> ClassKind {
        self.classes[class].kind
    }

    pub fn of_kind(&self, kind: ClassKind) -> impl Iterator<Item = usize> {
        (0..self.classes.len()).filter(move |&class| self.kind(class) == kind)
    }

    pub fn page(&self) -> Option<usize> {
        self.of_kind(ClassKind::Attention).next()
    }

    pub fn size(&self, id: u64) -> usize {
        self.classes[self.entries[&id].place.0].slots_per_entry
    }

    pub fn used(&self) -> usize {
        self.entries.keys().map(|&id| self.size(id)).sum()
    }

    pub fn known(&self, class: usize, prefix: &str) -> Option<u64> {
        let at = |entry: &Entry| entry.known && entry.place.0 == class && entry.place.1 == prefix;
        self.entries
            .iter()
            .find(|(_, entry)| at(entry))
            .map(|(&id, _)| id)
    }

    pub fn resident(&self, class: usize, prefix: &str) -> bool {
        self.known(class, prefix)
            .is_some_and(|id| self.entries[&id].checksum.is_some())
    }

    /// Whether an identity has a number: held, or with an entry that lookups or writers know.
    pub fn has_number(&self, which: usize) -> bool {
        let of_it = |entry: &Entry| entry.known && identity(&entry.place.1) == which;
        self.namespaces[which] > 0 || self.entries.values().any(of_it)
    }

    /// Prefixes whose entry a resumption after `blocks` blocks of a prompt needs, a class at a time. At a tail a window
    /// sees one page more.
    pub fn needs(&self, class: usize, prompt: &str, blocks: usize) -> std::ops::Range<usize> {
        let more = usize::from(is_tail(&prompt[..blocks]));
        let window = self.classes[class].window_blocks + more;
        match self.kind(class) {
            ClassKind::Attention => 0..blocks,
            ClassKind::Window => blocks.saturating_sub(window)..blocks,
            ClassKind::Recurrent => blocks - 1..blocks,
        }
    }

    pub fn hit(&self, prompt: &str) -> Hit {
        let whole = |class: usize, mut blocks: std::ops::Range<usize>| {
            blocks.all(|block| self.resident(class, &prompt[..=block]))
        };
        let can = |n: &usize| {
            (0..self.classes.len()).all(|class| whole(class, self.needs(class, prompt, *n)))
        };
        let blocks = (1..=prompt.len()).rev().find(can).unwrap_or(0);
        let known = |class: usize, block: usize| self.known(class, &prompt[..=block]).is_some();
        let coming = |n: &usize| {
            (0..self.classes.len()).all(|class| {
                self.needs(class, prompt, *n)
                    .all(|block| known(class, block))
            })
        };
        let pages = self.page().map_or(blocks, |page| {
            (0..=prompt.len())
                .rev()
                .find(|&n| whole(page, 0..n))
                .unwrap()
        });
        let missing = (blocks + 1..=pages).map(|n| self.missing(&prompt[..n]));
        Hit {
            blocks,
            pages,
            host: blocks,
            missing: missing.max(),
            asking: false,
            coming: (1..=prompt.len()).rev().find(coming).unwrap_or(0),
        }
    }

    /// Why a prefix can't be resumed from though it has its pages.
    pub fn missing(&self, prefix: &str) -> Missing {
        let Some(class) = self.of_kind(ClassKind::Recurrent).next() else {
            return Missing::Window;
        };
        match self.known(class, prefix) {
            Some(_) if self.resident(class, prefix) => Missing::Window,
            Some(_) => Missing::Writing,
            None if self.gone.contains(prefix) => Missing::Evicted,
            None => Missing::NeverMade,
        }
    }

    pub fn hold(&mut self, ids: &[u64]) {
        for id in ids {
            self.entries.get_mut(id).unwrap().holds += 1;
            self.order.retain(|other| other != id);
        }
    }

    pub fn hold_directly(&mut self, ids: &[u64]) {
        for id in ids {
            self.entries.get_mut(id).unwrap().direct += 1;
        }
    }

    pub fn release(&mut self, held: &Held) {
        self.alone -= held.alone;
        for id in &held.all {
            // What a deeper page alone held is gone if it was dropped.
            let Some(entry) = self.entries.get_mut(id) else {
                continue;
            };
            entry.holds -= 1;
            entry.direct -= usize::from(held.direct.contains(id));
            match (entry.holds, entry.known) {
                (0, true) => self.order.push(*id),
                (_, false) if entry.direct == 0 => drop(self.entries.remove(id)),
                _ => {}
            }
        }
    }

    /// Slots that are free, or whose entries have no direct hold.
    pub fn obtainable(&self) -> usize {
        let entries = self.entries.iter();
        let direct = entries.filter(|(_, entry)| entry.direct > 0);
        self.slots - direct.map(|(&id, _)| self.size(id)).sum::<usize>()
    }

    /// The last page that the host has before what a store looks at, if holding it holds all before it.
    pub fn tip(
        &self,
        prompt: &str,
        offered: &[(usize, usize)],
        last: usize,
    ) -> Option<(usize, usize)> {
        let page = self.page()?;
        let windows = self.of_kind(ClassKind::Window);
        let seen = windows
            .map(|class| self.needs(class, prompt, last + 1).start)
            .min();
        let wanted = offered.iter().map(|&(_, block)| block).min()?;
        let first = wanted.min(seen.unwrap_or(last + 1));
        let there = |&block: &usize| self.known(page, &prompt[..=block]).is_some();
        let block = (0..first).take_while(there).last()?;
        let size = |&(class, _): &(usize, usize)| self.classes[class].slots_per_entry;
        let pages =
            (0..self.classes.len()).filter(|&class| self.kind(class) != ClassKind::Recurrent);
        let alone = (block + 1) * pages.map(|class| size(&(class, 0))).sum::<usize>();
        let needed = alone + offered.iter().map(size).sum::<usize>();
        let holds = needed <= self.slots - self.used() || needed + self.alone <= self.obtainable();
        holds.then_some((block, alone))
    }

    /// Drops entries and all that is behind their pages; how many were resident.
    pub fn forget(&mut self, ids: &[u64]) -> u64 {
        let mut resident = 0;
        for id in ids {
            let Some(entry) = self.entries.get(id).filter(|entry| entry.known) else {
                continue;
            };
            let (class, top) = entry.place.clone();
            let behind = Some(class) == self.page();
            let goes =
                |at: &u64, entry: &Entry| at == id || behind && entry.place.1.starts_with(&top);
            let gone: Vec<u64> = self
                .entries
                .iter()
                .filter(|(at, entry)| entry.known && goes(at, entry))
                .map(|(&id, _)| id)
                .collect();
            for id in gone {
                let entry = self.entries.get_mut(&id).unwrap();
                entry.known = false;
                resident += u64::from(entry.checksum.is_some());
                let (class, prefix) = entry.place.clone();
                if entry.checksum.is_some() && self.classes[class].kind == ClassKind::Recurrent {
                    self.gone.insert(prefix);
                }
                let entry = &self.entries[&id];
                if entry.direct == 0 {
                    self.entries.remove(&id);
                    self.order.retain(|&other| other != id);
                }
            }
        }
        let known = self.entries.values().filter(|entry| entry.known);
        let prefixes: HashSet<&str> = known.map(|entry| entry.place.1.as_str()).collect();
        self.gone
            .retain(|prefix| prefixes.contains(prefix.as_str()));
        resident
    }

    pub fn acquire(&mut self, prompt: &str, first: usize) -> Option<(Vec<u64>, Held)> {
        let n = self.hit(prompt).blocks;
        if n <= first {
            return None;
        }
        let needed = |class: usize, block: usize| {
            self.needs(class, prompt, n)
                .contains(&block)
                .then(|| self.known(class, &prompt[..=block]).unwrap())
        };
        let mut held = Vec::new();
        let mut loads = Vec::new();
        for block in (0..n).rev() {
            for kind in [
                ClassKind::Recurrent,
                ClassKind::Window,
                ClassKind::Attention,
            ] {
                for id in self.of_kind(kind).filter_map(|class| needed(class, block)) {
                    held.push(id);
                    if block >= first {
                        loads.insert(0, id);
                    }
                }
            }
        }
        self.hold(&held);
        self.hold_directly(&held);
        let held = Held {
            direct: held.clone(),
            all: held,
            alone: 0,
        };
        Some((loads, held))
    }

    pub fn reserve(&mut self, prompt: &str, offered: &[(usize, usize)]) -> Reserved {
        let page = self.page();
        let order = |&(class, block): &(usize, usize)| (block, Some(class) != page, class);
        let Some(last) = offered.iter().map(|&(_, block)| block).max() else {
            return Reserved {
                ids: vec![],
                held: Held::default(),
                skipped: Skipped::default(),
            };
        };
        let mut skipped = Skipped::default();
        let mut wanted: Vec<(usize, usize)> = Vec::new();
        let mut held: Vec<((usize, usize), u64)> = Vec::new();
        let mut keep = |at: (usize, usize), id: u64| {
            if !held.contains(&(at, id)) {
                held.push((at, id));
            }
        };
        for &(class, block) in offered {
            if let Some(id) = self.known(class, &prompt[..=block]) {
                let resident = self.entries[&id].checksum.is_some();
                *(if resident {
                    &mut skipped.resident
                } else {
                    &mut skipped.in_writing
                }) += 1;
                keep((class, block), id);
            } else if wanted.contains(&(class, block)) {
                skipped.in_writing += 1;
            } else {
                wanted.push((class, block));
            }
        }
        for block in 0..=last {
            for class in 0..self.classes.len() {
                let in_chain = self.kind(class) != ClassKind::Recurrent
                    && self.needs(class, prompt, last + 1).contains(&block);
                if let Some(id) = self.known(class, &prompt[..=block]).filter(|_| in_chain) {
                    keep((class, block), id);
                }
            }
        }
        if let Some(page) = page {
            let there = |block: usize| {
                self.known(page, &prompt[..=block]).is_some() || wanted.contains(&(page, block))
            };
            let reached = |&&(_, block): &&(usize, usize)| (0..=block).all(there);
            let kept: Vec<_> = wanted.iter().filter(reached).copied().collect();
            skipped.orphan = wanted.len() - kept.len();
            wanted = kept;
        }
        wanted.sort_by_key(order);
        let tip = self.tip(prompt, offered, last);
        let direct = held
            .iter()
            .filter(|((_, block), _)| tip.is_none_or(|(tip, _)| *block >= tip));
        let mut direct: Vec<u64> = direct.map(|&(_, id)| id).collect();
        self.hold_directly(&direct);
        let alone = tip.map_or(0, |(_, slots)| slots);
        self.alone += alone;
        self.hold(&held.iter().map(|&(_, id)| id).collect::<Vec<_>>());

        // Checkpoints from the shallowest, each with all it needs; then the rest, block by block.
        let mut units: Vec<Vec<(usize, usize)>> = Vec::new();
        let mut rest = wanted.clone();
        let targets = wanted
            .iter()
            .filter(|&&(class, _)| self.kind(class) == ClassKind::Recurrent);
        for &(_, target) in targets {
            let (unit, others) = rest.into_iter().partition(|&(class, block)| {
                self.needs(class, prompt, target + 1).contains(&block)
            });
            units.push(unit);
            rest = others;
        }
        for block in 0..=last {
            units.push(rest.iter().filter(|at| at.1 == block).copied().collect());
        }
        let mut written = Vec::new();
        for unit in units {
            let size = |&(class, _): &(usize, usize)| self.classes[class].slots_per_entry;
            let needed: usize = unit.iter().map(size).sum();
            let evictable: usize = self.order.iter().map(|&id| self.size(id)).sum();
            if needed > self.slots - self.used() + evictable {
                break;
            }
            while needed > self.slots - self.used() {
                let victim = self.order[0];
                let kind = self.kind(self.entries[&victim].place.0);
                *self.evicted.entry(kind).or_default() += 1;
                self.reclaimed += self.forget(&[victim]) - 1;
            }
            for (class, block) in unit {
                self.made += 1;
                let place = (class, prompt[..=block].to_owned());
                let entry = Entry {
                    place,
                    slots: vec![],
                    checksum: None,
                    holds: 1,
                    direct: 1,
                    known: true,
                };
                self.entries.insert(self.made, entry);
                written.push(((class, block), self.made));
            }
        }
        skipped.no_room = wanted.len() - written.len();
        written.sort_by_key(|(at, _)| order(at));
        held.extend(&written);
        direct.extend(written.iter().map(|&(_, id)| id));
        held.sort_by_key(|(at, _)| std::cmp::Reverse(order(at)));
        Reserved {
            ids: written.into_iter().map(|(_, id)| id).collect(),
            held: Held {
                all: held.into_iter().map(|(_, id)| id).collect(),
                direct,
                alone,
            },
            skipped,
        }
    }
}
