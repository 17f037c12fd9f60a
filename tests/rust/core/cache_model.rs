//! Random calls against a model that keeps plain lists and looks everything up by definition.

use std::collections::HashSet;

use hybrid_pages::cache::{ClassConfig, LeaseEntry, ReadLease, WriteLease};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::prefix::Hit;
use proptest::prelude::*;

use crate::cache_reference::{Held, IDENTITIES, LETTERS, Model, Reserved, identity};
use crate::cache_support::{Small, engines, keys};

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
    prop_oneof![3 => "[ab]{1,6}", 1 => "[cd]{1,6}", 2 => "[ab]{0,5}[AB]"]
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
