//! What the calls of a remote store, and of its catalog, cost as prompts and stores grow: counted.

#[path = "../shared/tier_sizes.rs"]
mod tier_sizes;

use std::collections::BTreeMap;
use std::time::Duration;

use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::policy::{Lru, Placement};
use hybrid_pages::transfer::checksum;
use hybrid_pages_arena::Arena;
use hybrid_pages_tiers::EntrySize;
use tier_sizes::counting::work;
use tier_sizes::{SLOTS, Scene};

use crate::catalog::{Catalog, PORTION};
use crate::pack::{PackId, PackName, PackRecord};
use crate::{Admit, Remote, RemoteOptions, RemotePlace};

const BYTES: usize = 64;

#[test]
fn calls_of_a_remote_store_cost_the_same_in_longer_prompts_and_larger_stores() {
    let segment = Segment::new("kv", Dtype::Uint8, vec![BYTES]).unwrap();
    let layer = Layer::new("attention", vec![segment]).unwrap();
    let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
    let geometry = Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let arena = Arena::create(&geometry, BYTES, SLOTS).unwrap();
    for slot in 0..SLOTS {
        arena.write(SlotId(slot as u32), &[7; BYTES]).unwrap();
    }
    let place = RemotePlace::of_url(&format!("file://{}", folder.path().display())).unwrap();
    let made = std::cell::Cell::new(0);
    tier_sizes::check(|| {
        made.set(made.get() + 1);
        let mut options = RemoteOptions::new(place.clone());
        options.admit = Admit::All;
        options.refresh = Duration::from_secs(3600);
        let policy = Box::new(Lru::new(Placement::Every, false));
        let remote = Remote::open(options, &geometry, BYTES, policy).unwrap();
        let (handle, counts) = (remote.handle(), remote.handle());
        handle.connect(&arena, &[made.get(); 32]).unwrap();
        let works = move || handle.settle(Duration::from_secs(60));
        let stats = move || drop(counts.stats());
        let sums = vec![checksum(&[7; BYTES])];
        Scene::new(Box::new(remote), sums, Box::new(stats), Box::new(works))
    });
}

#[test]
fn no_hold_of_the_lock_moves_or_frees_what_the_catalog_has() {
    const CLASSES: [EntrySize; 1] = [EntrySize {
        shard_bytes: 1,
        bytes: 1,
        slots: 1,
    }];
    let (packs, entries) = (64, PORTION + 1);
    let mut catalog = Catalog::new(packs / 2 * entries);
    let mut all = Vec::new();
    for made in 0..packs {
        let id = PackId {
            made: made as u64,
            writer: 1,
            number: 0,
        };
        let table_bytes = 0;
        let (_, cost) = work(|| catalog.begin(PackName { id, table_bytes }, entries));
        all.push(cost);
        for number in 0..entries {
            let name = *blake3::hash(&(made * entries + number).to_le_bytes()).as_bytes();
            let record = PackRecord {
                name,
                class: 0,
                offset: 0,
                sums: Box::from([7]),
            };
            all.push(work(|| catalog.add(id, record, &CLASSES, false)).1);
        }
        loop {
            let (more, cost) = work(|| catalog.shrink(&CLASSES));
            all.push(cost);
            if !more {
                break;
            }
        }
    }
    assert_eq!(catalog.packs(), packs / 2);
    let bytes = all.iter().map(|it| it.bytes).max().unwrap();
    let calls = all.iter().map(|it| it.calls).max().unwrap();
    assert!(bytes < 1 << 16, "{bytes}");
    assert!(calls < 4 * PORTION as u64, "{calls}");
}
