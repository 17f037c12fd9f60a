//! Every policy behind the cache: what is held stays, rooms add up, nothing is lost, and the hits of a
//! live cache are those of the lab.

use std::collections::{HashSet, VecDeque};
use std::io::Read;
use std::ops::ControlFlow;

use hybrid_pages::cache::{Arrival, Cache, CacheConfig, ClassConfig, ReadLease, WriteLease};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::policy;
use hybrid_pages::replay::{Budget, ReadOptions, Trace, replay};
use proptest::prelude::*;

use ClassKind::{Attention, Recurrent, Window};

type Kinds = &'static [(ClassKind, usize)];

fn keys(letters: &[u8]) -> Vec<PrefixKey> {
    (1..=letters.len())
        .map(|end| PrefixKey::new(blake3::hash(&letters[..end]).as_bytes()).unwrap())
        .collect()
}

fn cache(name: &str, kinds: &[(ClassKind, usize)], slots: usize) -> (Cache, NamespaceId) {
    let class = |&(kind, slots_per_entry): &(ClassKind, usize)| ClassConfig {
        kind,
        window_blocks: 2,
        slots_per_entry,
    };
    let classes = kinds.iter().map(class).collect();
    let cache = Cache::new(&CacheConfig {
        classes,
        ranks: 1,
        slots,
        slot_bytes: 512,
        policy: name.into(),
    })
    .unwrap();
    let namespace = cache.namespace(b"x").unwrap();
    (cache, namespace)
}

fn commit(lease: &mut WriteLease) -> usize {
    lease.commit(&vec![[7]; lease.entries().len()]).unwrap()
}

/// What a step that ends at `end` stores: the pages since `start`, and a checkpoint if that was admitted.
fn wanted(
    kinds: &[(ClassKind, usize)],
    start: usize,
    end: usize,
    admitted: &[usize],
) -> Vec<(usize, usize)> {
    let mut wanted = Vec::new();
    for (class, (kind, _)) in kinds.iter().enumerate() {
        match kind {
            Recurrent => wanted.extend(admitted.contains(&end).then_some((class, end - 1))),
            _ => wanted.extend((start..end).map(|block| (class, block))),
        }
    }
    wanted
}

const SHAPES: [Kinds; 7] = [
    &[(Attention, 1), (Recurrent, 3)],
    &[(Recurrent, 5), (Attention, 2)],
    &[(Attention, 1), (Window, 1), (Recurrent, 2)],
    &[(Attention, 2), (Window, 1)],
    &[(Attention, 1)],
    &[(Recurrent, 2)],
    &[(Window, 1), (Recurrent, 2)],
];

/// One thing that an engine does with a prompt.
#[derive(Debug, Clone)]
struct Act {
    letters: Vec<u8>,
    /// Whether the policy is asked first.
    asks: bool,
    /// Blocks a step.
    step: usize,
    /// Steps after which the request stops without a word.
    steps: usize,
    finishes: bool,
    what: u8,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let letters = prop::collection::vec(0..3_u8, 1..9);
    let act = (
        letters,
        any::<bool>(),
        1..5_usize,
        0..6_usize,
        any::<bool>(),
        0..12_u8,
    )
        .prop_map(|(letters, asks, step, steps, finishes, what)| Act {
            letters,
            asks,
            step,
            steps,
            finishes,
            what,
        });
    prop::collection::vec(act, 1..60)
}

proptest! {
    #[test]
    fn whatever_an_engine_does_what_is_held_stays_and_all_room_can_be_had_again(
        acts in acts(), slots in 8..40_usize, shape in 0..SHAPES.len(),
    ) {
        for name in policy::NAMES {
            let kinds = SHAPES[shape];
            let (cache, namespace) = cache(name, kinds, slots);
            let mut reading: Vec<(Vec<PrefixKey>, ReadLease)> = Vec::new();
            let mut writing: Vec<WriteLease> = Vec::new();
            for (at, act) in acts.iter().enumerate() {
                let keys = keys(&act.letters);
                let arrival = Arrival { now: at as u64 * 700, tokens: keys.len() as u64 * 4 + 1, limit: keys.len() };
                let admitted = if act.asks {
                    cache.admit(namespace, &keys, arrival).unwrap().boundaries
                } else {
                    vec![keys.len()]
                };
                let mut done = 0;
                if let Some(lease) = cache.acquire(namespace, &keys, 0).unwrap() {
                    done = lease.blocks();
                    reading.push((keys.clone(), lease));
                }
                for _ in 0..act.steps {
                    let end = (done + act.step).min(keys.len());
                    let entries = wanted(kinds, done, end, &admitted);
                    let mut lease = cache.reserve(namespace, &keys, &entries).unwrap();
                    match act.what {
                        0 => lease.abort(),
                        1..4 => writing.push(lease),
                        _ => { commit(&mut lease); }
                    }
                    done = end;
                }
                if act.finishes {
                    cache.finish(namespace, &keys, keys.len(), 9).unwrap();
                }
                match act.what {
                    4 => reading.clear(),
                    5 => writing.clear(),
                    6 => writing.iter_mut().for_each(|lease| { commit(lease); }),
                    7 => if let Some((_, lease)) = reading.pop() {
                        cache.invalidate(&lease).unwrap();
                        reading.clear();
                    },
                    8 => { cache.clear(); reading.clear(); }
                    _ => {}
                }
                writing.retain(|lease| !lease.ended());
                for (keys, lease) in &reading {
                    prop_assert!(cache.lookup(namespace, keys).unwrap().blocks >= lease.blocks(), "{}", name);
                }
                prop_assert_eq!(cache.audit(), None, "{}", name);
            }
            drop((reading, writing));
            // One long prompt of the first kind alone gets everything.
            let (_, units) = kinds[0];
            let fresh: Vec<u8> = (0..slots / units).map(|block| block as u8 + 100).collect();
            let entries: Vec<_> = (0..fresh.len()).map(|block| (0, block)).collect();
            if kinds[0].0 != Recurrent || kinds.len() == 1 {
                let lease = cache.reserve(namespace, &keys(&fresh), &entries).unwrap();
                prop_assert_eq!(lease.entries().len(), entries.len(), "{}", name);
            }
            prop_assert_eq!(cache.audit(), None, "{}", name);
        }
    }
}

struct Prompt {
    now: u64,
    tokens: u64,
    output_tokens: u64,
    keys: Vec<PrefixKey>,
}

/// The first lines of the conversation trace.
fn conversation(lines: usize) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/mooncake_conversation_trace.jsonl.zst");
    let file = std::fs::File::open(path).unwrap();
    let mut text = String::new();
    ruzstd::decoding::StreamingDecoder::new(file)
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    text.lines()
        .take(lines)
        .flat_map(|line| [line, "\n"])
        .collect()
}

fn prompts(text: &str) -> Vec<Prompt> {
    let prompt = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| line[name].as_u64().unwrap();
        let tokens = number("input_length");
        let mut chain = blake3::Hasher::new();
        let hashes = line["hash_ids"].as_array().unwrap();
        let mut key = |id: &serde_json::Value| {
            chain.update(&id.as_u64().unwrap().to_le_bytes());
            PrefixKey::new(chain.finalize().as_bytes()).unwrap()
        };
        Prompt {
            now: number("timestamp"),
            tokens,
            output_tokens: number("output_length"),
            keys: hashes
                .iter()
                .take(tokens as usize / 512)
                .map(&mut key)
                .collect(),
        }
    };
    text.lines().map(prompt).collect()
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
fn live(
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

const LINES: usize = 4_000;

fn lab(text: &str, name: &str, ratio: u32, units: u64) -> u64 {
    let trace = Trace::read(text.as_bytes(), ReadOptions::default()).unwrap();
    let rows = replay(
        &[trace],
        &[name.to_owned()],
        &[Budget::Units(units)],
        ratio,
        &|_| ControlFlow::Continue(()),
    );
    rows.unwrap()[0].hit_tokens
}

#[test]
fn reuse_hits_in_a_live_cache_what_it_hits_in_the_lab_whatever_the_slots_and_the_steps() {
    let text = conversation(LINES);
    let prompts = prompts(&text);
    for (units, kinds, at_once) in [
        (1_200, [(Attention, 1), (Recurrent, 3)], 1),
        (1_200, [(Attention, 24), (Recurrent, 72)], 4),
        (5_000, [(Recurrent, 21), (Attention, 7)], 8),
    ] {
        let slots = units * kinds.iter().map(|&(_, slots)| slots).min().unwrap();
        let found = live(&prompts, "reuse", &kinds, slots, at_once) as f64;
        let expected = lab(&text, "reuse", 3, units as u64) as f64;
        assert!(
            (found / expected - 1.0).abs() < 0.05,
            "{kinds:?}: the lab hits {expected}, the cache {found}"
        );
    }
}

#[test]
fn reuse_beats_the_others_in_a_live_cache_with_or_without_pages() {
    let prompts = prompts(&conversation(LINES));
    for (slots, kinds, share) in [
        (1_200 * 24, &[(Attention, 24), (Recurrent, 72)][..], 1.4),
        (1_200, &[(Recurrent, 3)][..], 1.02),
    ] {
        let hits = |name| live(&prompts, name, kinds, slots, 4) as f64;
        let most = ["page-lru", "junction-lru"]
            .map(hits)
            .into_iter()
            .fold(0.0, f64::max);
        let found = hits("reuse");
        assert!(
            found > share * most,
            "{kinds:?}: {found}, the best other {most}"
        );
    }
}

#[test]
fn without_checkpoints_reuse_is_junction_lru() {
    let prompts = prompts(&conversation(1_000));
    let hits = |name| live(&prompts, name, &[(Attention, 2)], 2_000, 4);
    assert_eq!(hits("reuse"), hits("junction-lru"));
}

#[test]
fn a_fork_that_two_requests_have_wanted_outlasts_what_one_has_at_any_pace() {
    let visitor = |name: u8| keys(&[b"fork", [name; 3].as_slice()].concat());
    let others = (b'0'..=b'5').map(|name| keys(&[name; 9]));
    let visits: Vec<_> = std::iter::once(visitor(0))
        .chain(others)
        .chain([visitor(1), visitor(2)])
        .collect();
    for pace in [0, 1, 5, 7, 15, 40, 300, 5_000] {
        let prompts: Vec<_> = (0..)
            .zip(&visits)
            .map(|(place, keys)| Prompt {
                now: place * pace,
                tokens: keys.len() as u64 * 512,
                output_tokens: 2,
                keys: keys.clone(),
            })
            .collect();
        let hits = live(&prompts, "reuse", &[(Attention, 4), (Recurrent, 9)], 195, 1);
        assert_eq!(hits, 4 * 512, "{pace} ms a request");
    }
}

/// A cache of 10 pages or fewer and checkpoints, a prompt with its checkpoint in it, and 4 pages of another.
fn two_prompts(finished: bool) -> (Cache, NamespaceId, Vec<PrefixKey>, Vec<PrefixKey>) {
    let (cache, namespace) = cache("reuse", &[(Attention, 1), (Recurrent, 1)], 9);
    let (kept, running) = (keys(b"kept"), keys(b"runs on"));
    let arrive = |keys: &[PrefixKey], now| {
        let arrival = Arrival {
            now,
            tokens: 99,
            limit: keys.len(),
        };
        cache.admit(namespace, keys, arrival).unwrap();
    };
    arrive(&kept, 0);
    let entries: Vec<_> = (0..4).map(|block| (0, block)).chain([(1, 3)]).collect();
    assert_eq!(
        commit(&mut cache.reserve(namespace, &kept, &entries).unwrap()),
        5
    );
    cache.finish(namespace, &kept, 4, 9).unwrap();
    arrive(&running, 1);
    assert_eq!(
        commit(&mut cache.reserve(namespace, &running, &entries[..4]).unwrap()),
        4
    );
    if finished {
        cache.finish(namespace, &running, running.len(), 9).unwrap();
    }
    let other = keys(b"!");
    arrive(&other, 2);
    assert_eq!(
        commit(&mut cache.reserve(namespace, &other, &[(0, 0), (1, 0)]).unwrap()),
        2
    );
    (cache, namespace, kept, running)
}

#[test]
fn pages_of_a_request_that_ended_without_a_checkpoint_go_first() {
    let (cache, namespace, kept, running) = two_prompts(true);
    assert_eq!(cache.lookup(namespace, &kept).unwrap().blocks, 4);
    assert!(cache.lookup(namespace, &running).unwrap().pages < 4);
}

#[test]
fn pages_of_a_running_request_wait_for_their_checkpoint() {
    let (cache, namespace, _, running) = two_prompts(false);
    assert_eq!(cache.lookup(namespace, &running).unwrap().pages, 4);
    let mut lease = cache
        .reserve(namespace, &running, &[(0, 4), (0, 5), (0, 6), (1, 6)])
        .unwrap();
    assert_eq!(commit(&mut lease), 4);
    assert_eq!(cache.lookup(namespace, &running).unwrap().blocks, 7);
}

#[test]
fn memory_stays_bounded_when_what_is_admitted_is_never_stored() {
    for name in policy::NAMES {
        let (cache, namespace) = cache(name, &[(Attention, 1), (Recurrent, 3)], 64);
        let mut sizes = HashSet::new();
        for number in 0..60_000_u64 {
            let key = PrefixKey::new(blake3::hash(&number.to_le_bytes()).as_bytes()).unwrap();
            let arrival = Arrival {
                now: number * 10,
                tokens: 600,
                limit: 1,
            };
            cache.admit(namespace, &[key], arrival).unwrap();
            if number >= 40_000 {
                sizes.insert(cache.stats().metadata_bytes);
            }
        }
        assert_eq!(sizes.len(), 1, "{name}");
    }
}
