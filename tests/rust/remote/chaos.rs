//! Several engines at once over a store where any request may lie, hang, fail or come late, or over a directory that
//! somebody spoils: every byte that is restored is the right one, every copy ends, and all is well again when the store is.

use crate::support;
use crate::wild;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hybrid_pages_remote::RemotePlace;
use object_store::path::Path;
use support::{Engine, LIMIT, Setup};
use wild::{Random, Shared, Wild, spoil};

const STEPS: usize = 250;

fn setup(place: RemotePlace) -> Setup {
    let mut setup = Setup::at(place);
    let options = &mut setup.options;
    options.deadline = Duration::from_millis(60);
    options.write_limit = Duration::from_millis(60);
    options.retry = Duration::from_millis(2);
    options.pack_age = Duration::from_millis(5);
    options.pack_bytes = 60_000;
    options.refresh = Duration::from_millis(2);
    options.whole = Duration::from_millis(50);
    setup
}

/// Leaves of a small tree.
fn prompt(random: &Random) -> String {
    let letters = 1 + random.below(7);
    let letter = |at| char::from(b'a' + random.below(if at == 0 { 4 } else { 2 }) as u8);
    (0..letters).map(letter).collect()
}

/// An engine of an identity at work. It compares every byte that it loads. Returns how many entries it has read.
fn work(setup: &Setup, weights: u64, random: &Random) -> u64 {
    let mut read = 0;
    let engine = || {
        let mut engine = setup.engine();
        engine.weights = weights;
        engine
    };
    let mut at_work = engine();
    for _ in 0..STEPS {
        let prompt = prompt(random);
        match random.below(20) {
            0..7 => drop(at_work.store(&prompt)),
            7..14 => drop(at_work.serve(&prompt)),
            14 | 15 => drop(at_work.restore(&prompt)),
            16 => std::thread::sleep(Duration::from_millis(random.below(30) as u64)),
            17 => at_work.audit(),
            18 if random.chance(20) => {
                // Other weights: from now on nothing that was there is right.
                at_work.cache.clear();
                at_work.weights += 1 + random.word() % 1000;
                at_work.store(&prompt);
                at_work.serve(&prompt);
            }
            18 if random.chance(40) => {
                at_work.below.close();
                at_work.store(&prompt);
                at_work.restore(&prompt);
                read += at_work.stats().reads;
                at_work = engine();
            }
            18 => {
                read += at_work.stats().reads;
                at_work = engine();
            }
            _ => drop(at_work.hit(&prompt)),
        }
    }
    all_ends(&at_work);
    read + at_work.stats().reads
}

fn all_ends(engine: &Engine) {
    engine.until("ended", |engine| {
        engine.stats().reading + engine.stats().writing == 0
    });
    engine.audit();
}

/// An engine writes something new, and another one finds it.
fn is_well(setup: &Setup, weights: u64, prompt: &str) {
    let mut setup = setup.clone();
    setup.options.deadline = LIMIT;
    setup.options.write_limit = LIMIT;
    let mut writer = setup.engine();
    writer.weights = weights;
    writer.until("written", |writer| {
        writer.store(prompt);
        writer.settle();
        writer.tier().written as usize > prompt.len()
    });
    let mut reader = setup.engine();
    reader.weights = weights;
    reader.until("found", |reader| reader.serve(prompt) == prompt.len());
}

/// Two engines of one identity and one of another at work, beside something else that goes on until they have ended.
/// Returns how many entries they have read.
fn all_work(ours: &Setup, others: &Setup, seed: u64, beside: impl Fn() + Sync) -> u64 {
    let ended = AtomicBool::new(false);
    let read: u64 = std::thread::scope(|scope| {
        let engines = [(ours, 0), (ours, 0), (others, 7)];
        let works = engines.into_iter().zip(1..).map(|((setup, weights), at)| {
            let random = Random::new(seed + (at << 24));
            scope.spawn(move || work(setup, weights, &random))
        });
        let works: Vec<_> = works.collect();
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                beside();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let works: Vec<_> = works.into_iter().map(|work| work.join()).collect();
        ended.store(true, Ordering::SeqCst);
        works.into_iter().map(|read| read.unwrap()).sum()
    });
    println!("{read} entries were read");
    read
}

fn seed() -> u64 {
    let seed = std::env::var("HYBRID_PAGES_SEED").ok();
    seed.and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

#[test]
fn whatever_a_store_does_the_bytes_are_right() {
    let mut read = 0;
    for (round, percent) in [5, 20, 60].into_iter().enumerate() {
        let seed = (seed() + round as u64) << 32;
        println!("seed {seed}, {percent} of 100 requests meet a fault");
        let store = Arc::new(Wild::new(seed));
        store.set(percent);
        let shared = Arc::new(Shared(Arc::clone(&store)));
        let ours = setup(RemotePlace::of(shared, Path::from("wild"), "wild".into()));
        let mut others = ours.clone();
        others.identity = [9; 32];
        read += all_work(&ours, &others, seed, || {});
        store.set(0);
        is_well(&ours, 0, "zyxw");
        is_well(&others, 7, "zyxw");
    }
    assert!(read > 0);
}

#[test]
fn whatever_happens_to_a_directory_the_bytes_are_right() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("shared");
    let place = RemotePlace::of_url(&format!("file://{}", folder.display())).unwrap();
    let ours = setup(place);
    let mut others = ours.clone();
    others.identity = [9; 32];
    let random = Random::new(seed() << 32);
    let read = all_work(&ours, &others, seed() << 33, || {
        let _ = spoil(&folder, &random); // What it was about may have left.
    });
    assert!(read > 0);
    is_well(&ours, 0, "zyxw");
    is_well(&others, 7, "zyxw");
}
