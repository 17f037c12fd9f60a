//! The layout of a pack and of a pack's name. `docs/remote-format.md` describes both byte by byte.

use std::fmt;

use hybrid_pages_tiers::{EntrySize, Identity, Name};

/// Version of everything below a remote URL, except encrypted entries, which have
/// [another](hybrid_pages_tiers::SEALED_FORMAT_VERSION). Packs of another version have another folder and are left
/// alone.
pub const REMOTE_FORMAT_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"HYBPPACK";
const HEADER_BYTES: usize = 96;
const CHECK_BYTES: usize = 32;
const RECORD_BYTES: usize = 48;
const SUFFIX: &str = ".pack";

/// Most entries of a pack.
pub(crate) const MOST_ENTRIES: usize = 4096;
/// Most records of a table. Larger tables are not read.
const MOST_RECORDS: usize = 16 * MOST_ENTRIES;

/// The id of a pack. Later packs have greater ids if the clocks of their writers agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PackId {
    /// When the pack was made, in milliseconds since 1970.
    pub(crate) made: u64,
    /// A random number of the process that made the pack.
    pub(crate) writer: u64,
    /// The number of the pack among those of that process.
    pub(crate) number: u32,
}

/// The name of an object that holds a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackName {
    pub(crate) id: PackId,
    pub(crate) table_bytes: u64,
}

/// The first name that a pack made at `made` or later can have, in milliseconds since 1970.
pub(crate) fn names_from(made: u64) -> String {
    format!("{made:012x}")
}

impl fmt::Display for PackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PackId {
            made,
            writer,
            number,
        } = self.id;
        let table = self.table_bytes;
        write!(
            f,
            "{made:012x}-{writer:016x}-{number:08x}-{table:08x}{SUFFIX}"
        )
    }
}

impl PackName {
    /// Parses the name of an object; `None` if it is not the name of a pack.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_suffix(SUFFIX)?.split('-');
        let mut word = || u64::from_str_radix(parts.next()?, 16).ok();
        let (made, writer, number, table_bytes) = (word()?, word()?, word()?, word()?);
        let found = Self {
            id: PackId {
                made,
                writer,
                number: number.try_into().ok()?,
            },
            table_bytes,
        };
        // A pack has only one name. Another spelling of it is no pack's name.
        (found.to_string() == name).then_some(found)
    }
}

/// The name of a *sign*: an empty object that tells others that a writer has taken back all its packs.
pub(crate) fn sign_of(made: u64, writer: u64) -> String {
    format!("{made:012x}-{writer:016x}{SIGN}")
}

const SIGN: &str = ".gone";

/// Parses the name of a sign. Returns the time when it was made, and the writer that has taken back its packs.
pub(crate) fn taken_back(name: &str) -> Option<(u64, u64)> {
    let (made, writer) = name.strip_suffix(SIGN)?.split_once('-')?;
    let word = |text| u64::from_str_radix(text, 16).ok();
    let (made, writer) = (word(made)?, word(writer)?);
    (sign_of(made, writer) == name).then_some((made, writer))
}

/// A record of a pack's table: the place of an entry in the pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackRecord {
    pub(crate) name: Name,
    pub(crate) class: usize,
    /// Offset of the first shard in the object. The shards follow one another, in the order of ranks.
    pub(crate) offset: u64,
    /// Checksums of the shards, one per rank; hidden ones if the entry is encrypted.
    pub(crate) sums: Box<[u64]>,
}

/// The table at the front of a pack, with the place of each entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackTable {
    pub(crate) records: Vec<PackRecord>,
    /// Total bytes of the object.
    pub(crate) object_bytes: u64,
}

/// Whether a table can have this many bytes.
pub(crate) const fn is_a_length(bytes: u64, ranks: usize) -> bool {
    let record = (RECORD_BYTES + 8 * ranks) as u64;
    match bytes.checked_sub(table_bytes(0, ranks)) {
        Some(records) => records.is_multiple_of(record) && records / record <= MOST_RECORDS as u64,
        None => false,
    }
}

/// Bytes of a table of this many entries.
pub(crate) const fn table_bytes(entries: usize, ranks: usize) -> u64 {
    (HEADER_BYTES + entries * (RECORD_BYTES + 8 * ranks) + CHECK_BYTES) as u64
}

impl PackTable {
    /// Makes the table of a pack with these entries, one after another.
    pub(crate) fn of(entries: &[(Name, usize, &[u64])], classes: &[EntrySize]) -> Self {
        let ranks = entries.first().map_or(1, |(.., sums)| sums.len());
        let mut offset = table_bytes(entries.len(), ranks);
        let record = |&(name, class, sums): &(Name, usize, &[u64])| {
            let at = offset;
            offset += classes[class].bytes;
            PackRecord {
                name,
                class,
                offset: at,
                sums: sums.into(),
            }
        };
        let records = entries.iter().map(record).collect();
        Self {
            records,
            object_bytes: offset,
        }
    }

    /// Encodes the table of a pack of this format.
    pub(crate) fn encode(&self, format: u32, identity: &Identity, id: PackId) -> Vec<u8> {
        let ranks = self.records.first().map_or(1, |record| record.sums.len());
        let length = table_bytes(self.records.len(), ranks);
        let mut bytes = Vec::with_capacity(length as usize);
        bytes.extend(MAGIC);
        bytes.extend(format.to_le_bytes());
        bytes.extend((ranks as u32).to_le_bytes());
        bytes.extend(identity);
        bytes.extend(id.made.to_le_bytes());
        bytes.extend(id.writer.to_le_bytes());
        bytes.extend(id.number.to_le_bytes());
        bytes.extend((self.records.len() as u32).to_le_bytes());
        bytes.extend(self.object_bytes.to_le_bytes());
        bytes.extend([0; 16]);
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        for record in &self.records {
            bytes.extend(record.name);
            bytes.extend((record.class as u64).to_le_bytes());
            bytes.extend(record.offset.to_le_bytes());
            for sum in &record.sums {
                bytes.extend(sum.to_le_bytes());
            }
        }
        let check = blake3::hash(&bytes);
        bytes.extend(check.as_bytes());
        bytes
    }

    /// Decodes the table at the front of an object of `object_bytes`, which must be the pack with this name, and of
    /// this format and identity.
    ///
    /// # Errors
    /// A text that says what was expected and found.
    pub(crate) fn decode(
        bytes: &[u8],
        (format, identity): (u32, &Identity),
        name: PackName,
        object_bytes: u64,
        classes: &[EntrySize],
        ranks: usize,
    ) -> Result<Self, String> {
        let refused = |what: &str| Err(format!("expected {what}, found other bytes"));
        if bytes.len() as u64 != name.table_bytes || bytes.len() < HEADER_BYTES + CHECK_BYTES {
            return refused("a whole table");
        }
        let (told, check) = bytes.split_at(bytes.len() - CHECK_BYTES);
        if blake3::hash(told).as_bytes()[..] != *check {
            return refused("a table with its checksum");
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&told[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let half = |at: usize| (word(at - at % 8) >> (8 * (at % 8))) as u32;
        if told[..8] != MAGIC || half(8) != format {
            return refused("a pack of this format");
        }
        if told[16..48] != *identity || half(12) as usize != ranks {
            return refused("a pack of this identity");
        }
        let id = PackId {
            made: word(48),
            writer: word(56),
            number: half(64),
        };
        if id != name.id {
            return refused("the pack that its name says");
        }
        let (count, length) = (half(68) as usize, RECORD_BYTES + 8 * ranks);
        if told.len() != HEADER_BYTES + count * length {
            return refused("as many records as the header says");
        }
        if word(72) != object_bytes {
            return Err(format!(
                "expected an object of {} bytes, found {object_bytes}",
                word(72)
            ));
        }
        let mut records = Vec::with_capacity(count);
        for record in told[HEADER_BYTES..].chunks_exact(length) {
            let word = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&record[at..at + 8]);
                u64::from_le_bytes(word)
            };
            let class = usize::try_from(word(32)).unwrap_or(usize::MAX);
            let offset = word(40);
            let fits = classes.get(class).is_some_and(|class| {
                let end = offset.checked_add(class.bytes);
                offset >= name.table_bytes && end.is_some_and(|end| end <= object_bytes)
            });
            if !fits {
                return refused("records inside the object");
            }
            let mut name = Name::default();
            name.copy_from_slice(&record[..32]);
            records.push(PackRecord {
                name,
                class,
                offset,
                sums: (0..ranks)
                    .map(|rank| word(RECORD_BYTES + 8 * rank))
                    .collect(),
            });
        }
        Ok(Self {
            records,
            object_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: [EntrySize; 2] = [
        EntrySize {
            shard_bytes: 50,
            bytes: 100,
            slots: 1,
        },
        EntrySize {
            shard_bytes: 700,
            bytes: 1400,
            slots: 3,
        },
    ];
    const IDENTITY: Identity = [9; 32];
    const OURS: (u32, &Identity) = (REMOTE_FORMAT_VERSION, &IDENTITY);

    fn pack() -> (PackName, PackTable, Vec<u8>) {
        let id = PackId {
            made: 0x0192_3344_5566,
            writer: 77,
            number: 5,
        };
        let entries: [(Name, usize, &[u64]); 3] = [
            ([1; 32], 0, &[1, 2]),
            ([2; 32], 1, &[3, 4]),
            ([3; 32], 0, &[5, 6]),
        ];
        let table = PackTable::of(&entries, &CLASSES);
        let bytes = table.encode(REMOTE_FORMAT_VERSION, &IDENTITY, id);
        let name = PackName {
            id,
            table_bytes: bytes.len() as u64,
        };
        (name, table, bytes)
    }

    #[test]
    fn a_table_comes_back_as_it_was() {
        let (name, table, bytes) = pack();
        assert_eq!(table_bytes(3, 2), bytes.len() as u64);
        assert_eq!(table.object_bytes, bytes.len() as u64 + 1600);
        let found = PackTable::decode(&bytes, OURS, name, table.object_bytes, &CLASSES, 2);
        assert_eq!(found, Ok(table));
        assert_eq!(PackName::parse(&name.to_string()), Some(name));
    }

    #[test]
    fn every_changed_bit_is_refused() {
        let (name, table, bytes) = pack();
        for at in 0..bytes.len() {
            for bit in [0, 7] {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                let found = PackTable::decode(&other, OURS, name, table.object_bytes, &CLASSES, 2);
                assert!(found.is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn a_table_of_another_pack_identity_or_length_is_refused() {
        let (name, table, bytes) = pack();
        let decode = |bytes: &[u8], identity, name, length, ranks| {
            PackTable::decode(
                bytes,
                (REMOTE_FORMAT_VERSION, identity),
                name,
                length,
                &CLASSES,
                ranks,
            )
        };
        let length = table.object_bytes;
        let sealed = (REMOTE_FORMAT_VERSION + 1, &IDENTITY);
        assert!(PackTable::decode(&bytes, sealed, name, length, &CLASSES, 2).is_err());
        let mut other = name;
        other.id.number += 1;
        assert!(decode(&bytes, &IDENTITY, other, length, 2).is_err());
        assert!(decode(&bytes, &[8; 32], name, length, 2).is_err());
        assert!(decode(&bytes, &IDENTITY, name, length - 1, 2).is_err());
        assert!(decode(&bytes, &IDENTITY, name, length, 1).is_err());
        assert!(decode(&bytes[..bytes.len() - 1], &IDENTITY, name, length, 2).is_err());
        assert!(decode(&[], &IDENTITY, name, length, 2).is_err());
    }

    #[test]
    fn names_are_in_the_order_of_time_and_nothing_else_is_one() {
        let (name, ..) = pack();
        let mut later = name;
        later.id.made += 1;
        later.id.writer = 0;
        assert!(later.to_string() > name.to_string());
        assert!(names_from(later.id.made) > name.to_string());
        for other in ["", ".pack", "a-b-c-d.pack", "1-2-3-4.pack", "about.json"] {
            assert_eq!(PackName::parse(other), None);
        }
        assert_eq!(PackName::parse(&name.to_string().to_uppercase()), None);
        assert_eq!(PackName::parse(&format!("{name}~1")), None);
    }
}
