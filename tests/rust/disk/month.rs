//! A month of traffic, with a simulated clock: neither the files nor what a disk remembers grows.

use crate::door;
use crate::support;

use std::path::Path;
use std::sync::Arc;

use door::BadDoor;
use support::Setup;

const DAYS: usize = 30;
const REQUESTS: usize = 60;

/// Number and bytes of all files.
fn files(path: &Path) -> (u64, u64) {
    let mut found = (0, 0);
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let (count, bytes) = if entry.file_type().unwrap().is_dir() {
            files(&entry.path())
        } else {
            (1, entry.metadata().unwrap().len())
        };
        found = (found.0 + count, found.1 + bytes);
    }
    found
}

#[test]
fn a_month_of_traffic_leaves_files_of_the_same_size() {
    let place = tempfile::tempdir().unwrap();
    let door = BadDoor::default();
    let mut setup = Setup::small(place.path());
    setup.options.door = Arc::new(door.clone());
    setup.options.quota_bytes = 80 * 20_480;
    let mut days = Vec::new();
    let mut engine = setup.engine();
    for day in 0..DAYS {
        for at in 0..REQUESTS {
            door.pass(86_400 / REQUESTS as u64);
            let number = day * REQUESTS + at;
            let letter = |digit: usize| char::from(b'a' + (number >> (4 * digit) & 15) as u8);
            let prompt: String = (0..3).map(letter).collect();
            engine.restore(if at % 3 == 0 { "aaa" } else { &prompt });
            engine.store(&prompt);
            if at % 20 == 19 {
                engine.settle();
            }
        }
        if day % 7 == 6 {
            drop(engine);
            engine = setup.engine();
        }
        engine.settle();
        let stats = engine.stats();
        assert!(stats.live_bytes <= setup.options.quota_bytes, "day {day}");
        assert!(engine.below.take_notes().len() <= 64, "day {day}");
        days.push((files(&setup.options.path), stats.entries + stats.left_over));
    }
    let most = |days: &[((u64, u64), u64)]| {
        let files = days.iter().map(|((files, _), _)| *files).max().unwrap();
        let bytes = days.iter().map(|((_, bytes), _)| *bytes).max().unwrap();
        (
            files,
            bytes,
            days.iter().map(|(_, entries)| *entries).max().unwrap(),
        )
    };
    let (early, late) = (most(&days[5..15]), most(&days[15..]));
    println!("days 5 to 15: {early:?}; days 15 to 30: {late:?}");
    assert!(
        late.0 <= early.0 + 1 && late.1 <= early.1 + early.1 / 5,
        "{early:?} {late:?}"
    );
    assert!(late.2 <= early.2 + early.2 / 5, "{early:?} {late:?}");
}
