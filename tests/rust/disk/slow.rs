//! A disk that is slow is waited for as long as it moves; a call that hangs is noticed; and what was not read for
//! that is found again.

use crate::door;
use crate::support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use door::{BadDoor, Fault};
use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::ClassKind;
use hybrid_pages_disk::DiskFailure;
use support::{Engine, Setup, geometry, wait};

fn with_door(path: &std::path::Path) -> (Setup, BadDoor) {
    let door = BadDoor::default();
    let mut setup = Setup::small(path);
    setup.options.door = Arc::new(door.clone());
    setup.options.retry = Duration::from_millis(20);
    (setup, door)
}

fn back(engine: &Engine, door: &BadDoor) {
    door.mend();
    engine.wait_until(false);
}

/// Pages of so many pieces.
fn large(setup: &mut Setup, pieces: usize) {
    setup.geometry = geometry(pieces << 20, 5_000, 1);
    setup.slot_bytes = 1 << 20;
    setup.slots = 4 * pieces + 8;
}

#[test]
fn an_entry_that_takes_longer_than_the_deadline_is_read_and_written_while_its_calls_return() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    large(&mut setup, 15);
    setup.options.threads = 1;
    setup.options.deadline = Duration::from_millis(1_000);
    door.set("class", Fault::Slow(Duration::from_millis(100)));
    let engine = setup.engine();
    engine.store("a");
    wait("the writes", || {
        engine.cache.poll();
        engine.stats().writes == 2
    });
    drop(engine);
    let engine = setup.engine();
    assert_eq!(engine.restore("a"), 1);
    let stats = engine.stats();
    assert_eq!((stats.outages, stats.failures), (0, [0; 17]));
    let most = stats.read_latencies.sum_us;
    assert!(most > 1_000_000, "longer than the deadline: {most} us");
}

#[test]
fn a_call_that_hangs_is_noticed_while_others_return() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    large(&mut setup, 30);
    setup.geometry = geometry(5_000, 30 << 20, 1);
    let engine = setup.engine();
    engine.keep("a");
    drop(engine);
    setup.options.deadline = Duration::from_millis(300);
    let engine = setup.engine();
    // Of two threads, one hangs at the page, and the other has thirty calls to make for the checkpoint.
    door.set("class-0", Fault::Hang);
    door.set("class-1", Fault::Slow(Duration::from_millis(100)));
    assert_eq!(engine.restore("a"), 0);
    let stats = engine.stats();
    assert_eq!((stats.outages, stats.out, stats.reads), (1, true, 0));
    back(&engine, &door);
    engine.settle();
    assert_eq!(engine.restore("a"), 1);
}

#[test]
fn a_write_that_hangs_is_noticed_while_reads_return() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    setup.slots = 200;
    let engine = setup.engine();
    let prompts: Vec<String> = ('a'..='z')
        .map(|letter| format!("{letter}{letter}"))
        .collect();
    prompts.iter().for_each(|prompt| engine.keep(prompt));
    drop(engine);
    setup.options.deadline = Duration::from_millis(100);
    let engine = setup.engine();
    door.set("class", Fault::HangWrites);
    engine.store("new");
    wait("a write that hangs", || door.hanging() > 0);
    let mut next = prompts.iter().cycle();
    wait("an outage", || {
        engine.restore(next.next().unwrap());
        engine.cache.poll();
        engine.stats().out
    });
    back(&engine, &door);
    engine.settle();
    assert_eq!(engine.restore("aa"), 2);
}

#[test]
fn a_checkpoint_whose_read_ran_out_of_time_is_found_again_in_this_process() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    setup.options.deadline = Duration::from_millis(100);
    let engine = setup.engine();
    engine.keep("abc");
    drop(engine);
    let engine = setup.engine();
    for outage in 1..=2 {
        door.set("class-1", Fault::Hang);
        assert_eq!(engine.restore("abc"), 0);
        assert_eq!(engine.restore("abc"), 0, "it is out");
        back(&engine, &door);
        let stats = engine.stats();
        assert_eq!((stats.outages, stats.entries), (outage, 4));
        engine.settle();
        if outage == 2 {
            assert_eq!(engine.restore("abc"), 3);
            assert_eq!(engine.stats().left_over, 0);
        } else {
            // Found, and not yet read.
            assert_eq!(engine.hit("abc").blocks, 3);
        }
    }
    engine.audit();
}

#[test]
fn a_checkpoint_that_could_not_be_read_is_asked_for_until_it_is_written_again() {
    let place = tempfile::tempdir().unwrap();
    let (setup, door) = with_door(place.path());
    let engine = setup.engine();
    engine.keep("abc");
    drop(engine);
    let engine = setup.engine();
    door.set("class-1", Fault::Reads(std::io::ErrorKind::Other));
    assert_eq!(engine.restore("abc"), 0);
    door.mend();
    engine.settle();
    assert_eq!(engine.stats().failed(DiskFailure::Read), 1);
    assert_eq!(engine.restore("abc"), 0, "it is gone");
    engine.store("abc");
    engine.settle();
    let misses = engine.stats().misses;
    assert_eq!(engine.hit("abc").blocks, 3);
    assert_eq!(engine.hit("abc").blocks, 3);
    assert_eq!(engine.stats().misses, misses, "nothing is looked for");
}

/// Windows and recurrent states, with pages of full attention or without.
fn windows(attention: bool) -> Geometry {
    let group = |kind, name: &str, window| {
        let segment = Segment::new("data", Dtype::Uint8, vec![5_000]).unwrap();
        let layer = Layer::new(name, vec![segment]).unwrap();
        Group::new(kind, vec![layer], window).unwrap()
    };
    let mut groups = vec![
        group(ClassKind::Window, "w", Some(16)),
        group(ClassKind::Recurrent, "r", None),
    ];
    if attention {
        groups.push(group(ClassKind::Attention, "a", None));
    }
    Geometry::new(16, groups, 1, BTreeMap::new()).unwrap()
}

#[test]
fn a_window_whose_read_ran_out_of_time_is_found_again_in_this_process() {
    for attention in [true, false] {
        let place = tempfile::tempdir().unwrap();
        let (mut setup, door) = with_door(place.path());
        setup.geometry = windows(attention);
        setup.options.deadline = Duration::from_millis(100);
        let classes: Vec<ClassKind> = setup.geometry.classes().iter().map(|it| it.kind).collect();
        let classes = &classes;
        let entries: Vec<(usize, usize)> = (0..3)
            .flat_map(|block| (0..classes.len()).map(move |class| (class, block)))
            .collect();
        let engine = setup.engine();
        engine.commit("abc", &mut engine.reserve("abc", &entries));
        engine.settle();
        drop(engine);
        for (index, kind) in classes.iter().enumerate() {
            let engine = setup.engine();
            let slab = ["class-0", "class-1", "class-2"][index];
            door.set(slab, Fault::Hang);
            let found = engine.restore("abc");
            back(&engine, &door);
            engine.settle();
            assert_eq!(engine.restore("abc"), 3, "{kind:?}: {found} before");
        }
    }
}
