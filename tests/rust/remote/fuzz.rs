//! Changed names and tables of packs: nothing panics, and what is accepted lies inside its object.

#[path = "../shared/fuzz.rs"]
mod any;
#[path = "../shared/report.rs"]
mod report;

use hybrid_pages_tiers::{EntrySize, Name};

use crate::pack::{
    PackId, PackName, PackTable, REMOTE_FORMAT_VERSION, is_a_length, sign_of, table_bytes,
    taken_back,
};
use any::{Random, fuzz};

const IDENTITY: [u8; 32] = [9; 32];
const RANKS: usize = 2;
const ID: PackId = PackId {
    made: 0x0192_3344_5566,
    writer: 77,
    number: 5,
};

fn classes() -> [EntrySize; 2] {
    let class = |shard_bytes: usize, slots| EntrySize {
        shard_bytes,
        bytes: (shard_bytes * RANKS) as u64,
        slots,
    };
    [class(50, 1), class(700, 3)]
}

#[test]
fn changed_names_are_refused_or_are_the_only_names_of_what_they_say() {
    let name = PackName {
        id: ID,
        table_bytes: 400,
    };
    let corpus = [name.to_string(), sign_of(ID.made, 3)].map(String::into_bytes);
    let corpus = &corpus;
    fuzz("names of objects in a store", 1, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(corpus, &mut bytes);
            let Ok(text) = std::str::from_utf8(&bytes) else {
                return;
            };
            if let Some(name) = PackName::parse(text) {
                assert_eq!(name.to_string(), text);
                let _ = is_a_length(name.table_bytes, RANKS);
            }
            if let Some((made, writer)) = taken_back(text) {
                assert_eq!(sign_of(made, writer), text);
            }
        }
    });
}

#[test]
fn changed_tables_are_refused_or_name_places_inside_their_object() {
    let name = |number: u64| -> Name { *blake3::hash(&number.to_le_bytes()).as_bytes() };
    let pack = |entries: u64| {
        let sums = [1, 2];
        let each = (0..entries).map(|it| (name(it), (it % 2) as usize, &sums[..]));
        PackTable::of(&each.collect::<Vec<_>>(), &classes()).encode(
            REMOTE_FORMAT_VERSION,
            &IDENTITY,
            ID,
        )
    };
    let corpus = [1, 2, 3, 8].map(pack);
    let corpus = &corpus;
    fuzz("tables of packs", 1, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(corpus, &mut bytes);
            if random.below(4) > 0 {
                let end = bytes.len().saturating_sub(32);
                let check = blake3::hash(&bytes[..end]);
                bytes.truncate(end);
                bytes.extend(check.as_bytes());
            }
            let pack = PackName {
                id: ID,
                table_bytes: bytes.len() as u64,
            };
            let told = bytes
                .get(72..80)
                .map_or(0, |told| u64::from_le_bytes(told.try_into().unwrap()));
            let classes = classes();
            let table = PackTable::decode(
                &bytes,
                (REMOTE_FORMAT_VERSION, &IDENTITY),
                pack,
                told,
                &classes,
                RANKS,
            );
            let Ok(table) = table else {
                return;
            };
            assert_eq!(bytes.len() as u64, table_bytes(table.records.len(), RANKS));
            for record in &table.records {
                let end = record.offset.checked_add(classes[record.class].bytes);
                assert!(record.offset >= pack.table_bytes);
                assert!(end.is_some_and(|end| end <= table.object_bytes));
            }
        }
    });
}
