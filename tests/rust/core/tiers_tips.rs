//! With tiers below, a store that holds and offers the end of its prefix alone does what one does that holds and
//! offers all of it.

use crate::cache_support;
use crate::plain_tier;

use cache_support::{class, commit, config, keys, pages};
use hybrid_pages::cache::{
    Arrival, Cache, CacheConfig, CacheStats, ClassConfig, ReadLease, WriteLease,
};
use hybrid_pages::ids::{ClassKind, NamespaceId};
use hybrid_pages::policy::{EntryKind, Hints};
use hybrid_pages_lab::policies;
use plain_tier::{Handle, Plain, SHAPE};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Call {
    Admit(String),
    /// Entries of the classes from a block on.
    Reserve(String, usize),
    Commit(usize),
    Abort,
    Acquire(String),
    Release(usize),
}

/// A tier: slots, queue, kinds that it declines, whether it waits for proof, its policy.
type Below = (u64, u64, Option<EntryKind>, bool, &'static str);

struct Twin {
    cache: Cache,
    namespace: NamespaceId,
    classes: usize,
    /// Whether stores, and the tiers, hold whole prefixes: what has a priority is held so, which these policies ignore.
    whole: bool,
    tiers: Vec<Handle>,
    reads: Vec<ReadLease>,
    writes: Vec<WriteLease>,
}

impl Twin {
    fn new(
        whole: bool,
        classes: &[ClassConfig],
        slots: usize,
        policy: &str,
        below: &[Below],
    ) -> Self {
        policies();
        let config = CacheConfig {
            policy: policy.into(),
            ..config(classes, slots)
        };
        let tiers: Vec<Handle> = below.iter().map(|_| Handle::default()).collect();
        let boxed =
            tiers
                .iter()
                .zip(below)
                .map(|(seen, &(slots, queue, declines, waits, policy))| {
                    let mut says = seen.lock();
                    says.queue = Some(queue);
                    says.declines.extend(declines);
                    says.waits_for_proof = waits;
                    drop(says);
                    Plain::boxed(seen, slots, policy, SHAPE, !whole)
                });
        let cache = Cache::with_tiers(&config, boxed.collect()).unwrap();
        let namespace = cache.namespace(b"engine").unwrap();
        Self {
            cache,
            namespace,
            classes: classes.len(),
            whole,
            tiers,
            reads: vec![],
            writes: vec![],
        }
    }

    fn run(&mut self, call: &Call) {
        let Self {
            cache, namespace, ..
        } = self;
        match call {
            Call::Admit(prompt) => {
                let keys = keys(prompt);
                let arrival = Arrival {
                    now: 0,
                    tokens: 1,
                    limit: keys.len(),
                    hints: Hints::NONE,
                };
                cache.admit(*namespace, &keys, arrival).unwrap();
            }
            Call::Reserve(prompt, first) if self.writes.len() < 6 => {
                let blocks = first % prompt.len()..prompt.len();
                let all = (0..self.classes)
                    .flat_map(|class| blocks.clone().map(move |block| (class, block)));
                let all: Vec<_> = all.collect();
                let priority = i8::from(self.whole);
                let hints = Hints {
                    priority,
                    ..Hints::NONE
                };
                let lease = cache.reserve_hinted(*namespace, &keys(prompt), &all, &hints);
                self.writes.push(lease.unwrap());
            }
            Call::Commit(at) if !self.writes.is_empty() => {
                commit(&mut self.writes.swap_remove(at % self.writes.len()));
            }
            // What nobody holds gives its slots back at once, so these wait until no store is under way beside.
            Call::Abort if self.writes.len() == 1 => self.writes.clear(),
            Call::Acquire(prompt) if self.reads.len() < 2 => {
                self.reads
                    .extend(cache.acquire(*namespace, &keys(prompt), 0).unwrap());
            }
            Call::Release(at) if !self.reads.is_empty() => {
                drop(self.reads.swap_remove(at % self.reads.len()));
            }
            _ => {}
        }
        self.cache.poll();
        assert_eq!(self.cache.audit(), None);
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
    prop_oneof![
        3 => prompts().prop_map(Call::Admit),
        12 => (prompts(), 0..8_usize).prop_map(|(prompt, first)| Call::Reserve(prompt, first)),
        12 => any::<usize>().prop_map(Call::Commit),
        1 => Just(Call::Abort),
        3 => prompts().prop_map(Call::Acquire),
        4 => any::<usize>().prop_map(Call::Release),
    ]
}

fn tiers() -> impl Strategy<Value = Vec<Below>> {
    let kinds = prop::sample::select(vec![
        None,
        None,
        Some(EntryKind::Window),
        Some(EntryKind::Checkpoint),
    ]);
    let tier = (8..60_u64, 2..40_u64, kinds, any::<bool>(), Just("lru"));
    prop::collection::vec(tier, 1..3)
}

/// Pages alone, with windows, with checkpoints, with both.
fn engines() -> impl Strategy<Value = Vec<ClassConfig>> {
    let page = class(ClassKind::Attention, 0, 1);
    let window = class(ClassKind::Window, 2, 1);
    let checkpoint = class(ClassKind::Recurrent, 0, 3);
    prop::sample::select(vec![
        vec![page.clone()],
        vec![page.clone(), window.clone()],
        vec![window.clone(), page.clone()],
        vec![page.clone(), checkpoint.clone()],
        vec![page, window, checkpoint],
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn offering_the_end_of_a_prefix_is_as_good_as_offering_all(
        classes in engines(),
        slots in 30..90usize,
        policy in prop::sample::select(vec!["lru", "junction-lru", "align-lru"]),
        below in tiers(),
        calls in prop::collection::vec(calls(), 1..150),
    ) {
        let mut alone = Twin::new(false, &classes, slots, policy, &below);
        let mut whole = Twin::new(true, &classes, slots, policy, &below);
        for call in &calls {
            alone.run(call);
            whole.run(call);
            let entries = |twin: &Twin| twin.writes.iter().map(|lease| lease.entries().to_vec()).collect::<Vec<_>>();
            prop_assert_eq!(entries(&alone), entries(&whole));
            prop_assert_eq!(alone.stats(), whole.stats());
            for (a, b) in alone.tiers.iter().zip(&whole.tiers) {
                prop_assert_eq!(&a.lock().log, &b.lock().log);
                prop_assert_eq!(a.lock().offers, b.lock().offers);
            }
        }
    }
}

#[test]
fn what_a_tier_passed_over_is_offered_again_with_the_next_request_that_passes() {
    let classes = [class(ClassKind::Attention, 0, 1)];
    let twin = |out: bool| {
        let twin = Twin::new(false, &classes, 64, "lru", &[(64, 64, None, false, "lru")]);
        twin.tiers[0].lock().is_out = out;
        twin
    };
    let mut twin = twin(true);
    let store = |twin: &Twin, prompt: &str, from: usize| {
        let lease = twin
            .cache
            .reserve(twin.namespace, &keys(prompt), &pages(from..prompt.len()));
        commit(&mut lease.unwrap());
        twin.cache.poll();
    };
    store(&twin, "abcd", 0);
    assert_eq!(
        twin.tiers[0].lock().offers,
        1,
        "what stands on it is not offered"
    );
    twin.tiers[0].lock().is_out = false;
    store(&twin, "abcde", 4);
    assert_eq!(twin.tiers[0].lock().log.len(), 0);
    twin.run(&Call::Admit("abcdef".into()));
    store(&twin, "abcdef", 5);
    assert_eq!(twin.tiers[0].lock().log.len(), 6);
    // So it is with a store that begins where the prompt does.
    twin.tiers[0].lock().is_out = true;
    store(&twin, "xyz", 0);
    twin.tiers[0].lock().is_out = false;
    store(&twin, "xyz", 0);
    assert_eq!(twin.tiers[0].lock().log.len(), 9);
}

#[test]
fn what_a_full_queue_declined_follows_with_the_next_store() {
    let classes = [class(ClassKind::Attention, 0, 1)];
    let twin = Twin::new(false, &classes, 64, "lru", &[(64, 3, None, false, "lru")]);
    let mut written = Vec::new();
    for (prompt, from) in [("abcdefg", 0), ("abcdefgh", 7), ("abcdefghi", 8)] {
        let lease = twin
            .cache
            .reserve(twin.namespace, &keys(prompt), &pages(from..prompt.len()));
        commit(&mut lease.unwrap());
        twin.cache.poll();
        written.push(twin.tiers[0].lock().log.len());
    }
    assert_eq!(written, [3, 6, 9]);
}
