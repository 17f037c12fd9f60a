//! A quota that changes between starts: what has to go goes once, and nothing else does.

use crate::door;
use crate::support;

use std::path::Path;
use std::sync::Arc;

use door::BadDoor;
use hybrid_pages_disk::{DiskFailure, DiskTree};
use support::{Engine, Setup, hex};

/// Bytes of a page's cell and of a checkpoint's.
const PAGE: u64 = 4096 * (1 + 2 * 2);
const CHECKPOINT: u64 = 4096 * (1 + 3 * 2);
/// Of a prompt of three blocks.
const PROMPT: u64 = 3 * PAGE + CHECKPOINT;
const OLD: [&str; 6] = ["abc", "def", "ghi", "jkl", "mno", "pqr"];

/// Entries and damaged records that the index has.
fn indexed(setup: &Setup) -> (u64, u64) {
    let tree = DiskTree::open(&setup.options.path).unwrap();
    let lanes = tree.lanes(&mut || true).unwrap();
    let name = hex(&setup.identity);
    let mut identities = lanes.iter().flat_map(|lane| &lane.identities);
    let view = identities.find(|it| it.identity == name).unwrap();
    (view.entries(), view.damaged_records)
}

/// The disk of an engine as a kill of its process leaves it: the index is not closed.
fn killed(engine: Engine, setup: &mut Setup, place: &Path) {
    engine.settle();
    let copy = tempfile::tempdir_in(place).unwrap().keep().join("disk");
    let lane = format!("lane-{}", setup.options.lane);
    for folder in [lane.clone(), format!("{lane}/{}", hex(&setup.identity))] {
        std::fs::create_dir_all(copy.join(&folder)).unwrap();
        for file in std::fs::read_dir(setup.options.path.join(&folder)).unwrap() {
            let file = file.unwrap();
            if file.file_type().unwrap().is_file() {
                std::fs::copy(file.path(), copy.join(&folder).join(file.file_name())).unwrap();
            }
        }
    }
    let marker = "hybrid-pages-disk";
    std::fs::copy(setup.options.path.join(marker), copy.join(marker)).unwrap();
    drop(engine);
    setup.options.path = copy;
}

/// Quotas one after another, each with what it has room for; after each start a prompt is written that later
/// starts find.
fn through(quotas: &[u64], crash: bool) {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    setup.slots = 100;
    let door = BadDoor::default();
    setup.options.door = Arc::new(door.clone());
    let engine = setup.engine();
    OLD.iter().for_each(|prompt| engine.keep(prompt));
    drop(engine);
    let mut newest = String::new();
    for (step, &quota) in quotas.iter().enumerate() {
        let what = format!("{quotas:?}, step {step}, crash: {crash}");
        setup.options.quota_bytes = quota;
        door.pass(3600); // What was used longest ago goes.
        let engine = setup.engine();
        let stats = engine.stats();
        for reason in [
            DiskFailure::Record,
            DiskFailure::Short,
            DiskFailure::IndexDamaged,
        ] {
            assert_eq!(stats.failed(reason), 0, "{what}: {reason:?}");
        }
        assert!(stats.live_bytes <= quota, "{what}");
        if !newest.is_empty() {
            assert_eq!(engine.restore(&newest), 3, "{what}: it was durable");
        }
        newest = ["xyz", "uvw", "tsr", "zab"][step].to_owned();
        engine.keep(&newest);
        let entries = engine.stats().entries;
        if crash {
            killed(engine, &mut setup, place.path());
        } else {
            drop(engine);
        }
        assert_eq!(indexed(&setup), (entries, 0), "{what}");
        // The same again.
        let engine = setup.engine();
        assert_eq!(engine.stats().entries, entries, "{what}");
        assert_eq!(engine.stats().failures, [0; 17], "{what}");
        assert_eq!(engine.restore(&newest), 3, "{what}");
    }
}

const HIGH: u64 = 1 << 30;
const LOW: u64 = 3 * PROMPT + PAGE;
const LOWER: u64 = 2 * PROMPT + PAGE;

#[test]
fn what_a_lower_quota_has_no_room_for_leaves_the_index_too() {
    for crash in [false, true] {
        through(&[LOWER], crash);
    }
}

#[test]
fn a_quota_that_is_lowered_twice_costs_what_has_no_room_and_nothing_else() {
    for crash in [false, true] {
        through(&[LOW, LOWER], crash);
    }
}

#[test]
fn a_quota_that_is_lowered_and_raised_costs_what_had_no_room_and_nothing_else() {
    for crash in [false, true] {
        through(&[LOWER, HIGH, LOW, HIGH], crash);
    }
}

#[test]
fn a_model_that_comes_back_to_a_full_path_loses_nothing_that_is_durable_from_then_on() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    setup.slots = 100;
    setup.options.quota_bytes = 8 << 20;
    let engine = setup.engine();
    OLD.iter().for_each(|prompt| engine.keep(prompt));
    drop(engine);
    let mut other = setup.clone();
    other.identity = [9; 32];
    let engine = other.engine();
    ["abc", "def"].iter().for_each(|prompt| engine.keep(prompt));
    drop(engine);
    // It leaves room for half of what this one has.
    let probe = setup.engine();
    let others = probe.stats().other_bytes;
    drop(probe);
    let rest = setup.options.quota_bytes - others - 3 * PROMPT;
    let aside = other.store().join("index.damaged");
    std::fs::write(aside, vec![1; rest as usize / 4096 * 4096]).unwrap();
    let engine = setup.engine();
    let entries = engine.stats().entries;
    assert!((8..=16).contains(&entries), "{entries}");
    engine.keep("xyz");
    let entries = engine.stats().entries;
    drop(engine);
    assert_eq!(indexed(&setup), (entries, 0));
    let engine = setup.engine();
    assert_eq!(engine.restore("xyz"), 3);
    assert_eq!(engine.stats().failures, [0; 17]);
}
