//! Random calls on a cache with tiers below it, while copies end late, in any order, fail and are damaged.
//!
//! The engine computes an entry with other bytes now and then, as kernels do; a clear makes all bytes of
//! before wrong. Whatever a lease shows must be bytes that were published since, under their checksums.

use crate::tiers_support;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use hybrid_pages::cache::{
    Arrival, ClassConfig, LeaseEntry, Medium, ReadLease, Restore, RestoreProgress, WriteLease,
};
use hybrid_pages::ids::{ClassKind, EntryKey, PrefixKey};
use hybrid_pages::policy::Hints;
use hybrid_pages_lab::policies;
use proptest::prelude::*;
use tiers_support::cache_support::{engines, is_tail, keys, universe};
use tiers_support::{Engine, Handle, Size, gather, scatter, sums};

#[derive(Debug, Clone)]
enum Call {
    Lookup(String),
    Promote(String, usize),
    Acquire(String, usize),
    Restore(String, usize),
    /// A restore is brought on, and what is ready is taken.
    Advance(usize),
    EndRestore(usize),
    Reserve(String, Vec<(usize, usize)>),
    Commit(usize, u8),
    Abort(usize),
    Release(usize),
    Invalidate(usize),
    Clear,
    /// So many copies of a tier end, in this order.
    End(usize, Vec<usize>),
    FailWrite(usize),
    FailRead(usize),
    Damage(usize),
    /// A request arrives, and proves what it shares with others.
    Admit(String),
    /// A request goes on from a tail, or has ended behind it.
    Tail(String, bool),
    /// A tier has to ask from now on, or its questions are answered.
    Ask(usize),
    Answer(usize),
    /// Reads of a tier are weighed at so many microseconds an entry, against so many blocks a second.
    Weigh(usize, u64, u32),
    /// The process ends; another one starts over the same tiers.
    Restart,
}

type Taken = Vec<(usize, usize)>;

struct World {
    engine: Engine,
    classes: Vec<ClassConfig>,
    slots: usize,
    tiers: Vec<(Handle, Size)>,
    policy: &'static str,
    reads: Vec<(String, ReadLease, Vec<Vec<u8>>)>,
    writes: Vec<(String, WriteLease, u64)>,
    /// With the classes and blocks that were taken.
    restores: Vec<(String, Restore, Taken)>,
    /// Bytes that were ever published for an entry since the last clear.
    published: HashMap<(usize, String), HashSet<Vec<u8>>>,
    clears: u64,
    /// What a follower was told of the host, and of the tiers below.
    told: [HashSet<PrefixKey>; 2],
    /// An earlier process wrote to the tiers: they have what the cache has not found again.
    restarted: bool,
    /// Reads were weighed at some time.
    weighs: bool,
}

impl World {
    fn new(
        classes: Vec<ClassConfig>,
        spare: usize,
        sizes: Vec<Size>,
        policy: &'static str,
        (waits_for_proof, is_shared): (bool, bool),
    ) -> Self {
        policies();
        let slots = classes
            .iter()
            .map(|class| class.slots_per_entry)
            .sum::<usize>()
            + spare;
        let tiers: Vec<_> = sizes
            .into_iter()
            .map(|size| (Handle::default(), size))
            .collect();
        tiers.iter().for_each(|(shelf, _)| shelf.pause());
        if let Some((shelf, _)) = tiers.last() {
            let mut shelf = shelf.lock();
            (shelf.waits_for_proof, shelf.is_shared) = (waits_for_proof, is_shared);
        }
        let mut world = Self {
            engine: Engine::with_policy(&classes, slots, &tiers, policy),
            classes,
            slots,
            tiers,
            policy,
            reads: vec![],
            writes: vec![],
            restores: vec![],
            published: HashMap::new(),
            clears: 0,
            told: [HashSet::new(), HashSet::new()],
            restarted: false,
            weighs: false,
        };
        world.follow();
        world
    }

    /// Has attention pages, without which nothing can be followed.
    fn is_followed(&self) -> bool {
        let mut classes = self.classes.iter();
        classes.any(|class| class.kind == ClassKind::Attention)
    }

    fn follow(&mut self) {
        self.told.iter_mut().for_each(HashSet::clear);
        assert_eq!(self.engine.cache.follow().is_ok(), self.is_followed());
    }

    /// What the follower was told of the host is what lookups find there, wherever entries came from; what
    /// it was told of the tiers below is what they have.
    fn hear(&mut self) {
        if !self.is_followed() {
            return;
        }
        let prompts = universe().into_iter().filter(|it| !is_tail(it));
        let of = |prompt: &String| keys(prompt);
        let in_host = |prompt: &String| self.engine.hit(prompt).host == prompt.len();
        let in_host: HashSet<PrefixKey> = prompts.filter(in_host).flat_map(|it| of(&it)).collect();
        let below = universe().into_iter();
        let below = below.filter(|it| !is_tail(it) && self.is_below(it));
        let below: HashSet<PrefixKey> = below.flat_map(|it| of(&it)).collect();
        for (medium, told) in [Medium::Host, Medium::Below]
            .into_iter()
            .zip(&mut self.told)
        {
            let changes = self.engine.cache.changes(medium, false);
            for removed in changes.removed {
                assert!(told.remove(&removed.key));
            }
            for (key, _) in changes.stored.into_iter().flat_map(|span| span.blocks) {
                assert!(told.insert(key));
            }
        }
        assert_eq!(self.told[0], in_host);
        assert!(self.told[1].is_subset(&below));
        assert!(self.restarted || self.told[1] == below);
    }

    /// Whether a prompt could resume at its end from what the shelves have.
    fn is_below(&self, prompt: &str) -> bool {
        let end = prompt.len();
        let mut needed = Vec::new();
        for (class, config) in self.classes.iter().enumerate() {
            let first = match config.kind {
                ClassKind::Attention => 0,
                ClassKind::Window => end.saturating_sub(config.window_blocks),
                ClassKind::Recurrent => end - 1,
            };
            needed.extend((first..end).map(|block| (class, block)));
        }
        let keys = keys(prompt);
        let has = |&(class, block): &(usize, usize)| {
            let found = |key: &EntryKey| key.class_index == class && key.prefix == keys[block];
            let mut shelves = self.tiers.iter().map(|(shelf, _)| shelf.lock());
            shelves.any(|shelf| !shelf.is_shared && shelf.entries.keys().any(found))
        };
        needed.iter().all(has)
    }

    fn bytes(&self, entry: &LeaseEntry) -> Vec<u8> {
        gather(&self.engine.memory, &entry.slots)
    }

    fn shelf(&self, tier: usize) -> &Handle {
        &self.tiers[tier % self.tiers.len()].0
    }

    fn run(&mut self, call: Call) {
        let namespace = self.engine.namespace;
        match call {
            Call::Lookup(prompt) => {
                let hit = self.engine.hit(&prompt);
                assert!(hit.host <= hit.blocks && hit.blocks <= hit.pages);
                assert_eq!(hit.missing.is_some(), hit.pages > hit.blocks);
                // The host's share is what a lease gives.
                let lease = self.engine.acquire(&prompt);
                assert_eq!(lease.map_or(0, |lease| lease.blocks()), hit.host);
                self.hear();
            }
            Call::Promote(prompt, first) => {
                let cache = &self.engine.cache;
                let before = self.engine.hit(&prompt);
                let under_way = cache.promote(namespace, &keys(&prompt), first).unwrap();
                assert!(!under_way || before.blocks > first.max(before.host));
            }
            Call::Acquire(prompt, first) => {
                let cache = &self.engine.cache;
                let lease = cache.acquire(namespace, &keys(&prompt), first).unwrap();
                let Some(lease) = lease else { return };
                self.read(prompt, lease);
            }
            Call::Restore(prompt, first) => {
                let cache = &self.engine.cache;
                let hit = self.engine.hit(&prompt);
                let restore = cache.restore(namespace, &keys(&prompt), first).unwrap();
                if let Some(restore) = restore {
                    assert!(restore.blocks() == hit.blocks || self.weighs);
                    assert!(restore.blocks() <= hit.blocks);
                    assert!(restore.blocks() > first.max(hit.host));
                    self.restores.push((prompt, restore, vec![]));
                }
            }
            Call::Advance(at) if !self.restores.is_empty() => {
                let at = at % self.restores.len();
                let (prompt, restore, taken) = &mut self.restores[at];
                let progress = restore.progress();
                let lease = restore.take();
                assert_eq!(lease.is_some(), progress == RestoreProgress::Ready);
                let prompt = prompt.clone();
                if let Some(lease) = &lease {
                    let places = lease.entries().iter();
                    taken.extend(places.map(|it| (it.class_index, it.block_index)));
                }
                if progress == RestoreProgress::Done {
                    self.check_complete(at);
                }
                if matches!(progress, RestoreProgress::Done | RestoreProgress::Failed) {
                    self.restores.swap_remove(at);
                }
                if let Some(lease) = lease {
                    self.read(prompt, lease);
                }
            }
            Call::EndRestore(at) if !self.restores.is_empty() => {
                self.restores.swap_remove(at % self.restores.len());
            }
            Call::Reserve(prompt, mut entries) => {
                entries
                    .retain(|&(class, block)| class < self.classes.len() && block < prompt.len());
                let lease = self.engine.reserve(&prompt, &entries);
                self.writes.push((prompt, lease, self.clears));
            }
            Call::Commit(at, variant) if !self.writes.is_empty() => {
                let at = at % self.writes.len();
                let (prompt, mut lease, clears) = self.writes.swap_remove(at);
                let mut checksums = Vec::new();
                for entry in lease.entries() {
                    let prefix = &prompt[..=entry.block_index];
                    let mut bytes = self.engine.bytes(entry.class_index, prefix);
                    bytes[0] ^= variant;
                    scatter(&self.engine.memory, &entry.slots, &bytes);
                    checksums.push(sums(&bytes));
                    if clears == self.clears {
                        let place = (entry.class_index, prefix.to_owned());
                        self.published.entry(place).or_default().insert(bytes);
                    }
                }
                let published = lease.commit(&checksums).unwrap();
                assert!(clears == self.clears || published == 0);
            }
            Call::Abort(at) if !self.writes.is_empty() => {
                self.writes.swap_remove(at % self.writes.len());
            }
            Call::Release(at) if !self.reads.is_empty() => {
                self.reads.swap_remove(at % self.reads.len());
            }
            Call::Invalidate(at) if !self.reads.is_empty() => {
                let (_, lease, _) = &self.reads[at % self.reads.len()];
                self.engine.cache.invalidate(lease).unwrap();
            }
            Call::Clear => {
                self.engine.cache.clear();
                self.engine.weights += 1;
                self.clears += 1;
                self.published.clear();
            }
            Call::End(tier, order) => {
                {
                    let mut shelf = self.shelf(tier).lock();
                    shelf.ends = Some(order.len());
                    shelf.order = order.into();
                }
                self.engine.cache.poll();
                let mut shelf = self.shelf(tier).lock();
                shelf.ends = Some(0);
                shelf.order.clear();
            }
            Call::FailWrite(tier) => {
                self.shelf(tier).lock().fail_writes += 1;
            }
            Call::FailRead(tier) => {
                self.shelf(tier).lock().fail_reads += 1;
            }
            Call::Damage(tier) => {
                self.shelf(tier).lock().damage_reads += 1;
            }
            Call::Admit(prompt) => {
                let arrival = Arrival {
                    now: 0,
                    tokens: prompt.len() as u64,
                    limit: prompt.len(),
                    hints: Hints::NONE,
                };
                let cache = &self.engine.cache;
                cache.admit(namespace, &keys(&prompt), arrival).unwrap();
            }
            Call::Tail(prompt, is_over) => {
                let (cache, keys) = (&self.engine.cache, keys(&prompt));
                let blocks = keys.len() - 1;
                let there = self.engine.hit(&prompt).blocks == keys.len();
                let lengths = cache.tail_lengths(namespace, &keys[..blocks], blocks, true);
                let behind = lengths.unwrap().behind.pop();
                let told = behind.is_some_and(|(at, lengths)| {
                    at == blocks && lengths.contains(&keys[blocks].tail_tokens().unwrap())
                });
                let (has, _) = cache.has_tails(namespace, blocks, &keys[blocks..]).unwrap();
                assert!(!there || told && has == [true]);
                if is_over {
                    cache.supersede(namespace, &keys).unwrap();
                } else {
                    cache.continue_tail(namespace, &keys).unwrap();
                }
            }
            Call::Ask(tier) => {
                let mut shelf = self.shelf(tier).lock();
                shelf.asked.get_or_insert_default();
            }
            Call::Answer(tier) => {
                self.shelf(tier).lock().answer();
            }
            Call::Weigh(tier, pace, rate) => {
                let pace = (pace > 0).then_some([0, pace, 0].map(Duration::from_micros));
                self.shelf(tier).lock().pace = pace;
                let rate = (rate > 0).then_some(f64::from(rate));
                self.engine.cache.set_compute_rate(rate).unwrap();
                self.weighs = true;
            }
            Call::Restart => {
                self.reads.clear();
                self.writes.clear();
                self.restores.clear();
                let weights = self.engine.weights;
                self.tiers
                    .iter()
                    .for_each(|(shelf, _)| shelf.lock().crash());
                self.engine =
                    Engine::with_policy(&self.classes, self.slots, &self.tiers, self.policy);
                self.engine.weights = weights;
                self.restarted = true;
                self.follow();
            }
            Call::Commit(..)
            | Call::Abort(_)
            | Call::Release(_)
            | Call::Invalidate(_)
            | Call::Advance(_)
            | Call::EndRestore(_) => {}
        }
    }

    /// Notes what a lease shows, which must have been published.
    fn read(&mut self, prompt: String, lease: ReadLease) {
        let seen: Vec<_> = lease.entries().iter().map(|it| self.bytes(it)).collect();
        for (entry, bytes) in lease.entries().iter().zip(&seen) {
            assert_eq!(entry.checksums, sums(bytes));
            let place = (entry.class_index, prompt[..=entry.block_index].to_owned());
            assert!(self.published[&place].contains(bytes), "{place:?}");
        }
        self.reads.push((prompt, lease, seen));
    }

    /// The waves of a restore had all that the engine lacked, each once.
    fn check_complete(&self, at: usize) {
        let (prompt, restore, taken) = &self.restores[at];
        let (first, end) = (restore.first(), restore.blocks());
        let more = usize::from(is_tail(&prompt[..end]));
        let mut expected = Vec::new();
        for (index, class) in self.classes.iter().enumerate() {
            let from = match class.kind {
                ClassKind::Attention => first,
                ClassKind::Window => first.max(end.saturating_sub(class.window_blocks + more)),
                ClassKind::Recurrent => end - 1,
            };
            expected.extend((from..end).map(|block| (index, block)));
        }
        let mut taken = taken.clone();
        taken.sort_unstable();
        assert_eq!(taken, expected);
    }

    /// The invariants, and that nobody writes what a lease reads.
    fn check(&self) {
        self.engine.audit();
        for (prompt, lease, seen) in &self.reads {
            for (entry, bytes) in lease.entries().iter().zip(seen) {
                assert_eq!(self.bytes(entry), *bytes, "{entry:?} of {prompt}");
            }
        }
    }

    /// What is larger than the host comes back in waves.
    fn restore(&mut self, prompt: &str, blocks: usize) {
        self.run(Call::Restore(prompt.into(), 0));
        let at = self.restores.len() - 1;
        while self.restores.len() > at {
            let before = self.restores[at].2.len();
            self.run(Call::Advance(at));
            self.check();
            self.reads.clear();
            let left = self.restores.get(at);
            assert!(left.is_none_or(|(_, _, taken)| taken.len() > before));
        }
        assert_eq!(
            self.engine.hit(prompt).blocks,
            blocks,
            "nothing was damaged"
        );
    }

    /// Every lease and every copy ends; then every slot is free or evictable, every prompt's joint hit can
    /// be loaded, and clearing empties all tiers.
    fn end(&mut self) {
        self.reads.clear();
        self.writes.clear();
        self.restores.clear();
        for (shelf, _) in &self.tiers {
            let mut shelf = shelf.lock();
            shelf.ends = None;
            (shelf.fail_writes, shelf.fail_reads, shelf.damage_reads) = (0, 0, 0);
            (shelf.asked, shelf.pace) = (None, None);
        }
        self.engine.cache.poll();
        self.check();
        assert_eq!(self.engine.cache.stats().leased_slots, 0);
        for prompt in ["aaaaaa", "ababab", "bbbbbb", "abba"] {
            let hit = self.engine.hit(prompt);
            let mut asked = 0;
            while self.engine.promote(prompt) {
                asked += 1;
                assert!(asked < 3, "copies end at once now");
            }
            let now = self.engine.hit(prompt);
            assert_eq!(now.blocks, hit.blocks);
            let size = |blocks: usize| -> usize {
                let of = |class: &ClassConfig| match class.kind {
                    ClassKind::Attention => blocks,
                    ClassKind::Window => class.window_blocks.min(blocks),
                    ClassKind::Recurrent => 1,
                };
                let sizes = self.classes.iter().map(|it| of(it) * it.slots_per_entry);
                sizes.sum()
            };
            if size(hit.blocks) <= self.slots {
                assert_eq!(now.host, hit.blocks, "{prompt}");
            } else {
                self.restore(prompt, now.blocks);
            }
            self.run(Call::Acquire(prompt.into(), 0));
            self.check();
            self.reads.clear();
            self.hear();
        }
        self.engine.cache.clear();
        self.hear();
        assert_eq!(self.engine.cache.stats().free_slots as usize, self.slots);
        for tier in self.engine.cache.tiers() {
            assert_eq!(
                (tier.usage.free, tier.usage.entries),
                (tier.usage.capacity, 0)
            );
        }
        for (shelf, _) in &self.tiers {
            assert!(shelf.lock().entries.is_empty());
        }
        self.check();
    }
}

fn prompts() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[ab]{1,6}", 1 => "[ab]{0,5}[AB]"]
}

fn calls() -> impl Strategy<Value = Call> {
    let tail = (0..6_usize).prop_map(|from| {
        (from..6)
            .flat_map(|block| (0..4).map(move |class| (class, block)))
            .collect::<Vec<_>>()
    });
    let some = prop::collection::vec((0..4_usize, 0..6_usize), 0..8);
    let order = prop::collection::vec(0..8_usize, 1..6);
    prop_oneof![
        2 => prompts().prop_map(Call::Lookup),
        6 => (prompts(), 0..2_usize).prop_map(|(prompt, first)| Call::Promote(prompt, first)),
        4 => (prompts(), 0..2_usize).prop_map(|(prompt, first)| Call::Acquire(prompt, first)),
        8 => (prompts(), prop_oneof![1 => some, 3 => tail])
            .prop_map(|(prompt, entries)| Call::Reserve(prompt, entries)),
        7 => (any::<usize>(), prop_oneof![9 => Just(0_u8), 1 => 0..3_u8])
            .prop_map(|(at, variant)| Call::Commit(at, variant)),
        1 => any::<usize>().prop_map(Call::Abort),
        4 => any::<usize>().prop_map(Call::Release),
        3 => (prompts(), 0..3_usize).prop_map(|(prompt, first)| Call::Restore(prompt, first)),
        6 => any::<usize>().prop_map(Call::Advance),
        1 => any::<usize>().prop_map(Call::EndRestore),
        1 => any::<usize>().prop_map(Call::Invalidate),
        1 => prop_oneof![3 => Just(Call::Restart), 1 => Just(Call::Clear)],
        3 => "[ab]{1,6}".prop_map(Call::Admit),
        2 => ("[ab]{0,5}[AB]", any::<bool>()).prop_map(|(prompt, over)| Call::Tail(prompt, over)),
        3 => (0..2_usize, 0..3_usize).prop_map(|(tier, what)| match what {
            0 => Call::Ask(tier),
            _ => Call::Answer(tier),
        }),
        1 => (0..2_usize, 0..500_u64, 0..2000_u32)
            .prop_map(|(tier, pace, rate)| Call::Weigh(tier, pace, rate)),
        8 => (0..2_usize, order).prop_map(|(tier, order)| Call::End(tier, order)),
        2 => (0..2_usize, 0..3_usize).prop_map(|(tier, fault)| match fault {
            0 => Call::FailWrite(tier),
            1 => Call::FailRead(tier),
            _ => Call::Damage(tier),
        }),
    ]
}

fn sizes() -> impl Strategy<Value = Vec<Size>> {
    let size = (4..60_u64, 1..30_u64).prop_map(|(slots, queue)| Size { slots, queue });
    prop::collection::vec(size, 1..3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn bytes_that_leases_show_are_those_that_were_published(
        classes in prop::sample::select(engines()),
        spare in 0..14_usize,
        sizes in sizes(),
        policy in prop::sample::select(vec!["lru", "reuse", "marconi"]),
        last in any::<(bool, bool)>(),
        calls in prop::collection::vec(calls(), 1..120),
    ) {
        let mut world = World::new(classes, spare, sizes, policy, last);
        for call in calls {
            world.run(call);
            world.check();
        }
        world.end();
    }
}
