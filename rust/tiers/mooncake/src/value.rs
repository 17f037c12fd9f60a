//! The layout of keys and values in the store. `docs/remote.md` describes it byte by byte.

use std::fmt::Write as _;
use std::ops::Range;

use hybrid_pages_tiers::{Identity, Name, mark_name};
use xxhash_rust::xxh3::xxh3_64;

/// Version of values and keys. Values of another version have other keys and are left alone.
pub const MOONCAKE_FORMAT_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"HYBPVALU";
const SUMS_AT: usize = 96;

/// Bytes of a value's header, which is before the shards.
pub(crate) const fn header_bytes(ranks: usize) -> usize {
    SUMS_AT + 8 * ranks + 8
}

/// Numbers of tokens that share a mark.
const MARKED: usize = 32;

/// The name of the mark that says that a group has tails. The others are asked for only if it is there.
pub(crate) fn first_mark(group: u64) -> Name {
    mark_name(group, u64::MAX)
}

/// The names of the marks of tails in blocks of so many tokens, each with the numbers of tokens that it stands for. A
/// *mark* is a value without shards: it says that some tail of a group may have such a number of tokens. A value
/// that is there can't be changed, so a single list of lengths could not grow.
pub(crate) fn marks(group: u64, block_tokens: usize) -> impl Iterator<Item = (Name, Range<u32>)> {
    let mark = move |from: usize| {
        let end = block_tokens.min(from + MARKED);
        let tokens = from.max(1) as u32..end as u32;
        (mark_name(group, from as u64), tokens)
    };
    (0..block_tokens).step_by(MARKED).map(mark)
}

/// The key of an entry.
pub(crate) fn key_of(identity: &Identity, name: &Name) -> String {
    let mut key = format!("hp/{MOONCAKE_FORMAT_VERSION}/");
    for byte in identity {
        let _ = write!(key, "{byte:02x}");
    }
    key.push('/');
    for byte in name {
        let _ = write!(key, "{byte:02x}");
    }
    key
}

/// The header of a value. The shards follow, one per rank, each `shard_bytes` long.
pub(crate) struct ValueHeader<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) name: &'a Name,
    pub(crate) class: usize,
    pub(crate) shard_bytes: usize,
}

impl ValueHeader<'_> {
    pub(crate) fn encode(&self, sums: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(header_bytes(sums.len()));
        bytes.extend(MAGIC);
        bytes.extend(MOONCAKE_FORMAT_VERSION.to_le_bytes());
        bytes.extend((sums.len() as u32).to_le_bytes());
        bytes.extend(self.identity);
        bytes.extend(self.name);
        bytes.extend((self.class as u64).to_le_bytes());
        bytes.extend((self.shard_bytes as u64).to_le_bytes());
        for sum in sums {
            bytes.extend(sum.to_le_bytes());
        }
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// The checksums of the shards, if these bytes are the header of this entry for so many ranks.
    pub(crate) fn sums(&self, bytes: &[u8], ranks: usize) -> Option<Vec<u64>> {
        let told = bytes.get(SUMS_AT..SUMS_AT + 8 * ranks)?;
        let (sums, _) = told.as_chunks();
        let sums: Vec<u64> = sums.iter().map(|&sum| u64::from_le_bytes(sum)).collect();
        (self.encode(&sums) == bytes).then_some(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: ValueHeader<'static> = ValueHeader {
        identity: &[7; 32],
        name: &[9; 32],
        class: 1,
        shard_bytes: 300,
    };

    #[test]
    fn a_header_comes_back_and_every_changed_bit_is_refused() {
        let bytes = HEADER.encode(&[3, u64::MAX]);
        assert_eq!(bytes.len(), header_bytes(2));
        assert_eq!(HEADER.sums(&bytes, 2), Some(vec![3, u64::MAX]));
        assert_eq!(HEADER.sums(&bytes, 1), None);
        assert_eq!(HEADER.sums(&bytes[1..], 2), None);
        assert_eq!(HEADER.sums(&[], 2), None);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                assert_eq!(HEADER.sums(&other, 2), None, "byte {at}");
            }
        }
    }

    /// The bytes of format 1. If this fails, values need another version, which gives them other keys.
    #[test]
    fn a_header_and_a_key_are_what_the_version_says() {
        let words = [1, 300, 3, u64::MAX, 0x8b3b_c1c0_fd2e_1b2d].map(u64::to_le_bytes);
        let start = [&b"HYBPVALU\x01\0\0\0\x02\0\0\0"[..], &[7; 32], &[9; 32]].concat();
        assert_eq!(MOONCAKE_FORMAT_VERSION, 1);
        assert_eq!(
            HEADER.encode(&[3, u64::MAX]),
            [start, words.concat()].concat()
        );
        let key = format!("hp/1/{}/{}", "07".repeat(32), "09".repeat(32));
        assert_eq!(key_of(&[7; 32], &[9; 32]), key);
        assert_eq!(first_mark(5), mark_name(5, u64::MAX));
    }

    #[test]
    fn each_number_of_tokens_in_a_block_has_one_mark_in_its_group() {
        for block_tokens in [1, 31, 32, 33, 784] {
            let marked = marks(7, block_tokens).flat_map(|(_, tokens)| tokens);
            assert!(marked.eq(1..block_tokens as u32));
        }
        let names: std::collections::HashSet<Name> = [7, 8]
            .into_iter()
            .flat_map(|group| {
                marks(group, 784)
                    .map(|(name, _)| name)
                    .chain([first_mark(group)])
            })
            .collect();
        assert_eq!(names.len(), 2 * 26);
    }

    #[test]
    fn a_header_of_another_entry_is_refused() {
        let bytes = HEADER.encode(&[3]);
        let others = [
            ValueHeader {
                identity: &[8; 32],
                ..HEADER
            },
            ValueHeader {
                name: &[8; 32],
                ..HEADER
            },
            ValueHeader { class: 0, ..HEADER },
            ValueHeader {
                shard_bytes: 301,
                ..HEADER
            },
        ];
        for other in others {
            assert_eq!(other.sums(&bytes, 1), None);
        }
        assert_eq!(key_of(&[1; 32], &[2; 32]).len(), 5 + 64 + 1 + 64);
    }
}
