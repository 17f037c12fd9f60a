//! A disk that refuses, ends early, flips bits or hangs costs entries: never bytes, never an error.

use crate::door;
use crate::support;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use door::{BadDoor, Fault};
use hybrid_pages_disk::DiskFailure;
use support::{Engine, LIMIT, Setup, geometry, wait};

fn with_door(path: &std::path::Path) -> (Setup, BadDoor) {
    let door = BadDoor::default();
    let mut setup = Setup::small(path);
    setup.options.door = Arc::new(door.clone());
    (setup, door)
}

/// An engine whose host is empty, over a disk that has two prompts.
fn stocked(setup: &Setup) -> Engine {
    let mut patient = setup.clone();
    patient.options.deadline = LIMIT;
    let engine = patient.engine();
    engine.keep("abc");
    engine.keep("xyz");
    drop(engine);
    setup.engine()
}

#[test]
fn a_read_that_fails_costs_that_entry_and_it_is_written_again() {
    for (fault, reason) in [
        (Fault::Reads(ErrorKind::Other), DiskFailure::Read),
        (Fault::Flip, DiskFailure::Checksum),
    ] {
        let place = tempfile::tempdir().unwrap();
        let (mut setup, door) = with_door(place.path());
        setup.geometry = geometry(300_000, 9_001, 2); // too large to be read together
        setup.slots = 1_000;
        let engine = stocked(&setup);
        door.set("class-0", fault);
        assert_eq!(engine.restore("abc"), 0, "{fault:?}");
        assert!(door.met() > 0);
        let stats = engine.stats();
        assert!(stats.failed(reason) > 0, "{fault:?}: {stats:?}");
        door.mend();
        assert_eq!(engine.below.take_notes().len(), 1);
        engine.settle(); // Reads that have not ended hold slots.
        assert_eq!(engine.restore("xyz"), 3);
        engine.store("abc");
        engine.settle();
        drop(engine);
        assert_eq!(setup.engine().restore("abc"), 3, "{fault:?}: written again");
    }
}

/// Entries of two ranks with 5,000 bytes each.
const PAGE_CELL: u64 = 4096 + 2 * 8192;

/// An engine that reads "abcdefgh" from the disk, by one thread. The read of the first page hangs, and the others wait
/// behind it.
fn while_the_first_page_hangs(setup: &mut Setup, door: &BadDoor) -> Engine {
    setup.options.threads = 1;
    setup.slots = 100;
    let engine = setup.engine();
    engine.keep("abcd");
    engine.keep("abcdefgh");
    drop(engine);
    let engine = setup.engine();
    door.set("class-0", Fault::Hang);
    let keys = support::cache_support::keys("abcdefgh");
    assert!(engine.cache.promote(engine.namespace, &keys, 0).unwrap());
    wait("the first page", || door.hanging() == 1);
    engine
}

#[test]
fn small_entries_in_adjacent_cells_are_read_together_and_fail_alone() {
    for unreadable in [None, Some(5)] {
        let place = tempfile::tempdir().unwrap();
        let (mut setup, door) = with_door(place.path());
        setup.options.deadline = LIMIT;
        let engine = while_the_first_page_hangs(&mut setup, &door);
        match unreadable {
            None => door.mend(),
            Some(cell) => door.leave("class-0", Fault::Unreadable(cell * PAGE_CELL + 4096)),
        }
        engine.settle();
        assert!(door.longest_read() >= 4 * PAGE_CELL as usize);
        let failed = u64::from(unreadable.is_some());
        assert_eq!(engine.stats().failed(DiskFailure::Read), failed);
        assert_eq!(engine.stats().reads, 9 - failed, "8 pages and a checkpoint");
        assert_eq!(engine.restore("abcdefgh"), if failed == 0 { 8 } else { 4 });
    }
}

#[test]
fn a_sector_that_fails_slowly_takes_no_disk_out() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    let deadline = Duration::from_secs(2);
    setup.options.deadline = deadline;
    let engine = while_the_first_page_hangs(&mut setup, &door);
    // Together with others it takes as long again as alone.
    let bad = Fault::SlowlyUnreadable(5 * PAGE_CELL + 4096, deadline * 3 / 5);
    door.leave("class-0", bad);
    wait("the reads", || {
        engine.cache.poll();
        engine.stats().reading == 0
    });
    let stats = engine.stats();
    assert_eq!((stats.outages, stats.failed(DiskFailure::Read)), (0, 1));
    door.mend();
    assert_eq!(engine.restore("abcdefgh"), 4);
}

#[test]
fn a_lost_checkpoint_costs_a_shallower_resume() {
    let place = tempfile::tempdir().unwrap();
    let (setup, door) = with_door(place.path());
    let engine = setup.engine();
    engine.keep("ab");
    engine.store("abcd");
    engine.settle();
    drop(engine);
    let engine = setup.engine();
    door.set("class-1", Fault::Reads(ErrorKind::Other));
    assert!(
        engine
            .cache
            .promote(engine.namespace, &support::cache_support::keys("abcd"), 0)
            .unwrap()
    );
    wait("the failure", || {
        engine.stats().failed(DiskFailure::Read) == 1
    });
    door.mend();
    assert_eq!(engine.restore("abcd"), 2);
}

#[test]
fn calls_that_move_less_than_asked_are_continued() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    setup.geometry = geometry(50_000, 9_001, 2);
    setup.slots = 100;
    door.set("class", Fault::Short);
    let engine = stocked(&setup);
    assert_eq!(engine.restore("abc"), 3);
    assert!(door.met() >= 20);
    assert_eq!(engine.stats().failures, [0; 17]);
}

#[test]
fn writes_that_are_refused_cost_those_entries_alone() {
    for (kind, reason) in [
        (ErrorKind::StorageFull, DiskFailure::Full),
        (ErrorKind::ReadOnlyFilesystem, DiskFailure::Write),
        (ErrorKind::Other, DiskFailure::Write),
    ] {
        let place = tempfile::tempdir().unwrap();
        let (mut setup, door) = with_door(place.path());
        setup.options.retry = Duration::from_millis(1);
        let engine = stocked(&setup);
        door.set("class", Fault::Writes(kind));
        engine.store("new");
        engine.settle();
        assert!(engine.stats().failed(reason) > 0, "{kind:?}");
        assert!(engine.tier().failed_writes > 0);
        assert_eq!(engine.restore("abc"), 3, "{kind:?}: what is there is read");
        door.mend();
        wait("a write", || {
            engine.store("late");
            engine.settle();
            engine.cache.clear() > 0 && engine.stats().writes > 0
        });
    }
}

#[test]
fn an_index_that_cannot_be_written_is_made_anew() {
    for fault in [
        Fault::Writes(ErrorKind::StorageFull),
        Fault::Syncs(ErrorKind::Other),
    ] {
        let place = tempfile::tempdir().unwrap();
        let (setup, door) = with_door(place.path());
        let engine = stocked(&setup);
        door.set("index", fault);
        engine.store("new");
        wait("the failure", || {
            engine.stats().failed(DiskFailure::Index) > 0
        });
        assert_eq!(engine.restore("abc"), 3, "{fault:?}");
        door.mend();
        engine.settle();
        assert_eq!(engine.stats().durable, engine.stats().writes);
        drop(engine);
        let engine = setup.engine();
        for prompt in ["abc", "xyz", "new"] {
            assert_eq!(engine.restore(prompt), 3, "{fault:?}: {prompt}");
        }
    }
}

#[test]
fn a_hang_costs_the_deadline_once_and_the_disk_comes_back() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    setup.options.deadline = Duration::from_millis(100);
    setup.options.retry = Duration::from_millis(50);
    let engine = stocked(&setup);
    door.set("", Fault::Hang);
    assert_eq!(engine.restore("abc"), 0);
    assert!(door.hanging() > 0);
    let stats = engine.stats();
    assert_eq!((stats.outages, stats.out), (1, true));
    assert!(stats.failed(DiskFailure::Deadline) > 0);
    assert_eq!(stats.reading, 0);
    // Out: nothing is found, nothing taken, nobody waits.
    assert_eq!(engine.restore("xyz"), 0);
    engine.store("xyz");
    assert!(engine.stats().dropped > 0);
    assert_eq!(engine.restore("xyz"), 3, "the host serves");
    // Threads that come back late touch no slot.
    let before: Vec<_> = (0..40)
        .map(|slot| engine.arena.read(hybrid_pages::ids::SlotId(slot)).unwrap())
        .collect();
    door.mend();
    engine.wait_until(false);
    let after: Vec<_> = (0..40)
        .map(|slot| engine.arena.read(hybrid_pages::ids::SlotId(slot)).unwrap())
        .collect();
    assert!(before == after);
    engine.store("back");
    engine.settle();
    assert_eq!(engine.stats().writing, 0);
    drop(engine);
    assert_eq!(setup.engine().restore("back"), 4);
}

#[test]
fn a_directory_that_is_removed_while_in_use_is_an_outage() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    setup.options.retry = Duration::from_millis(50);
    let engine = setup.engine();
    engine.keep("abc");
    engine.settle();
    std::fs::remove_dir_all(&setup.options.path).unwrap();
    engine.store("def");
    engine.wait_until(true);
    let notes = engine.below.take_notes().join("\n");
    assert!(notes.contains("removed or moved while in use"), "{notes}");
    engine.store("xyz");
    assert!(engine.stats().dropped > 0);
    assert_eq!(engine.restore("xyz"), 3, "the host serves");
    // Another directory in its place is not this disk, but one of the next engine.
    let next = setup.engine();
    assert_eq!(next.restore("abc"), 0);
    next.keep("new");
    std::thread::sleep(2 * setup.options.retry);
    engine.cache.poll();
    assert!(engine.stats().out);
}

#[test]
fn a_directory_that_is_moved_away_and_back_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    setup.options.retry = Duration::from_millis(50);
    let engine = setup.engine();
    engine.keep("abc");
    let away = place.path().join("away");
    std::fs::rename(&setup.options.path, &away).unwrap();
    engine.store("def");
    engine.wait_until(true);
    std::fs::rename(&away, &setup.options.path).unwrap();
    engine.wait_until(false);
    engine.keep("xyz");
    engine.settle();
    let stats = engine.stats();
    assert!(stats.outages == 1 && stats.entries >= 8, "{stats:?}");
}

#[test]
fn an_outage_costs_no_entries() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    setup.options.deadline = Duration::from_millis(100);
    setup.options.retry = Duration::from_millis(50);
    let engine = stocked(&setup);
    let entries = engine.stats().entries;
    door.set("", Fault::Hang);
    assert_eq!(engine.restore("abc"), 0);
    assert!(engine.tier().failed_reads > 0);
    door.mend();
    engine.wait_until(false);
    engine.audit();
    assert_eq!(engine.stats().entries, entries);
    assert_eq!(["abc", "xyz"].map(|prompt| engine.restore(prompt)), [3, 3]);
}

#[test]
fn a_page_that_cannot_be_read_does_not_cost_what_hangs_from_it() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    setup.slots = 100;
    let engine = stocked(&setup);
    let entries = engine.stats().entries;
    door.set("class-0", Fault::Reads(ErrorKind::Other));
    assert_eq!(engine.restore("abc"), 0);
    door.mend();
    engine.settle();
    let lost = entries - engine.stats().entries;
    assert!((1..=3).contains(&lost), "pages that were read: {lost}");
    let writes = engine.stats().writes;
    engine.store("abc");
    engine.settle();
    assert_eq!(
        engine.stats().writes - writes,
        lost,
        "the checkpoint was kept"
    );
    drop(engine);
    assert_eq!(setup.engine().restore("abc"), 3);
}

#[test]
fn a_clear_does_not_wait_for_a_disk_that_hangs() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    setup.options.deadline = Duration::from_millis(50);
    setup.options.retry = Duration::from_millis(50);
    let engine = stocked(&setup);
    door.set("", Fault::Hang);
    engine.cache.clear();
    assert!(engine.stats().failed(DiskFailure::Directory) > 0);
    assert_eq!(engine.restore("abc"), 0);
    assert!(setup.store().exists());
    // Nobody else gets the directory while it may still be moved away.
    engine.below.close();
    assert!(setup.try_engine().is_err());
    drop(engine);
    door.mend();
    wait("the lane", || setup.try_engine().is_ok());
    assert_eq!(setup.engine().restore("abc"), 0);

    let engine = stocked(&setup);
    door.set("", Fault::Hang);
    engine.cache.clear();
    door.mend();
    wait("what was cleared to go", || {
        engine.cache.poll();
        !setup.store().exists() && !engine.stats().out
    });
    engine.settle();
    drop(engine);
    assert_eq!(setup.engine().restore("abc"), 0);
}

#[test]
fn a_disk_that_hangs_can_be_left() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    setup.options.deadline = Duration::from_millis(50);
    let engine = stocked(&setup);
    door.set("", Fault::Hang);
    engine.store("new");
    wait("a hang", || door.hanging() > 0);
    drop(engine);
    door.mend();
}

#[test]
fn without_direct_files_and_holes_all_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let (mut setup, door) = with_door(place.path());
    door.set("", Fault::Undirect);
    door.set("", Fault::Unpunched);
    setup.options.quota_bytes = 30 * 24 * 1024;
    let engine = stocked(&setup);
    assert!(!engine.stats().direct);
    assert_eq!(engine.restore("abc"), 3);
    for prompt in ["lmno", "pqrs", "tuvw", "efgh", "hijk"] {
        engine.store(prompt);
        engine.settle();
        engine.audit();
    }
    assert_eq!(engine.restore("hijk"), 4);
}
