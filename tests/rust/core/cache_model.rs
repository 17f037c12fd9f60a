//! Random calls against a model that keeps plain lists and looks everything up by definition.

use crate::cache_support;

use std::collections::{BTreeMap, HashSet};

use cache_support::{Small, engines, keys};
use hybrid_pages::cache::{ClassConfig, LeaseEntry, ReadLease, Skipped, WriteLease};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey, SlotId};
use hybrid_pages::prefix::{Hit, Missing};
use proptest::prelude::*;

/// A class and the prefix that it stands for: `abc` for block 2 of `abcd`.
type Place = (usize, String);

#[derive(Debug, Clone)]
struct Entry {
    place: Place,
    slots: Vec<SlotId>,
    checksum: Option<u64>,
    holds: usize,
    /// Of these, the holds that are not by a deeper page alone: only they keep its slots when it is dropped.
    direct: usize,
    known: bool,
}

/// Identities, and the letters of their prompts: the same place has the same keys in both.
const IDENTITIES: [&[u8]; 2] = [b"engine", b"adapter"];
const LETTERS: [[char; 2]; 2] = [['a', 'b'], ['c', 'd']];

/// Which identity a prompt belongs to.
fn identity(prompt: &str) -> usize {
    usize::from(prompt.starts_with(LETTERS[1]))
}

struct Model {
    classes: Vec<ClassConfig>,
    slots: usize,
    /// By the order of their making.
    entries: BTreeMap<u64, Entry>,
    made: u64,
    /// Holds on each identity.
    namespaces: [u64; 2],
    /// Prefixes that have an entry, and had a checkpoint that went.
    gone: HashSet<String>,
    /// Entries that nobody holds, the next to go first.
    order: Vec<u64>,
    evicted: BTreeMap<ClassKind, u64>,
    reclaimed: u64,
    /// Slots of prefixes of which writers hold the last page alone.
    alone: usize,
}

/// What a lease holds.
#[derive(Default)]
struct Held {
    /// The deepest first.
    all: Vec<u64>,
    direct: Vec<u64>,
    /// Slots of the prefix of which it holds the last page alone.
    alone: usize,
}

struct Reserved {
    ids: Vec<u64>,
    held: Held,
    skipped: Skipped,
}

impl Model {
    fn new(classes: &[ClassConfig], slots: usize) -> Self {
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

    fn kind(&self, class: usize) -> ClassKind {
        self.classes[class].kind
    }

    fn of_kind(&self, kind: ClassKind) -> impl Iterator<Item = usize> {
        (0..self.classes.len()).filter(move |&class| self.kind(class) == kind)
    }

    fn page(&self) -> Option<usize> {
        self.of_kind(ClassKind::Attention).next()
    }

    fn size(&self, id: u64) -> usize {
        self.classes[self.entries[&id].place.0].slots_per_entry
    }

    fn used(&self) -> usize {
        self.entries.keys().map(|&id| self.size(id)).sum()
    }

    fn known(&self, class: usize, prefix: &str) -> Option<u64> {
        let at = |entry: &Entry| entry.known && entry.place.0 == class && entry.place.1 == prefix;
        self.entries
            .iter()
            .find(|(_, entry)| at(entry))
            .map(|(&id, _)| id)
    }

    fn resident(&self, class: usize, prefix: &str) -> bool {
        self.known(class, prefix)
            .is_some_and(|id| self.entries[&id].checksum.is_some())
    }

    /// Whether an identity has a number: held, or with an entry that lookups or writers know.
    fn has_number(&self, which: usize) -> bool {
        let of_it = |entry: &Entry| entry.known && identity(&entry.place.1) == which;
        self.namespaces[which] > 0 || self.entries.values().any(of_it)
    }

    /// Prefixes whose entry a resumption after `blocks` blocks needs, a class at a time.
    fn needs(&self, class: usize, blocks: usize) -> std::ops::Range<usize> {
        match self.kind(class) {
            ClassKind::Attention => 0..blocks,
            ClassKind::Window => blocks.saturating_sub(self.classes[class].window_blocks)..blocks,
            ClassKind::Recurrent => blocks - 1..blocks,
        }
    }

    fn hit(&self, prompt: &str) -> Hit {
        let whole = |class: usize, mut blocks: std::ops::Range<usize>| {
            blocks.all(|block| self.resident(class, &prompt[..=block]))
        };
        let can =
            |n: &usize| (0..self.classes.len()).all(|class| whole(class, self.needs(class, *n)));
        let blocks = (1..=prompt.len()).rev().find(can).unwrap_or(0);
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
        }
    }

    /// Why a prefix can't be resumed from though it has its pages.
    fn missing(&self, prefix: &str) -> Missing {
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

    fn hold(&mut self, ids: &[u64]) {
        for id in ids {
            self.entries.get_mut(id).unwrap().holds += 1;
            self.order.retain(|other| other != id);
        }
    }

    fn hold_directly(&mut self, ids: &[u64]) {
        for id in ids {
            self.entries.get_mut(id).unwrap().direct += 1;
        }
    }

    fn release(&mut self, held: &Held) {
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
    fn obtainable(&self) -> usize {
        let entries = self.entries.iter();
        let direct = entries.filter(|(_, entry)| entry.direct > 0);
        self.slots - direct.map(|(&id, _)| self.size(id)).sum::<usize>()
    }

    /// The last page that the host has before what a store looks at, if holding it holds all before it.
    fn tip(&self, prompt: &str, offered: &[(usize, usize)], last: usize) -> Option<(usize, usize)> {
        let page = self.page()?;
        let windows = self.of_kind(ClassKind::Window);
        let seen = windows.map(|class| self.needs(class, last + 1).start).min();
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
    fn forget(&mut self, ids: &[u64]) -> u64 {
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

    fn acquire(&mut self, prompt: &str, first: usize) -> Option<(Vec<u64>, Held)> {
        let n = self.hit(prompt).blocks;
        if n <= first {
            return None;
        }
        let needed = |class: usize, block: usize| {
            self.needs(class, n)
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

    fn reserve(&mut self, prompt: &str, offered: &[(usize, usize)]) -> Reserved {
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
                    && self.needs(class, last + 1).contains(&block);
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
            let (unit, others) = rest
                .into_iter()
                .partition(|&(class, block)| self.needs(class, target + 1).contains(&block));
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

struct Read {
    lease: ReadLease,
    loads: Vec<u64>,
    held: Held,
}

struct Write {
    lease: WriteLease,
    ids: Vec<u64>,
    held: Held,
}

struct Both {
    real: Small,
    model: Model,
    reads: Vec<Read>,
    writes: Vec<Write>,
    sums: u64,
    /// The last number of each identity.
    numbers: [NamespaceId; 2],
}

#[derive(Debug, Clone)]
enum Call {
    Lookup(String),
    Acquire(String, usize),
    Reserve(String, Vec<(usize, usize)>),
    Commit(usize),
    Abort(usize),
    Release(usize),
    Invalidate(usize),
    Clear,
    Hold(usize),
    LetGo(usize),
}

impl Both {
    fn new(classes: &[ClassConfig], slots: usize) -> Self {
        let (real, model) = (Small::new(classes, slots), Model::new(classes, slots));
        let numbers = [real.namespace, real.cache.namespace(IDENTITIES[1]).unwrap()];
        Self {
            real,
            model,
            reads: vec![],
            writes: vec![],
            sums: 0,
            numbers,
        }
    }

    /// How the cache is asked for a prompt.
    fn ask(&self, prompt: &str) -> (NamespaceId, Vec<PrefixKey>) {
        let which = identity(prompt);
        let [a, b] = LETTERS[which];
        let same = prompt.replace(a, "a").replace(b, "b");
        (self.numbers[which], keys(&same))
    }

    fn hit(&self, prompt: &str) -> hybrid_pages::error::Result<Hit> {
        let (namespace, keys) = self.ask(prompt);
        self.real.cache.lookup(namespace, &keys)
    }

    /// A lease names what the model says, in slots that nobody else owns.
    fn check_lease(&self, entries: &[LeaseEntry], ids: &[u64]) {
        assert_eq!(entries.len(), ids.len());
        for (entry, id) in entries.iter().zip(ids) {
            let known = &self.model.entries[id];
            assert_eq!(
                (entry.class_index, entry.block_index + 1),
                (known.place.0, known.place.1.len())
            );
            assert_eq!(entry.slots[..], known.slots);
            assert_eq!(entry.checksums, Vec::from_iter(known.checksum));
        }
    }

    fn run(&mut self, call: Call) {
        match call {
            Call::Lookup(prompt) | Call::Acquire(prompt, _) | Call::Reserve(prompt, _)
                if !self.model.has_number(identity(&prompt)) =>
            {
                let (namespace, keys) = self.ask(&prompt);
                assert!(self.hit(&prompt).is_err());
                assert!(self.real.cache.acquire(namespace, &keys, 0).is_err());
                assert!(
                    self.real
                        .cache
                        .reserve(namespace, &keys, &[(0, 0)])
                        .is_err()
                );
            }
            Call::Lookup(prompt) => assert_eq!(self.hit(&prompt), Ok(self.model.hit(&prompt))),
            Call::Acquire(prompt, first) => {
                let (namespace, keys) = self.ask(&prompt);
                let lease = self.real.cache.acquire(namespace, &keys, first).unwrap();
                let expected = self.model.acquire(&prompt, first);
                assert_eq!(lease.is_some(), expected.is_some());
                let (Some(lease), Some((loads, held))) = (lease, expected) else {
                    return;
                };
                self.check_lease(lease.entries(), &loads);
                self.reads.push(Read { lease, loads, held });
            }
            Call::Reserve(prompt, mut entries) => {
                entries.retain(|&(class, block)| {
                    class < self.model.classes.len() && block < prompt.len()
                });
                let (namespace, keys) = self.ask(&prompt);
                let lease = self.real.cache.reserve(namespace, &keys, &entries).unwrap();
                let Reserved { ids, held, skipped } = self.model.reserve(&prompt, &entries);
                assert_eq!(lease.skipped(), skipped);
                for (entry, id) in lease.entries().iter().zip(&ids) {
                    self.model
                        .entries
                        .get_mut(id)
                        .unwrap()
                        .slots
                        .clone_from(&entry.slots.to_vec());
                }
                self.check_lease(lease.entries(), &ids);
                self.writes.push(Write { lease, ids, held });
            }
            Call::Commit(at) if !self.writes.is_empty() => {
                let Write {
                    mut lease,
                    ids,
                    held,
                } = self.writes.swap_remove(at % self.writes.len());
                let mut published = 0;
                let mut sums = Vec::new();
                for id in &ids {
                    self.sums += 1;
                    sums.push([self.sums]);
                    let entry = self.model.entries.get_mut(id).unwrap();
                    if entry.known {
                        entry.checksum = Some(self.sums);
                        let (class, prefix) = entry.place.clone();
                        if self.model.kind(class) == ClassKind::Recurrent {
                            self.model.gone.remove(&prefix);
                        }
                        published += 1;
                    }
                }
                assert_eq!(lease.commit(&sums), Ok(published));
                self.model.release(&held);
            }
            Call::Abort(at) if !self.writes.is_empty() => {
                let Write { lease, ids, held } = self.writes.swap_remove(at % self.writes.len());
                drop(lease);
                self.model.reclaimed += self.model.forget(&ids);
                self.model.release(&held);
            }
            Call::Release(at) if !self.reads.is_empty() => {
                let Read {
                    mut lease, held, ..
                } = self.reads.swap_remove(at % self.reads.len());
                lease.release();
                self.model.release(&held);
            }
            Call::Invalidate(at) if !self.reads.is_empty() => {
                let Read { lease, loads, .. } = &self.reads[at % self.reads.len()];
                let known = loads
                    .iter()
                    .filter(|id| self.model.entries[id].known)
                    .count() as u64;
                let dropped = self.model.forget(loads);
                self.model.reclaimed += dropped - known;
                assert_eq!(self.real.cache.invalidate(lease), Ok(dropped as usize));
            }
            Call::Clear => {
                let all: Vec<u64> = self.model.entries.keys().copied().collect();
                let dropped = self.model.forget(&all);
                assert_eq!(self.real.cache.clear(), dropped as usize);
            }
            Call::Hold(which) => {
                let number = self.real.cache.namespace(IDENTITIES[which]).unwrap();
                let same = number == self.numbers[which];
                assert_eq!(same, self.model.has_number(which));
                assert!(same || self.numbers.iter().all(|old| number.0 > old.0));
                self.numbers[which] = number;
                self.model.namespaces[which] += 1;
            }
            Call::LetGo(which) => {
                let holds = self.model.namespaces[which];
                let released = self.real.cache.release_namespace(self.numbers[which]);
                assert_eq!(released.is_ok(), holds > 0);
                self.model.namespaces[which] = holds.saturating_sub(1);
            }
            Call::Commit(_) | Call::Abort(_) | Call::Release(_) | Call::Invalidate(_) => {}
        }
    }

    fn check(&self) {
        assert_eq!(self.real.cache.audit(), None);
        let (stats, model) = (self.real.stats(), &self.model);
        let resident = |kind| {
            let there = model
                .entries
                .values()
                .filter(|entry| entry.known && entry.checksum.is_some());
            there
                .filter(|entry| model.kind(entry.place.0) == kind)
                .count() as u64
        };
        let evicted = |kind| model.evicted.get(&kind).copied().unwrap_or_default();
        let writing: usize = self.writes.iter().map(|write| write.ids.len()).sum();
        assert_eq!(stats.free_slots as usize, model.slots - model.used());
        assert_eq!(
            stats.leased_slots as usize,
            model.slots - model.obtainable()
        );
        assert_eq!(stats.pages, resident(ClassKind::Attention));
        assert_eq!(stats.windows, resident(ClassKind::Window));
        assert_eq!(stats.checkpoints, resident(ClassKind::Recurrent));
        assert_eq!(stats.evicted_pages, evicted(ClassKind::Attention));
        assert_eq!(stats.evicted_windows, evicted(ClassKind::Window));
        assert_eq!(stats.evicted_checkpoints, evicted(ClassKind::Recurrent));
        assert_eq!(stats.reclaimed, model.reclaimed);
        assert_eq!(stats.writing_entries as usize, writing);
        let known = model.entries.values().filter(|entry| entry.known);
        let prefixes: HashSet<&str> = known.map(|entry| entry.place.1.as_str()).collect();
        assert_eq!(stats.nodes as usize, prefixes.len());
        for (which, &number) in self.numbers.iter().enumerate() {
            let known = self.real.cache.lookup(number, &[]).is_ok();
            assert_eq!(known, model.has_number(which));
        }
        // A slot has one owner, and it is the one that the model saw it given to.
        let mut owned = HashSet::new();
        assert!(
            model
                .entries
                .values()
                .flat_map(|entry| &entry.slots)
                .all(|slot| owned.insert(slot))
        );
        for read in &self.reads {
            self.check_lease(read.lease.entries(), &read.loads);
        }
    }
}

fn prompts() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[ab]{1,6}", 1 => "[cd]{1,6}"]
}

fn calls() -> impl Strategy<Value = Call> {
    let some = prop::collection::vec((0..4_usize, 0..6_usize), 0..8);
    // What a connector offers: all of a prompt's entries, or those of its tail.
    let tail = (0..6_usize).prop_map(|from| {
        (from..6)
            .flat_map(|block| (0..4).map(move |class| (class, block)))
            .collect::<Vec<_>>()
    });
    prop_oneof![
        2 => prompts().prop_map(Call::Lookup),
        4 => (prompts(), 0..3_usize).prop_map(|(prompt, first)| Call::Acquire(prompt, first)),
        8 => (prompts(), prop_oneof![some, tail]).prop_map(|(prompt, entries)| Call::Reserve(prompt, entries)),
        6 => any::<usize>().prop_map(Call::Commit),
        2 => any::<usize>().prop_map(Call::Abort),
        4 => any::<usize>().prop_map(Call::Release),
        1 => any::<usize>().prop_map(Call::Invalidate),
        1 => Just(Call::Clear),
        2 => (0..2_usize).prop_map(Call::Hold),
        2 => (0..2_usize).prop_map(Call::LetGo),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_does_what_the_model_does(
        classes in prop::sample::select(engines()),
        spare in 0..14_usize,
        calls in prop::collection::vec(calls(), 1..80),
    ) {
        let slots = classes.iter().map(|class| class.slots_per_entry).sum::<usize>() + spare;
        let mut both = Both::new(&classes, slots);
        for call in calls {
            both.run(call);
            both.check();
        }
        // Every lease ends; then every slot is free or evictable, and clearing frees them all.
        both.reads.clear();
        both.writes.clear();
        prop_assert_eq!(both.real.stats().leased_slots, 0);
        both.real.cache.clear();
        prop_assert_eq!(both.real.stats().free_slots as usize, slots);
    }

    #[test]
    fn any_bytes_are_a_key_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let key = hybrid_pages::ids::PrefixKey::new(&bytes);
        prop_assert_eq!(key.is_ok(), (8..=32).contains(&bytes.len()));
        if let Ok(key) = key {
            prop_assert_eq!(key.as_bytes(), &bytes[..]);
        }
    }
}

#[test]
fn keys_of_one_prompt_are_all_different() {
    assert_eq!(keys("aaaa").into_iter().collect::<HashSet<_>>().len(), 4);
}
