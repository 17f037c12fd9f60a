//! A store that holds the last page of its prefix alone does what one does that holds all of them.

use crate::cache_support;

use cache_support::{CHECKPOINT, PAGE, class, commit, config, keys, pages};
use hybrid_pages::cache::{Arrival, Cache, CacheConfig, CacheStats, ReadLease, WriteLease};
use hybrid_pages::ids::{ClassKind, NamespaceId};
use hybrid_pages::policy::Hints;
use hybrid_pages_lab::policies;
use proptest::prelude::*;

const LONGEST: usize = 8;

struct Twin {
    cache: Cache,
    namespace: NamespaceId,
    /// Whether stores offer the first page, too: then they hold the whole prefix.
    whole: bool,
    reads: Vec<ReadLease>,
    writes: Vec<WriteLease>,
    now: u64,
}

#[derive(Debug, Clone)]
enum Call {
    Admit(String),
    /// Pages of the blocks from one on, and checkpoints.
    Reserve(String, usize, Vec<usize>),
    Commit(usize),
    Abort,
    Acquire(String),
    Release(usize),
    Invalidate(usize),
    Clear,
}

fn reuse(slots: usize) -> CacheConfig {
    CacheConfig {
        policy: "reuse".into(),
        ..config(&[PAGE, class(ClassKind::Recurrent, 0, 3)], slots)
    }
}

impl Twin {
    fn new(whole: bool, slots: usize) -> Self {
        let cache = Cache::new(&reuse(slots)).unwrap();
        let namespace = cache.namespace(b"engine").unwrap();
        Self {
            cache,
            namespace,
            whole,
            reads: vec![],
            writes: vec![],
            now: 0,
        }
    }

    fn run(&mut self, call: &Call) {
        match call {
            Call::Admit(prompt) => {
                self.now += 700;
                let keys = keys(prompt);
                let arrival = Arrival {
                    now: self.now,
                    tokens: 16 * keys.len() as u64 + 1,
                    limit: keys.len(),
                    hints: Hints::NONE,
                };
                self.cache.admit(self.namespace, &keys, arrival).unwrap();
            }
            Call::Reserve(prompt, first, states) if self.writes.len() < 10 => {
                let first = first % prompt.len();
                let mut entries = pages(first..prompt.len());
                entries.extend(states.iter().map(|block| (1, block % prompt.len())));
                if self.whole {
                    entries.extend(self.first_page(prompt));
                }
                let lease = self.cache.reserve(self.namespace, &keys(prompt), &entries);
                self.writes.push(lease.unwrap());
            }
            Call::Commit(at) if !self.writes.is_empty() => {
                commit(&mut self.writes.swap_remove(at % self.writes.len()));
            }
            // What nobody holds gives its slots back at once, so these wait until no store is under way beside.
            Call::Abort if self.writes.len() == 1 => self.writes.clear(),
            Call::Acquire(prompt) if self.reads.len() < 2 => {
                let lease = self.cache.acquire(self.namespace, &keys(prompt), 0);
                self.reads.extend(lease.unwrap());
            }
            Call::Release(at) if !self.reads.is_empty() => {
                drop(self.reads.swap_remove(at % self.reads.len()));
            }
            Call::Invalidate(at) if !self.reads.is_empty() && self.writes.is_empty() => {
                let lease = &self.reads[at % self.reads.len()];
                self.cache.invalidate(lease).unwrap();
            }
            Call::Clear if self.writes.is_empty() => drop(self.cache.clear()),
            _ => {}
        }
        assert_eq!(self.cache.audit(), None);
    }

    /// The first page of a prompt, if it is there.
    fn first_page(&self, prompt: &str) -> Option<(usize, usize)> {
        let hit = self.cache.lookup(self.namespace, &keys(&prompt[..1]));
        (hit.unwrap().pages == 1).then_some((0, 0))
    }

    fn stats(&self) -> CacheStats {
        CacheStats {
            leased_slots: 0,
            metadata_bytes: 0,
            ..self.cache.stats()
        }
    }
}

fn prompts() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]{1,8}", "[abc]{6,8}"]
}

fn calls() -> impl Strategy<Value = Call> {
    let states = prop::collection::vec(0..LONGEST, 0..3);
    prop_oneof![
        4 => prompts().prop_map(Call::Admit),
        12 => (prompts(), 0..LONGEST, states)
            .prop_map(|(prompt, first, states)| Call::Reserve(prompt, first, states)),
        12 => any::<usize>().prop_map(Call::Commit),
        1 => Just(Call::Abort),
        3 => prompts().prop_map(Call::Acquire),
        4 => any::<usize>().prop_map(Call::Release),
        1 => any::<usize>().prop_map(Call::Invalidate),
        1 => Just(Call::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn holding_the_last_page_is_as_good_as_holding_all(
        slots in 30..90usize,
        calls in prop::collection::vec(calls(), 1..250),
    ) {
        let (mut alone, mut whole) = (Twin::new(false, slots), Twin::new(true, slots));
        for call in &calls {
            alone.run(call);
            whole.run(call);
            let entries = |twin: &Twin| twin.writes.iter().map(|lease| lease.entries().to_vec()).collect::<Vec<_>>();
            prop_assert_eq!(entries(&alone), entries(&whole));
            prop_assert_eq!(alone.stats(), whole.stats());
        }
        for twin in [&mut alone, &mut whole] {
            twin.reads.clear();
            twin.writes.clear();
            prop_assert_eq!(twin.cache.stats().leased_slots, 0);
            prop_assert_eq!(twin.cache.audit(), None);
        }
    }
}

/// A prompt of so many blocks, a letter each.
fn letters(blocks: usize) -> String {
    "abcdefgh".chars().cycle().take(blocks).collect()
}

fn stored(policy: &str, slots: usize, prompt: &str) -> (Cache, NamespaceId) {
    let config = CacheConfig {
        policy: policy.into(),
        ..config(&[PAGE, CHECKPOINT], slots)
    };
    let cache = Cache::new(&config).unwrap();
    let namespace = cache.namespace(b"engine").unwrap();
    let entries = pages(0..prompt.len());
    commit(&mut cache.reserve(namespace, &keys(prompt), &entries).unwrap());
    (cache, namespace)
}

#[test]
fn only_a_policy_that_protects_a_prefix_leaves_it_unheld() {
    let prompt = letters(21);
    policies();
    for (policy, held) in [("reuse", 2), ("lru", 2), ("marconi", 21)] {
        let (cache, namespace) = stored(policy, 64, &prompt[..20]);
        let lease = cache
            .reserve(namespace, &keys(&prompt), &[(0, 20)])
            .unwrap();
        assert_eq!(cache.stats().leased_slots, held, "{policy}");
        drop(lease);
        assert_eq!(cache.stats().leased_slots, 0);
    }
}

#[test]
fn a_prefix_that_fills_the_host_is_held() {
    let prompt = letters(30);
    let (cache, namespace) = stored("reuse", 24, &prompt[..20]);
    let entries = pages(20..30);
    let mut lease = cache.reserve(namespace, &keys(&prompt), &entries).unwrap();
    assert_eq!((lease.entries().len(), lease.skipped().no_room), (4, 6));
    assert_eq!(cache.stats().evicted_pages, 0);
    commit(&mut lease);
    assert_eq!(cache.lookup(namespace, &keys(&prompt)).unwrap().pages, 24);
}

#[test]
fn what_a_store_stands_on_counts_as_taken() {
    let prompt = letters(21);
    let (cache, namespace) = stored("reuse", 24, &prompt[..20]);
    let lease = cache
        .reserve(namespace, &keys(&prompt), &[(0, 20)])
        .unwrap();
    assert_eq!(cache.stats().leased_slots, 2);
    let others: Vec<_> = keys("xyzxyz");
    let second = cache.reserve(namespace, &others, &pages(0..6)).unwrap();
    assert_eq!((second.entries().len(), second.skipped().no_room), (3, 3));
    assert_eq!(cache.stats().evicted_pages, 0);
    drop((lease, second));
    assert_eq!(cache.lookup(namespace, &keys(&prompt)).unwrap().pages, 20);
}

#[test]
fn what_several_stores_stand_on_counts_once() {
    let prompt = letters(20);
    for others in [20, 0] {
        let (cache, namespace) = stored("reuse", 60, &prompt);
        let rest = "z".repeat(others);
        commit(
            &mut cache
                .reserve(namespace, &keys(&rest), &pages(0..others))
                .unwrap(),
        );
        let leases: Vec<_> = ('i'..'u')
            .map(|fork| {
                let fork = format!("{prompt}{fork}");
                let lease = cache.reserve(namespace, &keys(&fork), &[(0, 20)]).unwrap();
                assert_eq!(lease.entries().len(), 1, "{fork}");
                assert_eq!(cache.audit(), None);
                lease
            })
            .collect();
        let last = keys("yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy");
        let lease = cache.reserve(namespace, &last, &pages(0..40)).unwrap();
        assert_eq!((lease.entries().len(), lease.skipped().no_room), (28, 12));
        drop((leases, lease));
        assert_eq!(cache.lookup(namespace, &keys(&prompt)).unwrap().pages, 20);
        assert_eq!(cache.stats().leased_slots, 0);
    }
}

#[test]
fn what_a_store_stands_on_stays_though_it_is_retained_meanwhile() {
    let config = CacheConfig {
        policy: "reuse".into(),
        ..config(&[PAGE, CHECKPOINT], 24)
    };
    let cache = Cache::new(&config).unwrap();
    let namespace = cache.namespace(b"engine").unwrap();
    let retain = |prompt: &str, retain| {
        let hints = Hints {
            retain,
            ..Hints::NONE
        };
        let arrival = Arrival {
            now: 0,
            tokens: 1_000,
            limit: prompt.len(),
            hints,
        };
        cache.admit(namespace, &keys(prompt), arrival).unwrap();
    };
    for prompt in ["abcdefgh", "rstuvwxy"] {
        let mut entries = pages(0..8);
        entries.extend([(1, 3), (1, 7)]);
        commit(&mut cache.reserve(namespace, &keys(prompt), &entries).unwrap());
    }
    let longer = keys("abcdefghij");
    let mut lease = cache
        .reserve(namespace, &longer, &[(0, 8), (0, 9), (1, 9)])
        .unwrap();
    retain("abcd", 1_000);
    retain("rstuvwxy", 9_000);
    let other = keys("zzzzzz");
    let second = cache.reserve(namespace, &other, &pages(0..6)).unwrap();
    assert_eq!(second.entries().len(), 6);
    assert_eq!(cache.audit(), None);
    commit(&mut lease);
    assert_eq!(cache.lookup(namespace, &longer).unwrap().blocks, 10);
}

#[test]
fn a_foreign_key_before_the_last_page_is_refused() {
    let prompt = letters(5);
    let (cache, namespace) = stored("reuse", 64, &prompt[..4]);
    let mut wrong = keys(&prompt);
    wrong[2] = keys("x")[0];
    assert!(cache.reserve(namespace, &wrong, &[(0, 4)]).is_err());
}

#[test]
fn the_first_block_to_write_is_found_without_a_walk() {
    let prompt = letters(50);
    let all = keys(&prompt);
    for there in [0, 1, 7, 49, 50] {
        let (cache, namespace) = stored("reuse", 64, &prompt[..there]);
        for first in 0..=50 {
            let expected = if first < there { there - 1 } else { first };
            assert_eq!(cache.unwritten(namespace, &all, first), Ok(expected));
        }
        assert_eq!(cache.unwritten(namespace, &[], 0), Ok(0));
        assert!(cache.unwritten(NamespaceId(9), &all, 0).is_err());
    }
    // What is still being written is the store's to count.
    let (cache, namespace) = stored("reuse", 64, &prompt[..10]);
    let lease = cache
        .reserve(namespace, &all[..20], &pages(10..20))
        .unwrap();
    assert_eq!(cache.unwritten(namespace, &all, 0), Ok(9));
    drop(lease);
    // A store that only holds or refreshes what is there would be missed by policies that look at it.
    policies();
    let (cache, namespace) = stored("marconi", 64, &prompt);
    assert_eq!(cache.unwritten(namespace, &all, 0), Ok(0));
}
