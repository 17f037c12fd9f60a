//! What a follower is told: after any calls, what it was told is what lookups of the host find.

use crate::cache_support;

use std::collections::{BTreeMap, BTreeSet};

use cache_support::{
    CHECKPOINT, PAGE, Small, class, commit, engines, is_tail, keys, pages, universe,
};
use hybrid_pages::cache::{Cache, Changes, Medium, ReadLease, WriteLease};
use hybrid_pages::error::Error;
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use proptest::prelude::*;

fn note(prompt: &str) -> Box<[u8]> {
    prompt.as_bytes().into()
}

/// One that is told: the blocks that it knows, by namespace and key, with their prompts.
#[derive(Default)]
struct Listener(BTreeMap<(u32, Vec<u8>), String>);

impl Listener {
    /// Nothing is removed that is not there or stored that is, and the block before is always there.
    fn hear(&mut self, changes: Changes) {
        for removed in changes.removed {
            let name = (removed.namespace.0, removed.key.as_bytes().to_vec());
            let known = self.0.remove(&name).expect("a block that was stored");
            assert_eq!(removed.note, known.as_bytes());
            assert_eq!(removed.block_index + 1, known.len());
        }
        for span in changes.stored {
            let mut block = span.block_index;
            for (key, note) in span.blocks {
                let prompt = String::from_utf8(note).unwrap();
                assert_eq!(keys(&prompt).last(), Some(&key));
                block += 1;
                assert_eq!(prompt.len(), block);
                if let Some(before) = keys(&prompt).iter().rev().nth(1) {
                    let before = (span.namespace.0, before.as_bytes().to_vec());
                    assert!(self.0.contains_key(&before), "{prompt} without its parent");
                }
                let name = (span.namespace.0, key.as_bytes().to_vec());
                assert_eq!(self.0.insert(name, prompt), None);
            }
        }
    }

    fn prompts(&self, namespace: NamespaceId) -> BTreeSet<&str> {
        let here = self.0.iter().filter(|((of, _), _)| *of == namespace.0);
        here.map(|(_, prompt)| prompt.as_str()).collect()
    }
}

/// What lookups find in the host: every prefix of whole blocks that can be resumed from at its end.
fn announced(cache: &Cache, namespace: NamespaceId, prompts: &[String]) -> BTreeSet<String> {
    let resumed = |prompt: &&String| {
        let hit = cache.lookup(namespace, &keys(prompt));
        !is_tail(prompt) && hit.is_ok_and(|hit| hit.host == prompt.len())
    };
    let usable = prompts.iter().filter(resumed);
    usable
        .flat_map(|prompt| (1..=prompt.len()).map(|end| prompt[..end].to_owned()))
        .collect()
}

fn note_all(cache: &Cache, namespace: NamespaceId, prompt: &str) {
    let keys: Vec<PrefixKey> = keys(prompt);
    let bare = cache.unnoted(namespace, &keys).unwrap();
    let notes = bare
        .into_iter()
        .map(|block| (block, note(&prompt[..=block])));
    cache.note(namespace, &keys, notes).unwrap();
    assert_eq!(cache.unnoted(namespace, &keys), Ok(vec![]));
}

#[derive(Debug, Clone)]
enum Call {
    Acquire(usize, usize),
    Reserve(usize, usize, Vec<(usize, usize)>),
    Commit(usize),
    Abort(usize),
    Release(usize),
    Invalidate(usize),
    Hear(bool),
    Clear,
    Retire,
}

struct Run {
    small: Small,
    /// Two namespaces, both held.
    namespaces: [NamespaceId; 2],
    retired: Vec<NamespaceId>,
    prompts: Vec<String>,
    reads: Vec<ReadLease>,
    writes: Vec<WriteLease>,
    listener: Listener,
}

impl Run {
    fn call(&mut self, call: Call) {
        let cache = &self.small.cache;
        match call {
            Call::Acquire(which, prompt) => {
                let prompt = &self.prompts[prompt % self.prompts.len()];
                let lease = cache.acquire(self.namespaces[which], &keys(prompt), 0);
                self.reads.extend(lease.unwrap());
            }
            Call::Reserve(which, prompt, entries) => {
                let prompt = &self.prompts[prompt % self.prompts.len()];
                let count = self.small.classes();
                let fits = |&(class, block): &(usize, usize)| class < count && block < prompt.len();
                let entries: Vec<_> = entries.into_iter().filter(fits).collect();
                let namespace = self.namespaces[which];
                let lease = cache.reserve(namespace, &keys(prompt), &entries);
                self.writes.push(lease.unwrap());
                note_all(cache, namespace, prompt);
            }
            Call::Commit(at) if !self.writes.is_empty() => {
                let at = at % self.writes.len();
                commit(&mut self.writes.swap_remove(at));
            }
            Call::Abort(at) if !self.writes.is_empty() => {
                drop(self.writes.swap_remove(at % self.writes.len()));
            }
            Call::Release(at) if !self.reads.is_empty() => {
                drop(self.reads.swap_remove(at % self.reads.len()));
            }
            Call::Invalidate(at) if !self.reads.is_empty() => {
                cache
                    .invalidate(&self.reads[at % self.reads.len()])
                    .unwrap();
            }
            Call::Hear(anew) => {
                let changes = cache.changes(Medium::Host, anew);
                assert!(!anew || changes.removed.len() == self.listener.0.len());
                self.listener.hear(changes);
                self.check();
            }
            Call::Clear => {
                cache.clear();
            }
            Call::Retire => {
                cache.retire(self.namespaces[1]).unwrap();
                self.retired.push(self.namespaces[1]);
                let identity = format!("adapter {}", self.retired.len());
                self.namespaces[1] = cache.namespace(identity.as_bytes()).unwrap();
            }
            Call::Commit(_) | Call::Abort(_) | Call::Release(_) | Call::Invalidate(_) => {}
        }
        assert_eq!(self.small.cache.audit(), None);
    }

    fn check(&self) {
        for namespace in self.namespaces {
            let expected = announced(&self.small.cache, namespace, &self.prompts);
            let heard = self.listener.prompts(namespace);
            assert!(expected.iter().map(String::as_str).eq(heard));
        }
        for &namespace in &self.retired {
            assert!(self.listener.prompts(namespace).is_empty());
        }
    }
}

fn calls() -> impl Strategy<Value = Call> {
    let some = prop::collection::vec((0..4_usize, 0..6_usize), 0..8);
    let tail = (0..6_usize).prop_map(|from| {
        (from..6)
            .flat_map(|block| (0..4).map(move |class| (class, block)))
            .collect::<Vec<_>>()
    });
    let entries = prop_oneof![some, tail];
    let which = || prop_oneof![4 => Just(0_usize), 1 => Just(1)];
    prop_oneof![
        3 => (which(), any::<usize>()).prop_map(|(which, prompt)| Call::Acquire(which, prompt)),
        8 => (which(), any::<usize>(), entries)
            .prop_map(|(which, prompt, entries)| Call::Reserve(which, prompt, entries)),
        7 => any::<usize>().prop_map(Call::Commit),
        2 => any::<usize>().prop_map(Call::Abort),
        4 => any::<usize>().prop_map(Call::Release),
        1 => any::<usize>().prop_map(Call::Invalidate),
        6 => prop::bool::weighted(0.1).prop_map(Call::Hear),
        1 => Just(Call::Clear),
        1 => Just(Call::Retire),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_was_told_is_what_lookups_find(
        engine in prop::sample::select(engines()),
        spare in 0..14_usize,
        calls in prop::collection::vec(calls(), 1..80),
    ) {
        let slots = engine.iter().map(|class| class.slots_per_entry).sum::<usize>() + spare;
        let small = Small::new(&engine, slots);
        if engine.iter().all(|class| class.kind != ClassKind::Attention) {
            prop_assert!(matches!(small.cache.follow(), Err(Error::InvalidArgument(_))));
            return Ok(());
        }
        small.cache.follow().unwrap();
        let namespaces = [small.namespace, small.cache.namespace(b"adapter").unwrap()];
        let mut run = Run {
            small,
            namespaces,
            retired: vec![],
            prompts: universe(),
            reads: vec![],
            writes: vec![],
            listener: Listener::default(),
        };
        for call in calls {
            run.call(call);
        }
        run.call(Call::Hear(false));
        run.call(Call::Hear(true));
        run.reads.clear();
        run.writes.clear();
        run.call(Call::Clear);
        run.call(Call::Hear(false));
        prop_assert!(run.listener.0.is_empty());
    }
}

/// Stores a prompt's pages and its checkpoints at these boundaries, with notes.
fn store(small: &Small, prompt: &str, checkpoints: &[usize]) {
    let mut entries = pages(0..prompt.len());
    entries.extend(checkpoints.iter().map(|&blocks| (1, blocks - 1)));
    let mut lease = small.reserve(prompt, &entries);
    note_all(&small.cache, small.namespace, prompt);
    commit(&mut lease);
}

fn stored(changes: &Changes) -> Vec<String> {
    assert_eq!(changes.removed, []);
    let last = |span: &hybrid_pages::cache::StoredBlocks| span.blocks.last().unwrap().1.clone();
    let text = |note| String::from_utf8(note).unwrap();
    changes.stored.iter().map(last).map(text).collect()
}

fn removed(changes: &Changes) -> Vec<String> {
    assert_eq!(changes.stored, []);
    let notes = changes.removed.iter().map(|removed| removed.note.clone());
    notes.map(|note| String::from_utf8(note).unwrap()).collect()
}

#[test]
fn what_is_there_when_following_starts_is_announced() {
    let small = Small::hybrid(32);
    small.store_prompt("abc");
    small.store("abx", &[(0, 2), (1, 2)]);
    small.store("xyz", &pages(0..3));
    small.cache.follow().unwrap();
    note_all(&small.cache, small.namespace, "abc");
    note_all(&small.cache, small.namespace, "abx");
    let mut told = stored(&small.cache.changes(Medium::Host, false));
    told.sort_unstable();
    assert_eq!(told, ["abc", "abx"]);
}

fn followed(slots: usize) -> Small {
    let small = Small::hybrid(slots);
    small.cache.follow().unwrap();
    small
}

#[test]
fn pages_are_announced_up_to_the_deepest_checkpoint() {
    let small = followed(32);
    store(&small, "abcde", &[3]);
    let changes = small.cache.changes(Medium::Host, false);
    assert_eq!(stored(&changes), ["abc"]);
    assert_eq!(changes.stored[0].block_index, 0);
    assert_eq!(changes.stored[0].blocks.len(), 3);
    store(&small, "abcde", &[5]);
    let changes = small.cache.changes(Medium::Host, false);
    assert_eq!(stored(&changes), ["abcde"]);
    assert_eq!(changes.stored[0].block_index, 3);
    // A fork goes on from what was told.
    store(&small, "abx", &[3]);
    let changes = small.cache.changes(Medium::Host, false);
    assert_eq!(stored(&changes), ["abx"]);
    assert_eq!(changes.stored[0].block_index, 2);
    assert_eq!(small.cache.changes(Medium::Host, false), Changes::default());
}

#[test]
fn an_evicted_checkpoint_removes_what_only_it_made_reachable() {
    // Room for these pages and checkpoints alone: the next store evicts the oldest checkpoint.
    let small = followed(8);
    store(&small, "abcde", &[3, 5]);
    stored(&small.cache.changes(Medium::Host, false));
    let lease = small.read("abc");
    // The pages of `abcde` are needed by nobody, and the deepest checkpoint is the next to go.
    store(&small, "xy", &[]);
    drop(lease);
    let gone = removed(&small.cache.changes(Medium::Host, false));
    assert_eq!(gone, ["abcde", "abcd"]);
    assert_eq!(small.depth("abcde"), 3);
}

#[test]
fn pages_that_are_published_before_those_they_hang_from_are_announced_later() {
    let small = followed(32);
    let mut first = small.reserve("ab", &pages(0..2));
    store(&small, "abcd", &[4]);
    assert_eq!(small.cache.changes(Medium::Host, false), Changes::default());
    commit(&mut first);
    assert_eq!(stored(&small.cache.changes(Medium::Host, false)), ["abcd"]);
}

#[test]
fn a_window_page_counts_for_the_boundaries_behind_it() {
    let small = Small::new(&[PAGE, CHECKPOINT, class(ClassKind::Window, 2, 1)], 64);
    small.cache.follow().unwrap();
    let mut first = small.reserve("ab", &[pages(0..2), vec![(2, 1)]].concat());
    let mut second = small.reserve("abc", &[pages(2..3), vec![(1, 2), (2, 2)]].concat());
    note_all(&small.cache, small.namespace, "abc");
    commit(&mut second);
    assert_eq!(small.cache.changes(Medium::Host, false), Changes::default());
    commit(&mut first);
    assert_eq!(stored(&small.cache.changes(Medium::Host, false)), ["abc"]);
}

#[test]
fn what_cancels_out_is_never_told() {
    let small = followed(32);
    for _ in 0..3 {
        store(&small, "abc", &[3]);
        small.cache.clear();
    }
    assert_eq!(small.cache.changes(Medium::Host, false), Changes::default());
    store(&small, "abc", &[3]);
    assert_eq!(stored(&small.cache.changes(Medium::Host, false)), ["abc"]);
    small.cache.clear();
    store(&small, "abc", &[3]);
    assert_eq!(small.cache.changes(Medium::Host, false), Changes::default());
}

#[test]
fn what_waits_is_no_more_than_was_told_and_is_announced() {
    let small = followed(64);
    store(&small, "abcdefgh", &[8]);
    stored(&small.cache.changes(Medium::Host, false));
    let after = |rounds: u32| {
        for round in 0..rounds {
            let prompt = format!("{round:08}");
            store(&small, &prompt, &[8]);
        }
        small.stats().metadata_bytes
    };
    let once = after(64);
    assert!(after(2000) <= once + once / 8);
    let changes = small.cache.changes(Medium::Host, false);
    assert_eq!(changes.removed.len(), 8);
    assert!(
        changes
            .stored
            .iter()
            .map(|span| span.blocks.len())
            .sum::<usize>()
            <= 64
    );
}

#[test]
fn a_window_page_that_goes_removes_what_needs_it_and_brings_it_back() {
    let wide = class(ClassKind::Window, 2, 1);
    let small = Small::new(&[PAGE, CHECKPOINT, wide], 64);
    small.cache.follow().unwrap();
    let entries = [pages(0..4), vec![(1, 3), (2, 2), (2, 3)]].concat();
    let mut lease = small.reserve("abcd", &entries);
    note_all(&small.cache, small.namespace, "abcd");
    commit(&mut lease);
    assert_eq!(stored(&small.cache.changes(Medium::Host, false)), ["abcd"]);
    // A load that fails drops what it read.
    let read = small.acquire("abcd", 3).unwrap();
    let dropped = small.cache.invalidate(&read).unwrap();
    assert!(dropped > 0);
    drop(read);
    let gone = removed(&small.cache.changes(Medium::Host, false));
    assert_eq!(gone, ["abcd", "abc", "ab", "a"]);
}

#[test]
fn a_cache_that_is_not_followed_keeps_nothing() {
    let (plain, with) = (Small::hybrid(64), followed(64));
    for small in [&plain, &with] {
        store(small, "abcdefgh", &[8]);
    }
    assert!(plain.stats().metadata_bytes < with.stats().metadata_bytes);
    assert_eq!(plain.cache.changes(Medium::Host, true), Changes::default());
    let unknown = NamespaceId(9);
    assert!(matches!(
        plain.cache.retire(unknown),
        Err(Error::InvalidArgument(_))
    ));
    assert!(matches!(
        with.cache.unnoted(unknown, &[]),
        Err(Error::InvalidArgument(_))
    ));
    assert!(matches!(
        with.cache.note(unknown, &[], []),
        Err(Error::InvalidArgument(_))
    ));
}
