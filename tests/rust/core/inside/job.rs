//! A panic in a copy thread.

use std::collections::BTreeMap;

use super::*;
use crate::geometry::{Dtype, Geometry, Group, Layer, Segment};
use crate::ids::{ClassKind, SlotId};
use crate::transfer::{ByteRun, EntryCopy, LayerMap, Region, SlotMemory, TransferLayout};

#[test]
fn a_panic_in_a_copy_thread_ends_the_transfer_as_failed() {
    let segment = Segment::new("data", Dtype::Uint8, vec![8]).unwrap();
    let layer = Layer::new("layer", vec![segment]).unwrap();
    let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
    let geometry = Arc::new(Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap());
    let mut bytes = [0_u8; 8];
    // SAFETY: nothing is copied.
    let region = unsafe { Region::new(bytes.as_mut_ptr(), 8).unwrap() };
    let runs = vec![ByteRun {
        offset: 0,
        length: 8,
    }];
    let map = LayerMap {
        group: 0,
        layer: 0,
        region,
        block_stride: 8,
        runs,
        tokens: None,
    };
    let memory = SlotMemory::new(region, 8, 1, *geometry.fingerprint(), Arc::new(())).unwrap();
    let layout = TransferLayout::new(geometry, 0, &[1], &[map]).unwrap();
    let (queue, messages) = crossbeam_channel::unbounded();
    let shared = Arc::new(JobShared {
        transfers: Transfers::new(layout, memory, "").unwrap(),
        queue,
        threads: 1,
        checksums: true,
    });
    let entry = EntryCopy {
        class: 0,
        slots: vec![SlotId(0)],
        blocks: vec![Some(0)],
        checksum: None,
        tokens: None,
    };
    let plan = shared
        .transfers
        .plan(Direction::Store, vec![entry])
        .unwrap();
    let ticket = TransferJob::start(Arc::clone(&shared), plan).unwrap();
    let Ok(JobMessage::Work(job)) = messages.try_recv() else {
        panic!("expected work")
    };

    let wrong = JobStep {
        entry: 7,
        range: 0..8,
    };
    job.attempt(|| {
        job.copy(&wrong);
        Ok(())
    });
    job.run(None);

    let completions = shared.transfers.poll();
    assert_eq!((completions.len(), completions[0].ticket), (1, ticket));
    let why = completions[0].error.as_deref().unwrap();
    assert!(
        why.contains("a copy thread panicked: index out of bounds"),
        "{why}"
    );
    assert_eq!((completions[0].bytes, shared.transfers.in_flight()), (0, 0));
}
