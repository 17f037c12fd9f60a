//! Every policy behind the cache: what is held stays, rooms add up, nothing is lost.

use crate::live_cache;

use std::collections::HashSet;

use hybrid_pages::cache::{Arrival, Cache, ReadLease, WriteLease};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::policy::Hints;
use hybrid_pages_lab::policies;
use live_cache::{Prompt, cache, commit, keys, live, shared, wanted};
use proptest::prelude::*;

use ClassKind::{Attention, Recurrent, Window};

type Kinds = &'static [(ClassKind, usize)];

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
    /// Blocks per step.
    step: usize,
    /// Steps after which the request stops without a word.
    steps: usize,
    finishes: bool,
    what: u8,
    tenant: usize,
    hints: Hints,
}

fn hints() -> impl Strategy<Value = Hints> {
    let said = (
        prop::option::of(0..3_u64),
        -10..=10_i8,
        prop_oneof![Just(0), 1..9_000_u64],
        any::<bool>(),
    );
    let said = said.prop_map(|(session, priority, retain, store)| Hints {
        session,
        priority,
        retain,
        store,
    });
    prop_oneof![Just(Hints::NONE), said]
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
        0..3_usize,
        hints(),
    )
        .prop_map(
            |(letters, asks, step, steps, finishes, what, tenant, hints)| Act {
                letters,
                asks,
                step,
                steps,
                finishes,
                what,
                tenant,
                hints,
            },
        );
    prop::collection::vec(act, 1..60)
}

proptest! {
    #[test]
    fn whatever_an_engine_does_what_is_held_stays_and_all_room_can_be_had_again(
        acts in acts(), slots in 8..40_usize, shape in 0..SHAPES.len(), share in 7..60_usize,
    ) {
        for name in policies() {
            let kinds = SHAPES[shape];
            // Beyond the slots there is no limit, and nobody is counted.
            let cache = shared(name, kinds, slots, Some(share));
            let tenants = ["", "a", "b"].map(|tenant| {
                cache.namespace_of(tenant.as_bytes(), tenant.as_bytes()).unwrap()
            });
            let mut reading: Vec<(NamespaceId, Vec<PrefixKey>, ReadLease)> = Vec::new();
            let mut writing: Vec<WriteLease> = Vec::new();
            for (at, act) in acts.iter().enumerate() {
                let keys = keys(&act.letters);
                let namespace = tenants[act.tenant];
                let arrival = Arrival { now: at as u64 * 700, tokens: keys.len() as u64 * 4 + 1, limit: keys.len(), hints: act.hints };
                let admitted = if act.asks {
                    cache.admit(namespace, &keys, arrival).unwrap().boundaries
                } else {
                    vec![keys.len()]
                };
                let mut done = 0;
                if let Some(lease) = cache.acquire(namespace, &keys, 0).unwrap() {
                    done = lease.blocks();
                    reading.push((namespace, keys.clone(), lease));
                }
                for _ in 0..act.steps {
                    let end = (done + act.step).min(keys.len());
                    let entries = wanted(kinds, done, end, &admitted);
                    let mut lease = cache.reserve_hinted(namespace, &keys, &entries, &act.hints).unwrap();
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
                    7 => if let Some((_, _, lease)) = reading.pop() {
                        cache.invalidate(&lease).unwrap();
                        reading.clear();
                    },
                    8 => { cache.clear(); reading.clear(); }
                    _ => {}
                }
                writing.retain(|lease| !lease.ended());
                for (namespace, keys, lease) in &reading {
                    prop_assert!(cache.lookup(*namespace, keys).unwrap().blocks >= lease.blocks(), "{}", name);
                }
                prop_assert_eq!(cache.audit(), None, "{}", name);
            }
            drop((reading, writing));
            // One long prompt of the first kind alone gets everything, or all of its tenant's share.
            let (_, units) = kinds[0];
            let namespace = tenants[0];
            let fresh: Vec<u8> = (0..slots.min(share) / units).map(|block| block as u8 + 100).collect();
            let entries: Vec<_> = (0..fresh.len()).map(|block| (0, block)).collect();
            if kinds[0].0 != Recurrent || kinds.len() == 1 {
                let lease = cache.reserve(namespace, &keys(&fresh), &entries).unwrap();
                prop_assert_eq!(lease.entries().len(), entries.len(), "{}", name);
            }
            prop_assert_eq!(cache.audit(), None, "{}", name);
        }
    }
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
        assert_eq!(hits, 4 * 512, "{pace} ms per request");
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
            hints: Hints::NONE,
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

// Known report: SGLang#39436.
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
    for name in policies() {
        let (cache, namespace) = cache(name, &[(Attention, 1), (Recurrent, 3)], 64);
        let mut sizes = HashSet::new();
        for number in 0..60_000_u64 {
            let key = PrefixKey::new(blake3::hash(&number.to_le_bytes()).as_bytes()).unwrap();
            let arrival = Arrival {
                now: number * 10,
                tokens: 600,
                limit: 1,
                hints: Hints::NONE,
            };
            cache.admit(namespace, &[key], arrival).unwrap();
            if number >= 40_000 {
                sizes.insert(cache.stats().metadata_bytes);
            }
        }
        assert_eq!(sizes.len(), 1, "{name}");
    }
}

#[test]
fn keys_that_repeat_in_a_prompt_leave_every_policy_whole() {
    let letters: Vec<u8> = (0..40).collect();
    let chained = keys(&letters);
    for policy in policies() {
        let (cache, namespace) = cache(policy, &[(Attention, 1), (Recurrent, 2)], 60);
        let mut random = 88_172_645_463_325_252_u64;
        let mut draw = |most: usize| {
            for (left, by) in [(true, 13), (false, 7), (true, 17)] {
                random ^= if left { random << by } else { random >> by };
            }
            (random % most as u64) as usize
        };
        for now in 0..500 {
            // No chained hashes: the same keys at ever other depths, and several times in one prompt.
            let blocks = 1 + draw(300);
            let prompt: Vec<PrefixKey> = (0..blocks).map(|_| chained[draw(40)]).collect();
            let arrival = Arrival {
                now,
                tokens: 9,
                limit: blocks,
                hints: Hints::NONE,
            };
            cache.admit(namespace, &prompt, arrival).unwrap();
            cache.finish(namespace, &prompt, blocks, 9).unwrap();
        }
        assert_eq!((cache.failure(), cache.audit()), (None, None), "{policy}");
    }
}
