//! Damage anywhere on disk costs what it touches, and no wrong byte is ever shown.

use crate::support;

use std::path::Path;
use std::time::Duration;

use hybrid_pages_disk::DiskFailure;
use support::{Engine, Setup, change};

const PROMPTS: [&str; 2] = ["abc", "xyz"];

/// What it is, and how it is done to a store.
type Damage = (String, Box<dyn FnOnce(&Path)>);

fn stock(setup: &Setup) {
    let engine = setup.engine();
    PROMPTS.iter().for_each(|prompt| engine.keep(prompt));
}

/// Restores every prompt, writes what is missing again, and finds all of it in the next process.
fn heals(setup: &Setup) -> Engine {
    let engine = setup.engine();
    for prompt in PROMPTS {
        let depth = engine.restore(prompt);
        if depth < prompt.len() {
            engine.store(prompt);
            engine.settle();
        }
    }
    drop(engine);
    let engine = setup.engine();
    for prompt in PROMPTS {
        assert_eq!(
            engine.restore(prompt),
            prompt.len(),
            "{prompt} was written again"
        );
    }
    engine
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Has damage done to a copy of one stock, and sees it heal. Returns the failures of the first process.
fn each(setup: &Setup, damages: impl Iterator<Item = Damage>) {
    stock(setup);
    let stock = setup.options.path.clone();
    for (at, (what, damage)) in damages.enumerate() {
        let mut setup = setup.clone();
        setup.options.path = stock.with_file_name(format!("copy-{at}"));
        copy(&stock, &setup.options.path);
        damage(&setup.store());
        let engine = setup.engine();
        let depths = PROMPTS.map(|prompt| engine.restore(prompt));
        let failures: u64 = engine.stats().failures.iter().sum();
        assert!(
            failures > 0 || depths == [3, 3],
            "{what}: {depths:?} without a failure"
        );
        assert!(failures < 12, "{what}: one damage, {failures} failures");
        drop(engine);
        drop(heals(&setup));
        std::fs::remove_dir_all(&setup.options.path).unwrap();
    }
}

#[test]
fn a_flipped_bit_in_any_region_of_a_cell_is_found_out() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    // The header's fields and its checksum, and first, middle and last bytes of both shards.
    let places = [
        0, 8, 12, 16, 47, 48, 79, 80, 84, 88, 96, 128, 136, 500, 4088, 4095,
    ];
    let shards = [4096, 6_000, 4096 + 4999, 12_288, 14_000, 12_288 + 4999];
    let places: Vec<usize> = places.into_iter().chain(shards).collect();
    let flip = move |at: usize| -> Damage {
        let damage = move |store: &Path| {
            change(&store.join("class-0.slab"), |bytes| bytes[at] ^= 0x10);
        };
        (format!("byte {at}"), Box::new(damage))
    };
    each(&setup, places.into_iter().map(flip));
}

#[test]
fn a_flipped_bit_in_any_page_of_the_index_is_found_out() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    let flip = |at: usize| -> Damage {
        let damage = move |store: &Path| {
            change(&store.join("index.redb"), |bytes| {
                let at = at * bytes.len() / 40 + at % 64;
                bytes[at] ^= 0x04;
            });
        };
        (format!("place {at} of 40"), Box::new(damage))
    };
    let header = |at: usize| -> Damage {
        let damage = move |store: &Path| {
            change(&store.join("index.redb"), |bytes| bytes[at] ^= 0x01);
        };
        (format!("byte {at} of the header"), Box::new(damage))
    };
    let headers = (0..320).step_by(23).map(header);
    each(&setup, headers.chain((0..40).map(flip)));
}

#[test]
fn every_record_of_the_index_is_checked() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    stock(&setup);
    // Every byte that is not zero, one by one, in pages that hold records: too many to try all.
    let index = setup.store().join("index.redb");
    let whole = std::fs::read(&index).unwrap();
    let used: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] != 0).collect();
    for &at in used.iter().step_by(used.len() / 60) {
        change(&index, |bytes| {
            bytes.clone_from(&whole);
            bytes[at] ^= 0x80;
        });
        let engine = setup.engine();
        for prompt in PROMPTS {
            let depth = engine.restore(prompt);
            assert!(depth == 0 || depth == 3, "{at}: {depth}");
        }
    }
}

#[test]
fn cut_and_deleted_files_are_misses() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    let files = ["class-0.slab", "class-1.slab", "index.redb"];
    let cases = files.into_iter().flat_map(|file| {
        let cut = move |part: usize| -> Damage {
            let damage = move |store: &Path| {
                change(&store.join(file), |bytes| {
                    bytes.truncate(bytes.len() * part / 8)
                });
            };
            (format!("{file} cut to {part}/8"), Box::new(damage))
        };
        let delete = move |store: &Path| std::fs::remove_file(store.join(file)).unwrap();
        let deleted: Damage = (format!("{file} deleted"), Box::new(delete));
        let longer = move |store: &Path| {
            change(&store.join(file), |bytes| bytes.extend([0xAB; 10_000]));
        };
        let longer: Damage = (format!("{file} longer"), Box::new(longer));
        (0..8)
            .map(cut)
            .chain([longer])
            .chain((file != "index.redb").then_some(deleted))
    });
    each(&setup, cases);
}

#[test]
fn without_an_index_there_is_nothing_and_all_is_written_again() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    stock(&setup);
    std::fs::remove_file(setup.store().join("index.redb")).unwrap();
    assert_eq!(PROMPTS.map(|prompt| setup.engine().restore(prompt)), [0, 0]);
    drop(heals(&setup));
}

#[test]
fn an_index_that_was_never_whole_is_no_damage() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    stock(&setup);
    let index = setup.store().join("index.redb");
    let whole = std::fs::read(&index).unwrap();
    std::fs::write(setup.store().join("index.new"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(&index, b"").unwrap();
    assert_eq!(PROMPTS.map(|prompt| setup.engine().restore(prompt)), [0, 0]);
    let engine = heals(&setup);
    assert_eq!(engine.stats().failed(DiskFailure::IndexDamaged), 0);
    assert!(!setup.store().join("index.new").exists());
}

#[test]
fn a_damaged_index_is_kept_under_another_name() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    stock(&setup);
    change(&setup.store().join("index.redb"), |bytes| bytes.fill(0x55));
    let engine = setup.engine();
    assert_eq!(engine.stats().failed(DiskFailure::IndexDamaged), 1);
    assert!(engine.below.take_notes()[0].contains("is set aside"));
    assert!(setup.store().join("index.damaged").exists());
}

#[test]
fn entries_in_each_others_cells_are_not_shown() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    stock(&setup);
    change(&setup.store().join("class-0.slab"), |bytes| {
        let (first, rest) = bytes.split_at_mut(20_480);
        first.swap_with_slice(&mut rest[..20_480]);
    });
    let engine = setup.engine();
    for prompt in PROMPTS {
        engine.restore(prompt);
    }
    assert!(engine.stats().failed(DiskFailure::Header) > 0);
    drop(engine);
    drop(heals(&setup));
}

#[test]
fn bytes_that_were_written_wrong_are_found_out() {
    // A writer that is told other checksums than its bytes have: the disk notices before it keeps them.
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    let engine = setup.engine();
    let mut lease = engine.reserve("a", &[(0, 0), (1, 0)]);
    let sums: Vec<Vec<u64>> = lease.entries().iter().map(|_| vec![1, 2]).collect();
    lease.commit(&sums).unwrap();
    // Both have ended before the cache learns of either: the end of the page would undo the other.
    assert!(engine.below.settle(Duration::from_secs(10)));
    engine.settle();
    assert_eq!(engine.stats().failed(DiskFailure::Source), 2);
    assert_eq!((engine.stats().writes, engine.tier().usage.entries), (0, 0));
}

#[test]
fn nothing_but_zeros_lies_between_shards() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    stock(&setup);
    let bytes = std::fs::read(setup.store().join("class-0.slab")).unwrap();
    assert_eq!(bytes.len(), 6 * 20_480);
    for cell in bytes.chunks(20_480) {
        assert!(cell[4096..].iter().any(|&byte| byte != 0));
        for padding in [4096 + 5_000..12_288, 12_288 + 5_000..20_480] {
            assert!(cell[padding].iter().all(|&byte| byte == 0));
        }
    }
}
