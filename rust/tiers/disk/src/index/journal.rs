//! The journal: a file to which changes are appended that the index has not taken yet.
//!
//! A commit of the index makes the device write its cache, which slows all other writes down. So the index is
//! committed only now and then, and changes go to the journal in between: there they outlive the process, though not
//! a loss of power. Every record has a checksum, so the records that a loss of power leaves can be read.

use std::io;

use xxhash_rust::xxh3::xxh3_64;

use crate::door::DoorFile;
use crate::format::{Change, IndexRecord};
use hybrid_pages_tiers::Name;

pub(crate) const FILE: &str = "journal";

const NAME_AT: usize = 16;
const PLACE_AT: usize = 48;
/// Number of records that are read at a time.
const AT_ONCE: u64 = 4096;

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Box<dyn DoorFile>,
    /// Records of other generations are ignored: this index has them already, or they were of another index.
    generation: u64,
    ranks: usize,
    records: u64,
}

impl Journal {
    /// Opens a journal and reads the records of a generation, in order, up to the first that is not whole.
    pub(crate) fn open(
        file: Box<dyn DoorFile>,
        generation: u64,
        ranks: usize,
    ) -> io::Result<(Self, Vec<Change>)> {
        let mut journal = Self {
            file,
            generation,
            ranks,
            records: 0,
        };
        let mut changes = Vec::new();
        let size = journal.record_bytes();
        let whole = journal.file.length()? / size as u64;
        'file: while journal.records < whole {
            let count = AT_ONCE.min(whole - journal.records);
            let mut bytes = vec![0; count as usize * size];
            journal
                .file
                .read_all(&mut bytes, journal.records * size as u64)?;
            for record in bytes.chunks_exact(size) {
                let Some(change) = journal.decode(record) else {
                    break 'file;
                };
                changes.push(change);
                journal.records += 1;
            }
        }
        Ok((journal, changes))
    }

    /// Appends changes, which outlive the process once this has returned.
    pub(crate) fn append(&mut self, changes: &[Change]) -> io::Result<()> {
        let size = self.record_bytes();
        let mut bytes = Vec::with_capacity(changes.len() * size);
        for change in changes {
            self.encode(change, &mut bytes);
        }
        self.file.write_all(&bytes, self.records * size as u64)?;
        self.records += changes.len() as u64;
        Ok(())
    }

    /// Begins anew, since the index has all changes.
    pub(crate) fn restart(&mut self, generation: u64) {
        self.generation = generation;
        self.records = 0;
    }

    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    fn place_bytes(&self) -> usize {
        IndexRecord::bytes(self.ranks)
    }

    fn record_bytes(&self) -> usize {
        record_bytes(self.ranks)
    }

    fn encode(&self, (name, place): &Change, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(u64::from(place.is_some()).to_le_bytes());
        bytes.extend(name);
        match place {
            Some(place) => bytes.extend(place.encode(name)),
            None => bytes.resize(start + PLACE_AT + self.place_bytes(), 0),
        }
        let check = xxh3_64(&bytes[start..]);
        bytes.extend(check.to_le_bytes());
    }

    fn decode(&self, record: &[u8]) -> Option<Change> {
        decode(record, self.generation, self.ranks)
    }
}

/// Reads the changes of a generation from a copy of the file, up to the first that is not whole.
pub(crate) fn read(copy: &[u8], generation: u64, ranks: usize) -> Vec<Change> {
    let records = copy.chunks_exact(record_bytes(ranks));
    records
        .map_while(|record| decode(record, generation, ranks))
        .collect()
}

const fn record_bytes(ranks: usize) -> usize {
    PLACE_AT + IndexRecord::bytes(ranks) + 8
}

fn decode(record: &[u8], generation: u64, ranks: usize) -> Option<Change> {
    let (bytes, check) = record.split_at(record.len() - 8);
    if check != xxh3_64(bytes).to_le_bytes() || bytes[..8] != generation.to_le_bytes() {
        return None;
    }
    let name: Name = bytes[NAME_AT..PLACE_AT].try_into().ok()?;
    match bytes[8] {
        0 => Some((name, None)),
        _ => Some((
            name,
            Some(IndexRecord::decode(&name, &bytes[PLACE_AT..], ranks)?),
        )),
    }
}
