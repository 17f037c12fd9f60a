//! Ages of checkpoints: the order in which lives leave a bin, and their memory.

use super::*;

fn taken(ages: &mut Ages, bin: usize, end: u64, now: u64) -> Vec<u32> {
    std::iter::from_fn(|| ages.pop(bin, end, now))
        .map(|life| life.record)
        .collect()
}

#[test]
fn lives_leave_a_bin_in_order_when_they_reach_its_end() {
    let mut ages = Ages::new();
    for record in 0..200 {
        ages.begin(record, u64::from(record), Features::NONE, true);
    }
    assert!(taken(&mut ages, 0, 16, 15).is_empty());
    assert_eq!(taken(&mut ages, 0, 16, 18), [0, 1, 2]);
    assert_eq!(taken(&mut ages, 0, 16, 300), (3..200).collect::<Vec<_>>());
    ages.begin(7, 400, Features::NONE, true);
    assert_eq!(taken(&mut ages, 0, 16, 416), [7]);
}

#[test]
fn a_life_goes_on_until_its_record_ends_it_or_begins_another() {
    let mut ages = Ages::new();
    ages.begin(1, 0, Features::NONE, true);
    ages.begin(2, 0, Features::NONE, true);
    ages.begin(2, 5, Features::NONE, true);
    ages.watch(2, false);
    ages.begin(3, 6, Features::NONE, true);
    ages.end(3);
    let lives: Vec<_> = std::iter::from_fn(|| ages.pop(0, 16, 100)).collect();
    let states: Vec<_> = lives.iter().map(|life| ages.goes_on(life)).collect();
    assert_eq!(states, [Some(true), None, Some(false), None]);
}

#[test]
fn at_the_end_of_the_clock_no_life_leaves_a_bin_that_it_has_not_lived_through() {
    let mut ages = Ages::new();
    for since in [u64::MAX - 16, u64::MAX - 15, u64::MAX] {
        ages.begin(1, since, Features::NONE, true);
    }
    for _ in 0..2 {
        let left = taken(&mut ages, 0, 16, u64::MAX);
        assert!(left.len() <= 1, "one has lived through it: {left:?}");
    }
    assert!(ages.pop(0, 16, u64::MAX).is_none());
}

#[test]
fn memory_is_used_again() {
    let mut ages = Ages::new();
    let mut round = |from: u64| {
        for now in from..from + 10_000 {
            ages.begin(0, now, Features::NONE, true);
        }
        for bin in 0..BINS - 1 {
            while let Some(life) = ages.pop(bin, 16, from + 20_000) {
                ages.push(bin + 1, life);
            }
        }
        ages.bytes()
    };
    let bytes = round(0);
    assert!(bytes > 10_000 * size_of::<Life>());
    assert_eq!([round(20_000), round(40_000)], [bytes; 2]);
}
