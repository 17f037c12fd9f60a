//! A host whose slots are plain bytes, an engine that fills and reads them, and a tier below in memory.
//!
//! The engine's prompts are strings: one letter per block. The tier's copies end when a test says so, read and
//! write the slots only then, and can be told to fail or to damage what they read.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) use crate::cache_support;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cache_support::{class, keys, whole};
use hybrid_pages::cache::{
    Cache, CacheConfig, ClassConfig, LeaseEntry, ReadLease, Restore, RestoreProgress, WriteLease,
};
use hybrid_pages::error::Error;
use hybrid_pages::ids::{ClassKind, EntryKey, NamespaceId, SlotId};
use hybrid_pages::policy::{self, EntryKind};
use hybrid_pages::prefix::Hit;
use hybrid_pages::tier::{Below, CopyEnd, CopyId, Found, Room, Tier};
use hybrid_pages::transfer::checksum;

pub const SLOT_BYTES: usize = 32;
pub const RANKS: usize = 2;

pub fn hybrid() -> Vec<ClassConfig> {
    vec![
        class(ClassKind::Attention, 0, 1),
        class(ClassKind::Recurrent, 0, 2),
    ]
}

/// The checksums of an entry's bytes, one per rank.
pub fn sums(bytes: &[u8]) -> Vec<u64> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    vec![checksum(first), checksum(second)]
}

pub type Slots = Arc<Mutex<Vec<[u8; SLOT_BYTES]>>>;

pub fn gather(memory: &Slots, slots: &[SlotId]) -> Vec<u8> {
    let memory = memory.lock().unwrap();
    slots
        .iter()
        .flat_map(|slot| memory[slot.0 as usize])
        .collect()
}

pub fn scatter(memory: &Slots, slots: &[SlotId], bytes: &[u8]) {
    let mut memory = memory.lock().unwrap();
    for (slot, chunk) in slots.iter().zip(bytes.chunks(SLOT_BYTES)) {
        memory[slot.0 as usize].copy_from_slice(chunk);
    }
}

/// A copy that has started. A write that was undone ends, too, and leaves nothing.
struct Started {
    copy: CopyId,
    key: EntryKey,
    slots: Vec<SlotId>,
    /// Of a write.
    checksums: Option<Vec<u64>>,
    undone: bool,
}

/// The bytes of a tier and what it is told: they outlive the cache, as a disk does.
#[derive(Default)]
pub struct Shelf {
    pub entries: HashMap<EntryKey, (Vec<u8>, Vec<u64>)>,
    started: VecDeque<Started>,
    /// Copies that may end; `None`: all.
    pub ends: Option<usize>,
    pub fail_writes: usize,
    pub fail_reads: usize,
    pub damage_reads: usize,
    /// Entries whose next read fails.
    pub unreadable: HashSet<EntryKey>,
    /// What is forgotten stays, as on a disk.
    pub keeps_forgotten: bool,
    pub declines: Vec<EntryKind>,
    /// Positions, among the copies under way, of those that end next; then the oldest ends.
    pub order: VecDeque<usize>,
    /// Ends that are reported though nothing ended.
    pub invented: Vec<CopyId>,
    /// What was asked since the last answer. `None`: the tier knows what it has.
    pub asked: Option<HashSet<EntryKey>>,
    /// What is known by answers, there or not.
    answered: HashSet<EntryKey>,
    /// How long a read takes, and each entry and byte of it. `None`: it is never weighed.
    pub pace: Option<[Duration; 3]>,
    /// Bytes that come before reads are given up.
    pub in_time: Option<u64>,
    /// Others may put entries there.
    pub is_shared: bool,
    /// Entries are accepted once they are proven.
    pub waits_for_proof: bool,
}

impl Shelf {
    pub fn under_way(&self) -> usize {
        self.started.len()
    }

    /// A process that ends: no copy of its ends any more, and it has asked nothing.
    pub fn crash(&mut self) {
        self.started.clear();
        self.answered.clear();
        self.asked.iter_mut().for_each(HashSet::clear);
    }

    /// What was asked is known from now on. Returns how many entries that were.
    pub fn answer(&mut self) -> usize {
        let asked = self.asked.iter_mut().flat_map(HashSet::drain);
        let before = self.answered.len();
        self.answered.extend(asked);
        self.answered.len() - before
    }
}

/// A handle of a shelf that tests keep.
#[derive(Clone, Default)]
pub struct Handle(Arc<Mutex<Shelf>>);

impl Handle {
    pub fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap()
    }

    /// No copy ends until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.lock().ends = Some(0);
    }

    pub fn resume(&self) {
        self.lock().ends = None;
    }

    /// Entries of a prompt.
    pub fn count(&self, prompt: &str) -> usize {
        let (shelf, keys) = (self.lock(), keys(prompt));
        let of_it = |key: &&EntryKey| keys.contains(&key.prefix);
        shelf.entries.keys().filter(of_it).count()
    }

    /// Classes and blocks of all entries.
    pub fn places(&self) -> Vec<(usize, usize)> {
        let shelf = self.lock();
        let mut places: Vec<_> = shelf
            .entries
            .keys()
            .map(|key| (key.class_index, key.block_index))
            .collect();
        places.sort_unstable();
        places
    }
}

/// A tier of so many slots over a shelf.
pub struct Memory {
    room: Room,
    shelf: Handle,
    host: Slots,
    queue: u64,
}

impl Tier for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn room(&self) -> &Room {
        &self.room
    }

    fn room_mut(&mut self) -> &mut Room {
        &mut self.room
    }
}

impl Below for Memory {
    fn queue_slots(&self) -> u64 {
        self.queue
    }

    fn is_shared(&self) -> bool {
        self.shelf.lock().is_shared
    }

    fn waits_for_proof(&self) -> bool {
        self.shelf.lock().waits_for_proof
    }

    fn accepts(&mut self, entry: &policy::NewEntry) -> bool {
        let shelf = self.shelf.lock();
        (entry.proven || !shelf.waits_for_proof) && !shelf.declines.contains(&entry.kind)
    }

    fn expects(&self, entries: u64, bytes: u64) -> Option<Duration> {
        let [once, entry, byte] = self.shelf.lock().pace?;
        Some(once + entry * entries as u32 + byte * bytes as u32)
    }

    fn in_time(&self) -> Option<u64> {
        self.shelf.lock().in_time
    }

    fn write(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId], checksums: &[u64]) {
        self.shelf.lock().started.push_back(Started {
            copy,
            key: key.clone(),
            slots: slots.to_vec(),
            checksums: Some(checksums.to_vec()),
            undone: false,
        });
    }

    fn read(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId]) {
        self.shelf.lock().started.push_back(Started {
            copy,
            key: key.clone(),
            slots: slots.to_vec(),
            checksums: None,
            undone: false,
        });
    }

    fn poll(&mut self, ended: &mut Vec<CopyEnd>) {
        let mut shelf = self.shelf.lock();
        ended.extend(shelf.invented.drain(..).map(|copy| CopyEnd {
            copy,
            result: Ok(vec![]),
        }));
        while shelf.ends != Some(0) {
            let next = shelf.order.pop_front().unwrap_or(0);
            let next = next.checked_rem(shelf.started.len());
            let Some(work) = next.and_then(|at| shelf.started.remove(at)) else {
                return;
            };
            if let Some(ends) = &mut shelf.ends {
                *ends -= 1;
            }
            ended.push(CopyEnd {
                copy: work.copy,
                result: shelf.run(&self.host, work),
            });
        }
    }

    fn find(&mut self, key: &EntryKey) -> Found {
        let mut shelf = self.shelf.lock();
        if !shelf.answered.contains(key)
            && let Some(asked) = &mut shelf.asked
        {
            asked.insert(key.clone());
            return Found::Asking;
        }
        let found = shelf.entries.get(key);
        found.map_or(Found::Absent, |(_, checksums)| {
            Found::Here(checksums.clone())
        })
    }

    fn may_have(&mut self, key: &EntryKey) -> Option<bool> {
        let found = self.find(key);
        (found != Found::Asking).then_some(found != Found::Absent)
    }

    fn tail_lengths(&mut self, namespace: &[u8], stem: u64, lengths: &mut Vec<u32>) -> bool {
        let shelf = self.shelf.lock();
        let keys = shelf.entries.keys();
        let tails =
            keys.filter(|key| key.namespace[..] == *namespace && key.prefix.stem() == Some(stem));
        lengths.extend(tails.filter_map(|key| key.prefix.tail_tokens()));
        false
    }

    fn remove(&mut self, key: &EntryKey) {
        let mut shelf = self.shelf.lock();
        shelf.entries.remove(key);
        let writes = shelf.started.iter_mut();
        writes
            .filter(|work| work.key == *key)
            .for_each(|work| work.undone = true);
    }

    fn forget(&mut self, key: &EntryKey) {
        if !self.shelf.lock().keeps_forgotten {
            self.remove(key);
        }
    }

    fn clear(&mut self) {
        let mut shelf = self.shelf.lock();
        shelf.entries.clear();
        shelf.started.iter_mut().for_each(|work| work.undone = true);
    }
}

fn spend(count: &mut usize) -> bool {
    let spent = *count > 0;
    *count = count.saturating_sub(1);
    spent
}

impl Shelf {
    fn run(&mut self, host: &Slots, work: Started) -> Result<Vec<u64>, Error> {
        let failed = |what: &str| {
            Err(Error::transfer(format!(
                "expected a {what}, found a failure"
            )))
        };
        if let Some(checksums) = work.checksums {
            let bytes = gather(host, &work.slots);
            // Whoever reused a slot too early is found out here.
            assert_eq!(
                sums(&bytes),
                checksums,
                "the bytes changed while they were copied"
            );
            if spend(&mut self.fail_writes) {
                return failed("write");
            }
            if !work.undone {
                self.entries.insert(work.key, (bytes, checksums));
            }
            return Ok(vec![]);
        }
        if self.unreadable.remove(&work.key) || spend(&mut self.fail_reads) {
            return failed("read");
        }
        let Some((bytes, _)) = self.entries.get(&work.key) else {
            return failed("read"); // It was removed meanwhile.
        };
        let mut bytes = bytes.clone();
        if spend(&mut self.damage_reads) {
            bytes[0] ^= 1;
        }
        scatter(host, &work.slots, &bytes);
        Ok(sums(&bytes))
    }
}

/// Slots of a tier and of its queue.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub slots: u64,
    pub queue: u64,
}

pub const LARGE: Size = Size {
    slots: 100,
    queue: 100,
};

/// A cache with its tiers and the engine that it serves.
pub struct Engine {
    pub cache: Cache,
    pub namespace: NamespaceId,
    pub classes: Vec<ClassConfig>,
    pub memory: Slots,
    /// Goes up with every change of the weights: the same tokens give other bytes then.
    pub weights: u64,
}

impl Engine {
    pub fn new(classes: &[ClassConfig], slots: usize, below: &[(Handle, Size)]) -> Self {
        Self::with_policy(classes, slots, below, "lru")
    }

    pub fn with_policy(
        classes: &[ClassConfig],
        slots: usize,
        below: &[(Handle, Size)],
        policy: &str,
    ) -> Self {
        Self::with_share(classes, slots, below, policy, None)
    }

    pub fn with_share(
        classes: &[ClassConfig],
        slots: usize,
        below: &[(Handle, Size)],
        policy: &str,
        tenant_slots: Option<usize>,
    ) -> Self {
        let config = CacheConfig {
            classes: classes.to_vec(),
            ranks: RANKS,
            slots,
            slot_bytes: SLOT_BYTES,
            policy: policy.into(),
            tenant_slots,
        };
        let memory: Slots = Arc::new(Mutex::new(vec![[0; SLOT_BYTES]; slots]));
        let tier = |(shelf, size): &(Handle, Size)| -> Box<dyn Below> {
            let policy = policy::by_name(policy, config.shape()).unwrap();
            Box::new(Memory {
                room: Room::new(size.slots, policy),
                shelf: shelf.clone(),
                host: Arc::clone(&memory),
                queue: size.queue,
            })
        };
        let cache = Cache::with_tiers(&config, below.iter().map(tier).collect()).unwrap();
        let namespace = cache.namespace(b"engine").unwrap();
        Self {
            cache,
            namespace,
            classes: classes.to_vec(),
            memory,
            weights: 0,
        }
    }

    /// Pages and a checkpoint, with one large tier below.
    pub fn hybrid(slots: usize) -> (Self, Handle) {
        let shelf = Handle::default();
        (
            Self::new(&hybrid(), slots, &[(shelf.clone(), LARGE)]),
            shelf,
        )
    }

    /// The bytes that the engine computes for an entry.
    pub fn bytes(&self, class: usize, prefix: &str) -> Vec<u8> {
        let seed = format!("{class} {prefix} {}", self.weights);
        let mut bytes = vec![0; self.classes[class].slots_per_entry * SLOT_BYTES];
        blake3::Hasher::new()
            .update(seed.as_bytes())
            .finalize_xof()
            .fill(&mut bytes);
        bytes
    }

    pub fn hit(&self, prompt: &str) -> Hit {
        self.cache.lookup(self.namespace, &keys(prompt)).unwrap()
    }

    /// The joint hit over all tiers and that of the host alone.
    pub fn depths(&self, prompt: &str) -> (usize, usize) {
        let hit = self.hit(prompt);
        (hit.blocks, hit.host)
    }

    pub fn promote(&self, prompt: &str) -> bool {
        self.cache
            .promote(self.namespace, &keys(prompt), 0)
            .unwrap()
    }

    pub fn restore(&self, prompt: &str, first: usize) -> Option<Restore> {
        let cache = &self.cache;
        cache.restore(self.namespace, &keys(prompt), first).unwrap()
    }

    /// Takes every wave, each after the one before was loaded. Returns what the waves had, with its block.
    pub fn take_all(&self, prompt: &str, restore: &mut Restore) -> Vec<(usize, usize)> {
        let mut taken = Vec::new();
        while restore.progress() == RestoreProgress::Ready {
            let lease = restore.take().unwrap();
            self.check(prompt, &lease);
            let places = lease.entries().iter();
            taken.extend(places.map(|entry| (entry.class_index, entry.block_index)));
        }
        taken
    }

    pub fn acquire(&self, prompt: &str) -> Option<ReadLease> {
        self.cache
            .acquire(self.namespace, &keys(prompt), 0)
            .unwrap()
    }

    pub fn reserve(&self, prompt: &str, entries: &[(usize, usize)]) -> WriteLease {
        self.cache
            .reserve(self.namespace, &keys(prompt), entries)
            .unwrap()
    }

    /// Computes the entries of a lease into their slots and publishes them.
    pub fn commit(&self, prompt: &str, lease: &mut WriteLease) -> usize {
        let fill = |entry: &LeaseEntry| {
            let bytes = self.bytes(entry.class_index, &prompt[..=entry.block_index]);
            scatter(&self.memory, &entry.slots, &bytes);
            sums(&bytes)
        };
        let checksums: Vec<Vec<u64>> = lease.entries().iter().map(fill).collect();
        lease.commit(&checksums).unwrap()
    }

    pub fn store(&self, prompt: &str, entries: &[(usize, usize)]) -> usize {
        self.commit(prompt, &mut self.reserve(prompt, entries))
    }

    /// Stores every page of class 0 and, in class 1, a checkpoint at the prompt's end.
    pub fn store_prompt(&self, prompt: &str) {
        assert_eq!(self.store(prompt, &whole(prompt)), prompt.len() + 1);
    }

    /// The same, and the tier has it, too, unless its copies are paused.
    pub fn store_below(&self, prompt: &str) {
        self.store_prompt(prompt);
        self.cache.poll();
    }

    /// Reads what a lease names and compares it with what the engine computes now. Returns its depth.
    pub fn check(&self, prompt: &str, lease: &ReadLease) -> usize {
        for entry in lease.entries() {
            let found = gather(&self.memory, &entry.slots);
            let expected = self.bytes(entry.class_index, &prompt[..=entry.block_index]);
            assert_eq!(found, expected, "{entry:?} of {prompt}");
            assert_eq!(entry.checksums, sums(&found));
        }
        lease.blocks()
    }

    /// Loads a prompt from the host and compares every byte. Returns the depth of the hit.
    pub fn load(&self, prompt: &str) -> usize {
        let lease = self.acquire(prompt);
        lease.map_or(0, |lease| self.check(prompt, &lease))
    }

    /// The counts of the first tier below.
    pub fn tier(&self) -> hybrid_pages::cache::TierStats {
        self.cache.tiers().swap_remove(0)
    }

    pub fn audit(&self) {
        assert_eq!(self.cache.audit(), None);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.audit();
        }
    }
}
