//! Changed bytes of every file of a disk, read by what reads them: nothing panics, hangs or grows, and what is
//! accepted is what was written.

#[path = "../shared/fuzz.rs"]
mod any;
#[path = "../shared/report.rs"]
mod report;

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use hybrid_pages_tiers::Name;
use xxhash_rust::xxh3::xxh3_64;

use crate::door::SystemDoor;
use crate::format::{CellHeader, Change, DISK_FORMAT_VERSION, HEADER_BYTES, IndexRecord};
use crate::index::{DiskIndex, FILE, IndexOwner, journal};
use any::{Random, fuzz};

const RANKS: usize = 2;
const IDENTITY: [u8; 32] = [7; 32];
const CELLS: [u64; 2] = [20_480, 28_672];

fn name(number: u64) -> Name {
    *blake3::hash(&number.to_le_bytes()).as_bytes()
}

fn record(number: u64) -> IndexRecord {
    IndexRecord {
        class: (number % 2) as usize,
        block: number as u32,
        cell: number,
        used: 1_700_000_000 + number,
        sums: vec![number, number ^ 5].into(),
    }
}

fn owner() -> IndexOwner<'static> {
    IndexOwner {
        format: DISK_FORMAT_VERSION,
        identity: &IDENTITY,
        ranks: RANKS,
        cells: CELLS.to_vec(),
    }
}

/// The files of an index, with changes that its journal alone has.
fn files() -> (Vec<u8>, Vec<u8>, u64) {
    let place = tempfile::tempdir().unwrap();
    let folder: OwnedFd = std::fs::File::open(place.path()).unwrap().into();
    let (mut index, _) = DiskIndex::open(&SystemDoor, &folder, &owner()).unwrap();
    let changes = |range: std::ops::Range<u64>| -> Vec<Change> {
        range.map(|it| (name(it), Some(record(it)))).collect()
    };
    index.commit(&changes(0..40)).unwrap();
    index.learn(&[3; 50]);
    index.close().unwrap();
    let (mut index, _) = DiskIndex::open(&SystemDoor, &folder, &owner()).unwrap();
    index.commit(&changes(40..60)).unwrap();
    index.commit(&[(name(3), None)]).unwrap();
    let copy = |name| std::fs::read(place.path().join(name)).unwrap();
    let (database, journal) = (copy(FILE), copy(journal::FILE));
    let generation = u64::from_le_bytes(journal[..8].try_into().unwrap());
    (database, journal, generation)
}

#[test]
fn changed_records_of_an_index_are_refused_or_are_what_they_say() {
    let corpus: Vec<Vec<u8>> = (0..6).map(|it| record(it).encode(&name(1))).collect();
    let corpus = &corpus;
    fuzz("records of a disk's index", 1, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(corpus, &mut bytes);
            let end = bytes.len().saturating_sub(8);
            if random.below(2) == 0 {
                let check = xxh3_64(&[&name(1)[..], &bytes[..end]].concat());
                bytes.truncate(end);
                bytes.extend(check.to_le_bytes());
            }
            if let Some(found) = IndexRecord::decode(&name(1), &bytes, RANKS) {
                assert_eq!(found.encode(&name(1)), bytes);
            }
        }
    });
}

#[test]
fn changed_journals_give_what_was_written_up_to_the_first_change() {
    let (_, journal, generation) = files();
    let written = journal::read(&journal, generation, RANKS);
    assert_eq!(written.len(), 21);
    let corpus = [journal];
    let (corpus, written) = (&corpus, &written);
    fuzz("journals of a disk", 1, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(corpus, &mut bytes);
            let ranks = [RANKS, RANKS, 1, 256][random.below(4)];
            for change in journal::read(&bytes, generation, ranks) {
                assert!(written.contains(&change), "{change:?}");
            }
        }
    });
}

#[test]
fn changed_headers_of_cells_are_refused() {
    let name = name(1);
    let header = CellHeader {
        format: DISK_FORMAT_VERSION,
        identity: &IDENTITY,
        name: &name,
        class: 1,
        block: 5,
        cell: 9,
        shard_bytes: 5_000,
        sums: &[1, 2],
    };
    let mut bytes = vec![0; HEADER_BYTES];
    header.encode(&mut bytes);
    let corpus = [bytes];
    let (corpus, header) = (&corpus, &header);
    fuzz("headers of cells", 1, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(corpus, &mut bytes);
            let same = bytes.get(..HEADER_BYTES) == Some(&corpus[0][..]);
            assert_eq!(header.is(&bytes), same);
            if let Some(bytes) = bytes.first_chunk() {
                let _ = CellHeader::shard_bytes(bytes);
            }
        }
    });
}

#[test]
fn changed_index_files_are_refused_or_give_records_that_agree() {
    let (database, journal, _) = files();
    let corpus = [database];
    // A damaged database may make redb panic, which is caught.
    std::panic::set_hook(Box::new(|panic| {
        let ours = panic
            .location()
            .is_none_or(|at| at.file().contains("tests/rust"));
        if ours {
            eprintln!("{panic}");
        }
    }));
    let (corpus, journal) = (&corpus, &journal);
    fuzz("files of a disk's index", 200, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(corpus, &mut bytes);
            let Ok((claim, found)) = DiskIndex::read_copy(bytes.clone(), journal.clone()) else {
                return;
            };
            let mut cells = HashSet::new();
            for (_, place) in &found.places {
                assert!(place.class < claim.cells.len());
                assert!(
                    cells.insert((place.class, place.cell)),
                    "a cell of two entries"
                );
            }
        }
    });
}
