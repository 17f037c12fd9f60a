//! A month's worth of packs: the catalog forgets the oldest, and what an engine remembers of a store stays small.

use crate::support;

use std::time::Duration;

use support::{Setup, Store};

const DAYS: usize = 30;
const REQUESTS: usize = 12;
const MOST: usize = 150;

#[test]
fn a_month_of_traffic_leaves_a_catalog_of_the_same_size() {
    let store = Store::new();
    let mut setup = Setup::small(&store);
    setup.options.most_entries = MOST;
    setup.options.pack_age = Duration::from_millis(1);
    setup.options.refresh = Duration::from_millis(1);
    setup.options.whole = Duration::from_millis(20);
    let (writer, reader) = (setup.engine(), setup.engine());
    for day in 0..DAYS {
        for at in 0..REQUESTS {
            let number = day * REQUESTS + at;
            let letter = |digit: usize| char::from(b'a' + (number >> (4 * digit) & 15) as u8);
            let prompt: String = (0..3).map(letter).collect();
            writer.store_whole(&prompt);
            reader.serve(&prompt);
        }
        writer.settle();
        for engine in [&writer, &reader] {
            engine.audit();
            let stats = engine.stats();
            // A pack is forgotten as a whole.
            let most = (MOST + 4 * REQUESTS) as u64;
            assert!(
                stats.entries <= most && stats.packs <= most,
                "day {day}: {stats:?}"
            );
            assert!(engine.below.take_notes().len() <= 64, "day {day}");
        }
    }
    let written = store.packs().len() as u64;
    let known = reader.stats().packs;
    assert!(
        written > 2 * known && known > 0,
        "{known} of {written} packs"
    );
}
