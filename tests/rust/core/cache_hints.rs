//! Hints in a live cache: what is retained leaves last, what has priority later, what is not to be stored
//! leaves no trace.

use crate::live_cache;

use hybrid_pages::cache::{Admission, Arrival, Cache};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::policy::Hints;
use hybrid_pages_lab::policies;
use live_cache::{cache, commit, keys, wanted};

use ClassKind::{Attention, Recurrent};

const KINDS: [(ClassKind, usize); 2] = [(Attention, 1), (Recurrent, 1)];
/// Slots of a prompt of 4 blocks with its checkpoint.
const PROMPT: usize = 5;

struct Live {
    cache: Cache,
    namespace: NamespaceId,
    now: u64,
}

impl Live {
    fn new(policy: &str, prompts: usize) -> Self {
        let (cache, namespace) = cache(policy, &KINDS, prompts * PROMPT);
        Self {
            cache,
            namespace,
            now: 0,
        }
    }

    fn admit(&mut self, name: &[u8], hints: Hints) -> Admission {
        self.now += 1_000;
        let keys = keys(name);
        let arrival = Arrival {
            now: self.now,
            tokens: keys.len() as u64 * 16 + 1,
            limit: keys.len(),
            hints,
        };
        self.cache.admit(self.namespace, &keys, arrival).unwrap()
    }

    /// A request, from its arrival to its end, with a checkpoint at its end.
    fn run(&mut self, name: &[u8], hints: Hints) {
        self.admit(name, hints);
        let keys = keys(name);
        let entries = wanted(&KINDS, 0, keys.len(), &[keys.len()]);
        let lease = self
            .cache
            .reserve_hinted(self.namespace, &keys, &entries, &hints);
        commit(&mut lease.unwrap());
        let finished = self.cache.finish(self.namespace, &keys, keys.len(), 9);
        finished.unwrap();
        assert_eq!(self.cache.audit(), None);
    }

    fn depth(&self, name: &[u8]) -> usize {
        self.cache
            .lookup(self.namespace, &keys(name))
            .unwrap()
            .blocks
    }

    fn flood(&mut self, prompts: u8, hints: Hints) {
        for number in 0..prompts {
            self.run(&[number; 4], hints);
        }
    }
}

fn retained(seconds: u64) -> Hints {
    Hints {
        retain: seconds * 1_000,
        ..Hints::NONE
    }
}

#[test]
fn what_is_retained_outlasts_a_flood_until_its_time_is_over() {
    for policy in policies() {
        let mut live = Live::new(policy, 3);
        live.run(b"kept", retained(60));
        live.run(b"none", Hints::NONE);
        live.flood(20, Hints::NONE);
        assert_eq!(
            (live.depth(b"kept"), live.depth(b"none")),
            (4, 0),
            "{policy}"
        );
        live.flood(60, Hints::NONE);
        assert_eq!(live.depth(b"kept"), 0, "{policy}");
    }
}

#[test]
fn what_a_request_uses_is_retained_for_it_too() {
    for policy in policies() {
        let mut live = Live::new(policy, 3);
        live.run(b"used", Hints::NONE);
        // It asks for more of what is there, and stores nothing.
        live.admit(b"used, and more", retained(60));
        live.flood(20, Hints::NONE);
        assert_eq!(live.depth(b"used"), 4, "{policy}");
    }
}

#[test]
fn where_everything_is_retained_the_least_priority_and_the_least_time_leave_first() {
    for policy in policies() {
        let mut live = Live::new(policy, 4);
        let low = Hints {
            priority: -1,
            ..retained(3_600)
        };
        live.run(b"hour", retained(3_600));
        live.run(b"low.", low);
        live.run(b"soon", retained(600));
        live.run(b"rest", retained(1_800));
        let left = |live: &Live| [b"hour", b"low.", b"soon", b"rest"].map(|name| live.depth(name));
        assert_eq!(left(&live), [4; 4], "{policy}");
        live.run(b"1new", retained(7_200));
        assert_eq!(left(&live), [4, 0, 4, 4], "{policy}");
        live.run(b"2new", retained(7_200));
        assert_eq!(left(&live), [4, 0, 0, 4], "{policy}");
        // Requests without a hint find room as well: the cache never waits.
        live.run(b"3new", Hints::NONE);
        assert_eq!(left(&live), [4, 0, 0, 0], "{policy}");
        assert_eq!(live.depth(b"3new"), 4, "{policy}");
    }
}

#[test]
fn a_prompt_that_is_not_to_be_stored_is_admitted_nowhere_and_makes_no_fork_known() {
    let silent = Hints {
        store: false,
        ..Hints::NONE
    };
    for policy in policies() {
        let mut live = Live::new(policy, 4);
        let nothing = Admission {
            boundaries: vec![],
            fork: None,
        };
        for name in [b"secret 1", b"secret 2"] {
            assert_eq!(live.admit(name, silent), nothing, "{policy}");
        }
        assert_eq!(live.admit(b"secret 3", Hints::NONE).fork, None, "{policy}");
        // Of one that is stored, the next one knows.
        assert_eq!(
            live.admit(b"secret 4", Hints::NONE).fork,
            Some(7),
            "{policy}"
        );
    }
}

#[test]
fn a_priority_outweighs_age_and_a_negative_one_yields() {
    let with = |priority| Hints {
        priority,
        ..Hints::NONE
    };
    let mut live = Live::new("reuse", 6);
    live.run(b"high", with(6));
    live.run(b"zero", with(0));
    live.flood(12, Hints::NONE);
    assert_eq!((live.depth(b"high"), live.depth(b"zero")), (4, 0));
    let mut live = Live::new("reuse", 6);
    live.run(b"zero", with(0));
    live.run(b"low.", with(-6));
    live.flood(5, Hints::NONE);
    assert_eq!(live.depth(b"low."), 0);
}

#[test]
fn what_is_expected_is_retained_from_now_on() {
    for policy in policies() {
        let mut live = Live::new(policy, 3);
        live.run(b"kept", Hints::NONE);
        // The policy has not heard of the time for long.
        live.now += 3_600_000;
        let expected = live.cache.expect(
            live.namespace,
            &keys(b"kept, and more"),
            live.now,
            &retained(60),
        );
        assert_eq!(expected.unwrap(), 4, "{policy}");
        live.flood(20, Hints::NONE);
        assert_eq!(live.depth(b"kept"), 4, "{policy}");
        live.flood(60, Hints::NONE);
        assert_eq!(live.depth(b"kept"), 0, "{policy}");
    }
}

#[test]
fn what_is_given_up_goes_first_even_if_it_was_retained() {
    for policy in ["lru", "reuse"] {
        for hints in [Hints::NONE, retained(3_600)] {
            let mut live = Live::new(policy, 4);
            live.run(b"old1", Hints::NONE);
            live.run(b"old2", Hints::NONE);
            live.run(b"gone", hints);
            let given_up = live.cache.give_up(live.namespace, &keys(b"gone"), 0, &[]);
            assert_eq!(given_up.unwrap(), 4, "{policy}");
            assert_eq!(live.cache.audit(), None);
            assert_eq!(
                live.depth(b"gone"),
                4,
                "{policy}: it stays until room is needed"
            );
            let leaves = (0..8).any(|number| {
                live.run(&[number; 4], Hints::NONE);
                live.depth(b"gone") == 0
            });
            let old = [b"old1", b"old2"].map(|name| live.depth(name));
            assert!(leaves && old == [4, 4], "{policy}: {old:?}");
        }
    }
}

#[test]
fn what_is_given_up_and_comes_all_the_same_is_like_the_rest_again() {
    for policy in ["lru", "reuse"] {
        let mut live = Live::new(policy, 3);
        live.run(b"back", Hints::NONE);
        live.cache
            .give_up(live.namespace, &keys(b"back"), 0, &[])
            .unwrap();
        live.run(b"old1", Hints::NONE);
        live.run(b"back!", Hints::NONE);
        live.run(b"old2", Hints::NONE);
        assert_eq!(live.depth(b"back"), 4, "{policy}");
    }
}

#[test]
fn what_others_share_is_not_given_up() {
    for policy in ["lru", "reuse"] {
        let mut live = Live::new(policy, 4);
        live.run(b"both:a", Hints::NONE);
        live.run(b"both:b", Hints::NONE);
        let give_up = |first| {
            let name = keys(b"both:a");
            live.cache
                .give_up(live.namespace, &name, first, &[])
                .unwrap()
        };
        assert_eq!(
            [give_up(0), give_up(5), give_up(6), give_up(9)],
            [1, 1, 0, 0]
        );
    }
}

/// Stores a prompt and a tail behind it; the prefix that ends in the tail.
fn with_tail(live: &mut Live, name: &[u8], tokens: u32) -> Vec<PrefixKey> {
    let mut chain = keys(name);
    if live.depth(name) < chain.len() {
        live.run(name, Hints::NONE);
    }
    let last = chain.len();
    chain.push(PrefixKey::tail(chain.last(), &[7; 19], tokens).unwrap());
    let stored = live
        .cache
        .reserve(live.namespace, &chain, &[(0, last), (1, last)]);
    commit(&mut stored.unwrap());
    chain
}

#[test]
fn the_ends_of_what_is_given_up_go_with_it() {
    for policy in ["lru", "reuse"] {
        let mut live = Live::new(policy, 4);
        live.run(b"old1", Hints::NONE);
        let chain = with_tail(&mut live, b"gone", 5);
        let tail = |live: &Live| live.cache.lookup(live.namespace, &chain).unwrap().blocks == 5;
        assert!(tail(&live));
        // An earlier end of the conversation was the tail.
        let given_up = live
            .cache
            .give_up(live.namespace, &chain[..4], 0, &chain[4..]);
        assert_eq!(given_up.unwrap(), 4, "{policy}");
        let leaves = (0..8).any(|number| {
            live.run(&[number; 4], Hints::NONE);
            !tail(&live)
        });
        assert!(leaves && live.depth(b"old1") == 4, "{policy}");
    }
}

#[test]
fn what_another_goes_on_from_by_a_tail_is_not_given_up() {
    let mut live = Live::new("lru", 4);
    with_tail(&mut live, b"both", 5);
    let other = with_tail(&mut live, b"both", 6);
    let mut chain = keys(b"both");
    let give_up = |live: &Live, chain: &[PrefixKey], ends: &[PrefixKey]| {
        live.cache.give_up(live.namespace, chain, 0, ends).unwrap()
    };
    let own = PrefixKey::tail(chain.last(), &[7; 19], 5).unwrap();
    assert_eq!(give_up(&live, &chain, &[own]), 0);
    chain.push(own);
    assert_eq!(give_up(&live, &chain, &[]), 1, "its own end alone");
    assert_eq!(give_up(&live, &chain, &other[4..]), 5);
}

#[test]
fn what_is_not_known_is_neither_expected_nor_given_up() {
    let live = Live::new("reuse", 3);
    let (unknown, name) = (NamespaceId(77), keys(b"none"));
    assert_eq!(
        live.cache.give_up(live.namespace, &name, 0, &[]).unwrap(),
        0
    );
    let expect = |namespace, now| live.cache.expect(namespace, &name, now, &retained(1));
    assert_eq!(expect(live.namespace, 1).unwrap(), 0);
    assert!(expect(unknown, 1).is_err());
    assert!(expect(live.namespace, Arrival::MOST_NOW + 1).is_err());
    assert!(live.cache.give_up(unknown, &name, 0, &[]).is_err());
}
