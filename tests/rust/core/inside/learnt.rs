//! Learned factors: another instance goes on from them, and entries from before teach nothing.

use super::*;
use crate::ids::{EntryId, TenantId};
use crate::policy::reuse::hazard::Features;
use crate::policy::reuse::origin::{CheckpointKind, Origin};
use crate::policy::{EntryKind, EntrySizes, Hints, NewEntry, NewRequest, Policy};

const SHAPE: EntrySizes = EntrySizes {
    page: 1,
    window: 0,
    checkpoint: 3,
};

fn taught() -> Reuse {
    let mut policy = Reuse::new(SHAPE);
    let features = Features::new(CheckpointKind::End, 0, &Origin::UNKNOWN);
    for bin in 0..BINS {
        policy.hazards.learn(&features, bin, 1.0, bin % 3 == 0);
    }
    policy.threshold = 0.25;
    policy
}

#[test]
fn another_instance_goes_on_from_what_one_learned() {
    let old = taught();
    let bytes = old.learnt();
    assert_eq!(bytes.len(), BYTES);
    let mut new = Reuse::new(SHAPE);
    assert_ne!(new.learnt(), bytes);
    assert!(new.recall(&bytes));
    assert_eq!(new.learnt(), bytes);
    let features = Features::new(CheckpointKind::End, 0, &Origin::UNKNOWN);
    for bin in 0..BINS {
        let index = |policy: &Reuse| policy.hazards.index(&features, bin);
        assert_eq!(index(&new), index(&old));
    }
}

fn request<'a>(now: u64, boundaries: &'a [u64]) -> NewRequest<'a> {
    NewRequest {
        now,
        tokens: 100,
        boundaries,
        limit: boundaries.len(),
        resumed: 0,
        pages: 0,
        seen: 0,
        free: 0,
        hints: Hints::NONE,
    }
}

/// The learned bytes, and the gap before the turn, after a request wants an entry that entered unused for so long.
fn met_again(unused: Option<u64>) -> (Vec<u8>, u32) {
    let mut policy = Reuse::new(SHAPE);
    policy.admit(&request(1 << 40, &[9]), &mut Vec::new());
    policy.finish(&[9], 1, 1);
    policy.enter(&NewEntry {
        id: EntryId(0),
        kind: EntryKind::Checkpoint,
        parent: None,
        depth: 1,
        size: 3,
        boundary: 1,
        tenant: TenantId::NONE,
        unused,
        proven: false,
    });
    policy.admit(&request((1 << 40) + 10, &[1, 2]), &mut Vec::new());
    let end = policy.records.find(2).unwrap();
    (policy.learnt(), policy.records.past[end].origin.gap)
}

#[test]
fn an_entry_from_before_tells_its_age_and_teaches_nothing() {
    let nothing = Reuse::new(SHAPE).learnt();
    let (learnt, gap) = met_again(Some(3_600_000));
    assert_eq!(gap, 3_600_010);
    assert!(learnt == nothing);
    let (learnt, gap) = met_again(None);
    assert_eq!(gap, 10);
    assert!(learnt != nothing, "a new one teaches");
}
