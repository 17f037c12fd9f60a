//! An engine whose slots lie in a real arena, over a tier below the host.
//!
//! Its prompts are strings: one letter per block. Slots are filled with other bytes before an entry's are written,
//! so what lies behind a shard's end is never zero.
#![allow(dead_code, reason = "each test file uses a part of it")]

#[path = "../core/cache_support.rs"]
pub mod cache_support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cache_support::{keys, whole};
use hybrid_pages::cache::{Cache, CacheConfig, ClassConfig, LeaseEntry, TierStats, WriteLease};
use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, NamespaceId, SlotId};
use hybrid_pages::prefix::Hit;
use hybrid_pages::transfer::checksum;
use hybrid_pages_arena::Arena;
use hybrid_pages_tiers::Identity;

pub const IDENTITY: Identity = [7; 32];
pub const LIMIT: Duration = Duration::from_secs(60);

/// What the owner of a tier can do with it.
pub trait Handle {
    /// Waits until nothing is on its way.
    fn settled(&self, limit: Duration) -> bool;

    /// The first contradiction in what it knows.
    fn audited(&self) -> Option<String> {
        None
    }

    /// Its counts, for messages.
    fn counts(&self) -> String;

    /// The engine ends.
    fn ended(&self) {}
}

/// The settings of a cache over a geometry.
pub fn cache_config(
    geometry: &Geometry,
    slot_bytes: usize,
    slots: usize,
    policy: &str,
) -> CacheConfig {
    let class = |class: &hybrid_pages::geometry::PageClass| ClassConfig {
        kind: class.kind,
        window_blocks: class.window_blocks.unwrap_or_default(),
        slots_per_entry: geometry.slots_per_entry(class.index, slot_bytes).unwrap(),
    };
    CacheConfig {
        classes: geometry.classes().iter().map(class).collect(),
        ranks: geometry.ranks(),
        slots,
        slot_bytes,
        policy: policy.into(),
        tenant_slots: None,
    }
}

/// Pages of `page` bytes and checkpoints of `checkpoint`, on each rank.
pub fn geometry(page: usize, checkpoint: usize, ranks: usize) -> Geometry {
    let group = |kind, name: &str, bytes| {
        let segment = Segment::new("data", Dtype::Uint8, vec![bytes]).unwrap();
        let layer = Layer::new(name, vec![segment]).unwrap();
        Group::new(kind, vec![layer], None).unwrap()
    };
    let groups = vec![
        group(ClassKind::Attention, "a", page),
        group(ClassKind::Recurrent, "r", checkpoint),
    ];
    Geometry::new(16, groups, ranks, BTreeMap::new()).unwrap()
}

/// A cache over a tier, and the engine that it serves.
pub struct Engine<H: Handle> {
    pub cache: Cache,
    pub namespace: NamespaceId,
    pub arena: Arc<Arena>,
    pub below: H,
    pub geometry: Geometry,
    /// Goes up with every change of the weights: the same tokens give other bytes then.
    pub weights: u64,
}

impl<H: Handle> Engine<H> {
    /// The engine of a cache that was made for such a geometry.
    pub fn over(cache: Cache, arena: Arena, below: H, geometry: &Geometry) -> Self {
        Self {
            namespace: cache.namespace(b"engine").unwrap(),
            cache,
            arena: Arc::new(arena),
            below,
            geometry: geometry.clone(),
            weights: 0,
        }
    }

    /// The shards that the engine computes for an entry.
    pub fn shards(&self, class: usize, prefix: &str) -> Vec<Vec<u8>> {
        let bytes = self.geometry.classes()[class].rank_bytes;
        let shard = |rank: usize| {
            let seed = format!("{class} {rank} {prefix} {}", self.weights);
            let mut shard = vec![0; bytes];
            blake3::Hasher::new()
                .update(seed.as_bytes())
                .finalize_xof()
                .fill(&mut shard);
            shard
        };
        (0..self.geometry.ranks()).map(shard).collect()
    }

    fn part(&self) -> usize {
        self.arena.slot_bytes() / self.geometry.ranks()
    }

    /// Writes the shards of an entry into its slots.
    pub fn fill(&self, slots: &[SlotId], shards: &[Vec<u8>]) {
        for (at, &slot) in slots.iter().enumerate() {
            let mut bytes = vec![0xEE; self.arena.slot_bytes()];
            for (rank, shard) in shards.iter().enumerate() {
                let from = (at * self.part()).min(shard.len());
                let piece = &shard[from..shard.len().min(from + self.part())];
                bytes[rank * self.part()..][..piece.len()].copy_from_slice(piece);
            }
            self.arena.write(slot, &bytes).unwrap();
        }
    }

    /// Reads the shards of an entry from its slots.
    pub fn read(&self, class: usize, slots: &[SlotId]) -> Vec<Vec<u8>> {
        let mut shards = vec![Vec::new(); self.geometry.ranks()];
        for &slot in slots {
            let bytes = self.arena.read(slot).unwrap();
            for (shard, piece) in shards.iter_mut().zip(bytes.chunks(self.part())) {
                shard.extend(piece);
            }
        }
        let bytes = self.geometry.classes()[class].rank_bytes;
        shards.iter_mut().for_each(|shard| shard.truncate(bytes));
        shards
    }

    pub fn sums(shards: &[Vec<u8>]) -> Vec<u64> {
        shards.iter().map(|shard| checksum(shard)).collect()
    }

    pub fn commit(&self, prompt: &str, lease: &mut WriteLease) -> usize {
        let fill = |entry: &LeaseEntry| {
            let shards = self.shards(entry.class_index, &prompt[..=entry.block_index]);
            self.fill(&entry.slots, &shards);
            Self::sums(&shards)
        };
        let sums: Vec<Vec<u64>> = lease.entries().iter().map(fill).collect();
        lease.commit(&sums).unwrap()
    }

    pub fn reserve(&self, prompt: &str, entries: &[(usize, usize)]) -> WriteLease {
        self.cache
            .reserve(self.namespace, &keys(prompt), entries)
            .unwrap()
    }

    /// Stores every page and a checkpoint at the prompt's end. Returns how many entries were new to the host.
    pub fn store(&self, prompt: &str) -> usize {
        self.commit(prompt, &mut self.reserve(prompt, &whole(prompt)))
    }

    /// The same, when the host has room: writes that have not ended hold slots.
    pub fn store_whole(&self, prompt: &str) {
        if self.store(prompt) <= prompt.len() {
            self.settle();
            self.store(prompt);
            let hit = self.hit(prompt);
            assert_eq!(hit.host, prompt.len(), "{prompt} is in the host: {hit:?}");
        }
    }

    /// The same, and waits until a new process would find it.
    pub fn keep(&self, prompt: &str) {
        self.store_whole(prompt);
        self.settle();
    }

    pub fn settle(&self) {
        let begun = Instant::now();
        loop {
            self.cache.poll();
            let settled = self.below.settled(Duration::from_millis(20));
            self.cache.poll();
            if settled {
                return;
            }
            assert!(
                begun.elapsed() < LIMIT,
                "the tier did not settle: {}",
                self.below.counts()
            );
        }
    }

    pub fn hit(&self, prompt: &str) -> Hit {
        self.cache.lookup(self.namespace, &keys(prompt)).unwrap()
    }

    /// Restores a prompt as an engine does: promotes until nothing is under way, then loads what the host
    /// has and compares every byte. Returns the depth.
    pub fn restore(&self, prompt: &str) -> usize {
        let begun = Instant::now();
        while self
            .cache
            .promote(self.namespace, &keys(prompt), 0)
            .unwrap()
        {
            assert!(
                begun.elapsed() < LIMIT,
                "a promotion did not end: {}",
                self.below.counts()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        self.load(prompt)
    }

    /// Loads what the host has of a prompt and compares every byte. Returns the depth.
    pub fn load(&self, prompt: &str) -> usize {
        let lease = self
            .cache
            .acquire(self.namespace, &keys(prompt), 0)
            .unwrap();
        let Some(lease) = lease else { return 0 };
        for entry in lease.entries() {
            let found = self.read(entry.class_index, &entry.slots);
            let expected = self.shards(entry.class_index, &prompt[..=entry.block_index]);
            let at = (entry.class_index, entry.block_index);
            assert!(found == expected, "other bytes at {at:?} of {prompt}");
            assert_eq!(entry.checksums, Self::sums(&found));
        }
        lease.blocks()
    }

    pub fn tier(&self) -> TierStats {
        self.cache.tiers().swap_remove(0)
    }

    pub fn audit(&self) {
        assert_eq!(self.cache.audit(), None);
        assert_eq!(self.below.audited(), None);
    }
}

impl<H: Handle> Drop for Engine<H> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.audit();
            self.below.ended();
        }
    }
}
