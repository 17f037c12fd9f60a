//! The layout of a disk's files. `docs/disk-format.md` describes it byte by byte.

use xxhash_rust::xxh3::xxh3_64;

use crate::door::ALIGNMENT;
use hybrid_pages_tiers::{Identity, Name, OWNER_BYTES};

/// Version of all files below a disk path, except those of encrypted entries, which have
/// [another](SEALED_DISK_FORMAT_VERSION). A store of another version is left alone.
pub const DISK_FORMAT_VERSION: u32 = 1;

/// Version of the cells and indexes of encrypted entries. A lane with encrypted entries of another version is refused.
pub const SEALED_DISK_FORMAT_VERSION: u32 = 3;

/// The kind of tier in the places of seals.
pub(crate) const ON_DISK: u64 = 1;

/// Bytes of a cell before its payload.
pub(crate) const HEADER_BYTES: usize = ALIGNMENT;

/// Most ranks: a header has room for as many checksums.
pub(crate) const MAX_RANKS: usize = 256;

/// Name of the file that describes what an identity was made from.
pub(crate) const ABOUT: &str = "about.json";
/// Name of the file [`ABOUT`] while it is written.
pub(crate) const ABOUT_DRAFT: &str = "about.json.new";
/// Most bytes of the file [`ABOUT`].
pub(crate) const MOST_ABOUT: u64 = 1 << 20;

const MAGIC: [u8; 8] = *b"HYBPCELL";
const SUMS_AT: usize = 128;
const CHECK_AT: usize = HEADER_BYTES - 8;
const OWNER_AT: usize = CHECK_AT - OWNER_BYTES;

/// The header of a cell, which names the entry in the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CellHeader<'a> {
    pub(crate) format: u32,
    pub(crate) identity: &'a Identity,
    pub(crate) name: &'a Name,
    pub(crate) class: usize,
    pub(crate) block: u32,
    pub(crate) cell: u64,
    /// Bytes of one rank's shard.
    pub(crate) shard_bytes: usize,
    /// Checksums of the shards, one per rank; hidden ones if the entry is encrypted.
    pub(crate) sums: &'a [u64],
    /// What an encrypted entry tells of its owner; zeros otherwise.
    pub(crate) owner: [u8; OWNER_BYTES],
}

impl CellHeader<'_> {
    /// Writes the header to the start of `bytes`, and zeros to the rest.
    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        let bytes = &mut bytes[..HEADER_BYTES];
        bytes.fill(0);
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.format.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.sums.len() as u32).to_le_bytes());
        bytes[16..48].copy_from_slice(self.identity);
        bytes[48..80].copy_from_slice(self.name);
        bytes[80..84].copy_from_slice(&(self.class as u32).to_le_bytes());
        bytes[84..88].copy_from_slice(&self.block.to_le_bytes());
        bytes[88..96].copy_from_slice(&self.cell.to_le_bytes());
        bytes[96..104].copy_from_slice(&(self.shard_bytes as u64).to_le_bytes());
        for (sum, place) in self.sums.iter().zip(bytes[SUMS_AT..].chunks_exact_mut(8)) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        bytes[OWNER_AT..CHECK_AT].copy_from_slice(&self.owner);
        let check = xxh3_64(&bytes[..CHECK_AT]);
        bytes[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
    }

    /// Bytes of one rank's shard, read from a header; `None` for anything else.
    pub(crate) fn shard_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<usize> {
        let bytes = bytes[96..104].try_into().ok()?;
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    }

    /// What the entry of a header tells of its owner.
    pub(crate) fn owner(bytes: &[u8; HEADER_BYTES]) -> [u8; OWNER_BYTES] {
        let mut owner = [0; OWNER_BYTES];
        owner.copy_from_slice(&bytes[OWNER_AT..CHECK_AT]);
        owner
    }

    /// Whether these bytes are exactly this header.
    pub(crate) fn is(&self, bytes: &[u8]) -> bool {
        let mut expected = [0; HEADER_BYTES];
        self.encode(&mut expected);
        bytes.get(..HEADER_BYTES) == Some(&expected[..])
    }
}

/// The index's record of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexRecord {
    pub(crate) class: usize,
    pub(crate) block: u32,
    pub(crate) cell: u64,
    /// When the entry was last used, in seconds since 1970.
    pub(crate) used: u64,
    pub(crate) sums: Box<[u64]>,
}

const PLACE_BYTES: usize = 24;

/// A change of the index: the new place of an entry, or `None` if it is gone.
pub(crate) type Change = (Name, Option<IndexRecord>);

impl IndexRecord {
    /// Bytes of an encoded record with checksums of this many ranks.
    pub(crate) const fn bytes(ranks: usize) -> usize {
        PLACE_BYTES + 8 * ranks + 8
    }

    /// Encodes the record, with a checksum that also covers the name.
    pub(crate) fn encode(&self, name: &Name) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PLACE_BYTES + 8 * self.sums.len() + 8);
        bytes.extend((self.class as u32).to_le_bytes());
        bytes.extend(self.block.to_le_bytes());
        bytes.extend(self.cell.to_le_bytes());
        bytes.extend(self.used.to_le_bytes());
        for sum in &self.sums {
            bytes.extend(sum.to_le_bytes());
        }
        let check = check_of(name, &bytes);
        bytes.extend(check.to_le_bytes());
        bytes
    }

    /// Decodes the record of an entry; `None` for bytes that were not encoded for this name.
    pub(crate) fn decode(name: &Name, bytes: &[u8], ranks: usize) -> Option<Self> {
        if bytes.len() != Self::bytes(ranks) {
            return None;
        }
        let (bytes, check) = bytes.split_at(bytes.len() - 8);
        if check != check_of(name, bytes).to_le_bytes() {
            return None;
        }
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let sums = (0..ranks).map(|rank| word(PLACE_BYTES + 8 * rank));
        Some(Self {
            class: half(0)? as usize,
            block: half(4)?,
            cell: word(8)?,
            used: word(16)?,
            sums: sums.collect::<Option<_>>()?,
        })
    }
}

fn check_of(name: &Name, bytes: &[u8]) -> u64 {
    xxh3_64(&[&name[..], bytes].concat())
}
