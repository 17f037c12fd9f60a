//! A live cache with a policy, and an engine that drives it with the prompts of a trace.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::VecDeque;

use hybrid_pages::cache::{Arrival, Cache, CacheConfig, ClassConfig, WriteLease};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::policy::Hints;

pub fn keys(letters: &[u8]) -> Vec<PrefixKey> {
    (1..=letters.len())
        .map(|end| PrefixKey::new(blake3::hash(&letters[..end]).as_bytes()).unwrap())
        .collect()
}

pub fn cache(name: &str, kinds: &[(ClassKind, usize)], slots: usize) -> (Cache, NamespaceId) {
    let cache = shared(name, kinds, slots, None);
    let namespace = cache.namespace(b"x").unwrap();
    (cache, namespace)
}

/// A cache in which one tenant may have so many slots.
pub fn shared(
    name: &str,
    kinds: &[(ClassKind, usize)],
    slots: usize,
    tenant_slots: Option<usize>,
) -> Cache {
    let class = |&(kind, slots_per_entry): &(ClassKind, usize)| ClassConfig {
        kind,
        window_blocks: 2,
        slots_per_entry,
    };
    let classes = kinds.iter().map(class).collect();
    Cache::new(&CacheConfig {
        classes,
        ranks: 1,
        slots,
        slot_bytes: 512,
        policy: name.into(),
        tenant_slots,
    })
    .unwrap()
}

pub fn commit(lease: &mut WriteLease) -> usize {
    lease.commit(&vec![[7]; lease.entries().len()]).unwrap()
}

/// The entries of a step that ends at `end`: the pages since `start`, and a checkpoint if that was admitted.
pub fn wanted(
    kinds: &[(ClassKind, usize)],
    start: usize,
    end: usize,
    admitted: &[usize],
) -> Vec<(usize, usize)> {
    let mut wanted = Vec::new();
    for (class, (kind, _)) in kinds.iter().enumerate() {
        match kind {
            ClassKind::Recurrent => {
                wanted.extend(admitted.contains(&end).then_some((class, end - 1)))
            }
            _ => wanted.extend((start..end).map(|block| (class, block))),
        }
    }
    wanted
}

/// A request as a trace tells it.
pub struct Prompt {
    pub now: u64,
    pub tokens: u64,
    pub output_tokens: u64,
    pub keys: Vec<PrefixKey>,
}

struct Running<'a> {
    prompt: &'a Prompt,
    done: usize,
    admitted: Vec<usize>,
}

/// An engine with so many requests at once that takes turns, each step of at most so many blocks and ending at
/// the next boundary that was admitted.
struct Engine<'a> {
    cache: Cache,
    namespace: NamespaceId,
    kinds: &'a [(ClassKind, usize)],
    running: VecDeque<Running<'a>>,
    hit_tokens: u64,
}

impl<'a> Engine<'a> {
    fn step(&mut self, most: usize) {
        let Some(mut run) = self.running.pop_front() else {
            return;
        };
        let keys = &run.prompt.keys;
        let stop = run.admitted.iter().find(|&&depth| depth > run.done);
        let end = stop.map_or(keys.len(), |&stop| stop).min(run.done + most);
        if end > run.done {
            let entries = wanted(self.kinds, run.done, end, &run.admitted);
            let mut lease = self.cache.reserve(self.namespace, &keys[..end], &entries);
            commit(lease.as_mut().unwrap());
            run.done = end;
        }
        if end < keys.len() {
            self.running.push_back(run);
        } else if end > 0 {
            let finish = self
                .cache
                .finish(self.namespace, keys, end, run.prompt.output_tokens);
            finish.unwrap();
        }
    }

    fn arrive(&mut self, prompt: &'a Prompt) {
        let limit = ((prompt.tokens.max(1) - 1) / 512) as usize;
        let arrival = Arrival {
            now: prompt.now,
            tokens: prompt.tokens,
            limit,
            hints: Hints::NONE,
        };
        let admitted = self
            .cache
            .admit(self.namespace, &prompt.keys, arrival)
            .unwrap()
            .boundaries;
        let within = &prompt.keys[..limit.min(prompt.keys.len())];
        let lease = self.cache.acquire(self.namespace, within, 0).unwrap();
        let done = lease.map_or(0, |lease| lease.blocks());
        self.hit_tokens += done as u64 * 512;
        self.running.push_back(Running {
            prompt,
            done,
            admitted,
        });
    }
}

/// Hit tokens of a live cache.
pub fn live(
    prompts: &[Prompt],
    name: &str,
    kinds: &[(ClassKind, usize)],
    slots: usize,
    at_once: usize,
) -> u64 {
    let (cache, namespace) = cache(name, kinds, slots);
    let mut engine = Engine {
        cache,
        namespace,
        kinds,
        running: VecDeque::new(),
        hit_tokens: 0,
    };
    for prompt in prompts {
        while engine.running.len() >= at_once {
            engine.step(if at_once == 1 { usize::MAX / 2 } else { 16 });
        }
        engine.arrive(prompt);
    }
    assert_eq!(engine.cache.audit(), None, "{name}");
    engine.hit_tokens
}
