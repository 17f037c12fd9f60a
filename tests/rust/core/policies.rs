//! Policies without a cache: what is retained, what another instance takes over, what was seen before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hybrid_pages::ids::{EntryId, TenantId};
use hybrid_pages::policy::{
    EntryKind, EntrySizes, Hints, Lru, NewEntry, NewRequest, Placement, Policy, Reuse, Seen,
    retaining,
};
use proptest::prelude::*;

type Boxed = Box<dyn Policy>;

/// A policy that gives up everything in order, and keeps what is retained.
fn policy() -> Boxed {
    retaining(Lru::new(Placement::Every, false))
}

fn at(policy: &mut Boxed, now: u64) {
    let request = NewRequest {
        now,
        tokens: 0,
        boundaries: &[],
        limit: 0,
        resumed: 0,
        pages: 0,
        seen: 0,
        free: 0,
        hints: Hints::NONE,
    };
    policy.admit(&request, &mut Vec::new());
}

fn enter(policy: &mut Boxed, id: u32, retain: u64, priority: i8) {
    policy.enter(&NewEntry {
        id: EntryId(id),
        kind: EntryKind::Page,
        parent: None,
        depth: 1,
        size: 1,
        boundary: u64::from(id),
        tenant: TenantId::NONE,
        unused: None,
        proven: false,
    });
    keep(policy, id, retain, priority);
    policy.release(EntryId(id));
}

fn keep(policy: &mut Boxed, id: u32, retain: u64, priority: i8) {
    let hints = Hints {
        retain,
        priority,
        ..Hints::NONE
    };
    policy.keep(EntryId(id), TenantId::NONE, &hints);
}

fn leaves(policy: &mut Boxed) -> Vec<u32> {
    std::iter::from_fn(|| {
        let victim = policy.victim()?;
        policy.leave(victim);
        Some(victim.0)
    })
    .collect()
}

#[test]
fn the_retained_leave_last_by_priority_and_time_left_and_all_can_leave() {
    let mut policy = policy();
    for (id, retain, priority) in [
        (1, 5_000, 0),
        (2, 0, 0),
        (3, 9_000, -2),
        (4, 2_000, 0),
        (5, 0, 10),
        (6, 1_000, 3),
    ] {
        enter(&mut policy, id, retain, priority);
    }
    assert_eq!(leaves(&mut policy), [2, 5, 3, 4, 1, 6]);
}

#[test]
fn what_was_retained_is_like_the_rest_when_its_time_is_over() {
    let mut policy = policy();
    enter(&mut policy, 1, 1_000, 0);
    enter(&mut policy, 2, 3_000, 0);
    enter(&mut policy, 3, 0, 0);
    at(&mut policy, 1_000);
    enter(&mut policy, 4, 0, 0);
    // The time of 2 ends while somebody holds it.
    policy.hold(EntryId(2));
    at(&mut policy, 3_000);
    policy.release(EntryId(2));
    assert_eq!(leaves(&mut policy), [3, 1, 4, 2]);
}

/// Counts what may leave, and lets nothing leave.
struct Counts(Arc<AtomicUsize>);

impl Policy for Counts {
    fn admit(&mut self, _: &NewRequest<'_>, _: &mut Vec<usize>) {}

    fn release(&mut self, _: EntryId) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn hold(&mut self, _: EntryId) {}

    fn leave(&mut self, _: EntryId) {}

    fn victim(&mut self) -> Option<EntryId> {
        None
    }

    fn victim_of(&mut self, _: TenantId) -> Option<EntryId> {
        None
    }

    fn bytes(&self) -> usize {
        0
    }
}

#[test]
fn of_very_many_whose_time_is_over_each_request_frees_some() {
    const MOST: usize = 4096;
    let freed = Arc::new(AtomicUsize::new(0));
    let mut policy = retaining(Counts(Arc::clone(&freed)));
    let many = 2 * MOST + 1;
    (0..many).for_each(|id| enter(&mut policy, id as u32, 1_000, 0));
    for expected in [MOST, 2 * MOST, many, many] {
        at(&mut policy, 1_000);
        assert_eq!(freed.load(Ordering::Relaxed), expected);
    }
    assert!(leaves(&mut policy).is_empty(), "nothing is retained");
}

#[test]
fn what_is_retained_is_not_superseded() {
    for (retain, left) in [(0, [2, 1]), (1_000, [1, 2])] {
        let mut policy = policy();
        enter(&mut policy, 1, 0, 0);
        enter(&mut policy, 2, retain, 0);
        policy.supersede(EntryId(2));
        at(&mut policy, 1_000);
        assert_eq!(leaves(&mut policy), left);
    }
    let mut policy = policy();
    enter(&mut policy, 1, 0, 0);
    enter(&mut policy, 2, 1_000, 0);
    policy.give_up(EntryId(2));
    assert_eq!(leaves(&mut policy), [2, 1]);
}

#[test]
fn of_two_requests_the_longer_time_and_the_higher_priority_count() {
    let mut policy = policy();
    enter(&mut policy, 1, 1_000, 5);
    enter(&mut policy, 2, 2_000, 4);
    enter(&mut policy, 3, 9_500, 3);
    policy.hold(EntryId(1));
    keep(&mut policy, 1, 9_000, -5);
    policy.release(EntryId(1));
    at(&mut policy, 5_000);
    assert_eq!(leaves(&mut policy), [2, 3, 1]);
}

fn reuse() -> Reuse {
    Reuse::new(EntrySizes {
        page: 1,
        window: 0,
        checkpoint: 3,
    })
}

/// Bytes before the factors: the version, the numbers of bins and of factors, and the threshold.
const HEAD: usize = 16;

/// What a policy may have learned.
fn learnt() -> Vec<u8> {
    let mut bytes = reuse().learnt();
    for number in bytes[HEAD - 4..].chunks_exact_mut(4).step_by(3) {
        number.copy_from_slice(&0.75_f32.to_le_bytes());
    }
    bytes
}

#[test]
fn learned_numbers_that_make_no_sense_change_nothing() {
    let bytes = learnt();
    let mut new = reuse();
    let before = new.learnt();
    assert_ne!(bytes, before);
    for (at, number) in [
        (0, 2_u32.to_le_bytes()),
        (4, 42_u32.to_le_bytes()),
        (8, 0_u32.to_le_bytes()),
        (12, f32::NAN.to_le_bytes()),
        (12, (-1.0_f32).to_le_bytes()),
        (HEAD, 0.0_f32.to_le_bytes()),
        (HEAD + 400, f32::INFINITY.to_le_bytes()),
        (bytes.len() - 4, f32::NAN.to_le_bytes()),
    ] {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&number);
        assert!(!new.recall(&bytes), "{at}");
        assert_eq!(new.learnt(), before, "{at}");
    }
    for length in [0, HEAD, bytes.len() - 1] {
        assert!(!new.recall(&bytes[..length]), "{length}");
    }
    assert!(new.recall(&bytes));
    assert_eq!(new.learnt(), bytes);
}

proptest! {
    #[test]
    fn learned_bytes_are_taken_whole_or_not_at_all(changes in prop::collection::vec((0.0..1.0, any::<u8>()), 1..9)) {
        let mut bytes = learnt();
        for (place, byte) in changes {
            let at = (place * bytes.len() as f64) as usize;
            bytes[at] = byte;
        }
        let mut policy = reuse();
        let before = policy.learnt();
        let expected = if policy.recall(&bytes) { bytes } else { before };
        prop_assert_eq!(policy.learnt(), expected);
    }
}

#[test]
fn a_prompt_is_seen_as_far_as_an_earlier_one_went() {
    let mut seen = Seen::new(16);
    assert_eq!(seen.visit(&[1, 2, 3]), 0);
    assert_eq!(seen.visit(&[1, 2, 4]), 2);
    assert_eq!(seen.visit(&[1, 2, 4, 5]), 3);
    assert_eq!(seen.visit(&[7, 2, 4]), 0);
}

#[test]
fn what_is_met_again_and_again_outlives_many_others_in_constant_memory() {
    let mut seen = Seen::new(8);
    let bytes = seen.bytes();
    seen.visit(&[1, 2]);
    for name in 100..1_000 {
        assert_eq!(seen.visit(&[1, 2, name]), 2);
    }
    assert_eq!(seen.visit(&[100]), 0);
    assert_eq!(seen.bytes(), bytes);
}
