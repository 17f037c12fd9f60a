//! A small cache whose prompts are strings: one letter per block, one key per prefix. A capital letter at the end is a
//! tail: of one token, if it is an A.
#![allow(dead_code, reason = "each test file uses a part of it")]

use hybrid_pages::cache::{
    Cache, CacheConfig, CacheStats, ClassConfig, ReadLease, Skipped, WriteLease,
};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::prefix::Hit;

pub const PAGE: ClassConfig = class(ClassKind::Attention, 0, 1);
pub const CHECKPOINT: ClassConfig = class(ClassKind::Recurrent, 0, 1);

pub const NONE_SKIPPED: Skipped = Skipped {
    resident: 0,
    in_writing: 0,
    no_room: 0,
    not_ready: 0,
    tenant_share: 0,
    orphan: 0,
};

pub const fn class(kind: ClassKind, window_blocks: usize, slots_per_entry: usize) -> ClassConfig {
    ClassConfig {
        kind,
        window_blocks,
        slots_per_entry,
    }
}

pub fn config(classes: &[ClassConfig], slots: usize) -> CacheConfig {
    let policy = "lru".into();
    CacheConfig {
        classes: classes.to_vec(),
        ranks: 1,
        slots,
        slot_bytes: 512,
        policy,
        tenant_slots: None,
    }
}

/// One key per block of the prompt: the hash of all its letters so far.
pub fn keys(prompt: &str) -> Vec<PrefixKey> {
    let mut keys = Vec::new();
    for (at, letter) in prompt.bytes().enumerate() {
        let hash = blake3::hash(&prompt.as_bytes()[..=at]);
        let key = if letter.is_ascii_uppercase() {
            let tokens = u32::from(letter - b'A') + 1;
            PrefixKey::tail(keys.last(), hash.as_bytes(), tokens)
        } else {
            PrefixKey::new(hash.as_bytes())
        };
        keys.push(key.unwrap());
    }
    keys
}

/// Whether a prompt ends in a tail.
pub fn is_tail(prompt: &str) -> bool {
    prompt.ends_with(|letter: char| letter.is_ascii_uppercase())
}

pub struct Small {
    pub cache: Cache,
    pub namespace: NamespaceId,
    classes: usize,
}

impl Small {
    pub fn new(classes: &[ClassConfig], slots: usize) -> Self {
        let cache = Cache::new(&config(classes, slots)).unwrap();
        let namespace = cache.namespace(b"engine").unwrap();
        Self {
            cache,
            namespace,
            classes: classes.len(),
        }
    }

    /// Pages and checkpoints of one slot each.
    pub fn hybrid(slots: usize) -> Self {
        Self::new(&[PAGE, CHECKPOINT], slots)
    }

    pub fn hit(&self, prompt: &str) -> Hit {
        self.cache.lookup(self.namespace, &keys(prompt)).unwrap()
    }

    /// The joint hit, in blocks.
    pub fn depth(&self, prompt: &str) -> usize {
        self.hit(prompt).blocks
    }

    pub fn acquire(&self, prompt: &str, first: usize) -> Option<ReadLease> {
        self.cache
            .acquire(self.namespace, &keys(prompt), first)
            .unwrap()
    }

    /// A hold on a hit that is there.
    pub fn read(&self, prompt: &str) -> ReadLease {
        self.acquire(prompt, 0).unwrap()
    }

    /// Takes and lets go of a hit, as a load does.
    pub fn load(&self, prompt: &str) {
        self.read(prompt).release();
    }

    pub fn reserve(&self, prompt: &str, entries: &[(usize, usize)]) -> WriteLease {
        self.cache
            .reserve(self.namespace, &keys(prompt), entries)
            .unwrap()
    }

    /// Reserves and commits; the number of entries that were published.
    pub fn store(&self, prompt: &str, entries: &[(usize, usize)]) -> usize {
        commit(&mut self.reserve(prompt, entries))
    }

    /// Stores every page of class 0 and, in class 1, a checkpoint at the prompt's end.
    pub fn store_prompt(&self, prompt: &str) {
        assert_eq!(self.store(prompt, &whole(prompt)), prompt.len() + 1);
    }

    /// How many classes it has.
    pub const fn classes(&self) -> usize {
        self.classes
    }

    pub fn stats(&self) -> CacheStats {
        self.cache.stats()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.cache.audit(), None);
        }
    }
}

/// Every page of a prompt and the checkpoint at its end.
pub fn whole(prompt: &str) -> Vec<(usize, usize)> {
    pages(0..prompt.len())
        .into_iter()
        .chain([(1, prompt.len() - 1)])
        .collect()
}

/// Pages of class 0.
pub fn pages(blocks: impl IntoIterator<Item = usize>) -> Vec<(usize, usize)> {
    blocks.into_iter().map(|block| (0, block)).collect()
}

pub fn commit(lease: &mut WriteLease) -> usize {
    let checksums = vec![[7]; lease.entries().len()];
    lease.commit(&checksums).unwrap()
}

/// Class and block of what a lease names.
pub fn places(entries: &[hybrid_pages::cache::LeaseEntry]) -> Vec<(usize, usize)> {
    entries
        .iter()
        .map(|entry| (entry.class_index, entry.block_index))
        .collect()
}

/// The classes of engines of every kind, in several orders.
pub fn engines() -> Vec<Vec<ClassConfig>> {
    let page = class(ClassKind::Attention, 0, 1);
    let narrow = class(ClassKind::Window, 1, 1);
    let wide = class(ClassKind::Window, 3, 2);
    let checkpoint = class(ClassKind::Recurrent, 0, 3);
    vec![
        vec![page.clone(), checkpoint.clone()],
        vec![page.clone()],
        vec![page.clone(), wide.clone()],
        vec![
            page.clone(),
            narrow.clone(),
            wide.clone(),
            checkpoint.clone(),
        ],
        vec![checkpoint.clone(), wide.clone(), page],
        vec![checkpoint.clone()],
        vec![wide, narrow, checkpoint],
    ]
}

/// Every prompt of up to six letters, of which there are two, and one tail behind each of fewer letters.
pub fn universe() -> Vec<String> {
    let mut prompts = vec![String::new()];
    for at in 0..63 {
        for letter in ['a', 'b'] {
            prompts.push(format!("{}{letter}", prompts[at]));
        }
    }
    let tails: Vec<String> = prompts[..63].iter().map(|it| format!("{it}C")).collect();
    prompts.extend(tails);
    prompts.split_off(1)
}
