//! Changed bytes of every file of a disk, read by what reads them: nothing panics, hangs or grows, and what is
//! accepted is what was written.

#[path = "../shared/fuzz.rs"]
mod any;
#[path = "../shared/report.rs"]
mod report;

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use hybrid_pages_tiers::{Name, OWNER_BYTES};
use redb::backends::InMemoryBackend;
use redb::{Builder, TableDefinition};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::door::SystemDoor;
use crate::format::{CellHeader, Change, DISK_FORMAT_VERSION, HEADER_BYTES, IndexRecord};
use crate::index::{Claim, DiskIndex, FILE, IndexContents, IndexOwner, contents, journal};
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

/// With its last eight bytes a checksum of the others.
fn resealed(bytes: &mut Vec<u8>, before: &[u8]) {
    bytes.truncate(bytes.len().saturating_sub(8));
    let check = xxh3_64(&[before, &bytes[..]].concat());
    bytes.extend(check.to_le_bytes());
}

#[test]
fn changed_records_of_an_index_are_refused_or_are_what_they_say() {
    let corpus: Vec<Vec<u8>> = (0..6).map(|it| record(it).encode(&name(1))).collect();
    let corpus = &corpus;
    fuzz("records of a disk's index", 1, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(corpus, &mut bytes);
            if random.below(2) == 0 {
                resealed(&mut bytes, &name(1));
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
        owner: [7; OWNER_BYTES],
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

/// What is found belongs to classes that there are, and no cell is that of two entries.
fn require_agreement(claim: &Claim, found: &IndexContents) {
    let mut cells = HashSet::new();
    for (_, place) in &found.places {
        assert!(place.class < claim.cells.len());
        assert_eq!(place.sums.len(), claim.ranks);
        assert!(
            cells.insert((place.class, place.cell)),
            "a cell of two entries"
        );
    }
}

/// Where redb's header has its two records of a commit.
const COMMITS: [usize; 2] = [64, 192];

/// Makes the checksum of such a record right.
fn reseal_commit(file: &mut [u8], at: usize) {
    if let Some(record) = file.get_mut(at..at + 128) {
        let (bytes, check) = record.split_at_mut(112);
        check.copy_from_slice(&xxh3_128(bytes).to_le_bytes());
    }
}

#[test]
fn a_page_that_is_larger_than_its_file_is_refused_before_it_is_read() {
    let (database, journal, _) = files();
    for (commit, root) in COMMITS.into_iter().flat_map(|it| [(it, 8), (it, 40)]) {
        let mut bytes = database.clone();
        // A page of 4 GiB.
        bytes[commit + root + 7] |= 20 << 3;
        reseal_commit(&mut bytes, commit);
        let error = DiskIndex::read_copy(bytes, journal.clone()).unwrap_err();
        assert!(error.to_string().contains("larger"), "{error}");
    }
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
    let header: Vec<u8> = corpus[0][..320].to_vec();
    let pages = corpus[0].chunks(4096).map(<[u8]>::to_vec);
    let pages: Vec<Vec<u8>> = std::iter::once(header).chain(pages).collect();
    let (corpus, pages, journal) = (&corpus, &pages, &journal);
    fuzz("files of a disk's index", 200, || {
        let (mut bytes, mut piece) = (Vec::new(), Vec::new());
        move |random: &mut Random| {
            let page = match random.below(4) {
                0 => None,
                1 => Some(random.below(pages.len())),
                _ => Some(0),
            };
            match page {
                None => random.changed(corpus, &mut bytes),
                Some(page) => {
                    // What follows stays where it was.
                    random.changed(&pages[page..=page], &mut piece);
                    piece.truncate(pages[page].len());
                    bytes.clone_from(&corpus[0]);
                    let at = page.saturating_sub(1) * 4096;
                    bytes[at..at + piece.len()].copy_from_slice(&piece);
                }
            }
            for commit in COMMITS {
                if random.below(2) == 0 {
                    reseal_commit(&mut bytes, commit);
                }
            }
            if let Ok((claim, found)) = DiskIndex::read_copy(bytes.clone(), journal.clone()) {
                require_agreement(&claim, &found);
            }
        }
    });
}

/// Files that redb finds sound, with changed bytes in them.
#[test]
fn changed_contents_of_an_index_are_refused_or_agree() {
    const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
    const ENTRIES: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("entries");
    let (_, journal, generation) = files();
    let owners = [
        owner().encode(),
        IndexOwner {
            ranks: 1,
            ..owner()
        }
        .encode(),
    ];
    let generations = [generation, 0].map(|it| it.to_le_bytes().to_vec());
    let learnt = [0, 50].map(|length| {
        let mut bytes = vec![3; length + 8];
        resealed(&mut bytes, &[]);
        bytes
    });
    let (owners, generations, learnt, journal) = (&owners, &generations, &learnt, &journal);
    fuzz("contents of a disk's index", 10, || {
        let database = Builder::new()
            .create_with_backend(InMemoryBackend::new())
            .unwrap();
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            let writing = database.begin_write().unwrap();
            {
                let mut meta = writing.open_table(META).unwrap();
                for (key, corpus) in [
                    ("owner", owners),
                    ("journal", generations),
                    ("learnt", learnt),
                ] {
                    match random.below(8) {
                        0 => random.changed(corpus, &mut bytes),
                        1 if key != "owner" => {
                            meta.remove(key).unwrap();
                            continue;
                        }
                        _ => bytes.clone_from(&corpus[0]),
                    }
                    meta.insert(key, &bytes[..]).unwrap();
                }
                let mut entries = writing.open_table(ENTRIES).unwrap();
                entries.retain(|_, _| false).unwrap();
                for _ in 0..random.below(6) {
                    let name = name(random.below(70) as u64);
                    let number = random.below(4) as u64;
                    bytes = record(number).encode(&name);
                    if random.below(2) == 0 {
                        random.changed(&[bytes.clone()], &mut bytes);
                        resealed(&mut bytes, &name);
                    }
                    entries.insert(&name, &bytes[..]).unwrap();
                }
            }
            writing.commit().unwrap();
            if let Ok((claim, found)) = contents(&database, journal) {
                require_agreement(&claim, &found);
            }
        }
    });
}
