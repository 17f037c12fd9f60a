//! Names of entries and identities, for tiers that outlive a process or are shared by several processes.

use hybrid_pages::ids::EntryKey;

/// The name of an entry: a digest of its key. The last 12 bytes of a tail's name are those of the *group* of tails that
/// hang from the same boundary, and its number of tokens: whoever has names can tell which tails there are.
pub type Name = [u8; 32];

/// The bytes of a tail's name that are a digest.
const DIGEST_BYTES: usize = 20;
/// The bytes of a tail's name before its number of tokens.
const GROUP_END: usize = DIGEST_BYTES + 8;
/// No tail has more tokens.
const MOST_TOKENS: u32 = 1 << 20;

/// An identity: a digest of everything that the bytes of entries depend on, the geometry included.
pub type Identity = [u8; 32];

/// The name of the entry with this key.
#[must_use]
pub fn name_of(key: &EntryKey) -> Name {
    let mut hasher = blake3::Hasher::new();
    for part in [&key.namespace[..], key.prefix.as_bytes()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.update(&(key.block_index as u64).to_le_bytes());
    hasher.update(&(key.class_index as u64).to_le_bytes());
    let mut name = *hasher.finalize().as_bytes();
    if let Some((stem, tokens)) = key.prefix.stem().zip(key.prefix.tail_tokens()) {
        let group = tail_group(&key.namespace, stem);
        name[DIGEST_BYTES..GROUP_END].copy_from_slice(&group.to_le_bytes());
        name[GROUP_END..].copy_from_slice(&tokens.to_le_bytes());
    }
    name
}

/// The group of the tails of a namespace whose keys have this stem.
#[must_use]
pub fn tail_group(namespace: &[u8], stem: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(namespace.len() as u64).to_le_bytes());
    hasher.update(namespace);
    hasher.update(&stem.to_le_bytes());
    let mut group = [0; 8];
    group.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(group)
}

/// The name of a mark: of something small that tells that a group has tails. No entry has it.
#[must_use]
pub fn mark_name(group: u64, number: u64) -> Name {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"tails");
    hasher.update(&group.to_le_bytes());
    hasher.update(&number.to_le_bytes());
    *hasher.finalize().as_bytes()
}

/// The group and the number of tokens in a tail's name. Of the names of other entries, one in 4,096 looks like a
/// tail's, of a group that nobody asks for.
pub(crate) fn tail_of(name: &Name) -> Option<(u64, u32)> {
    let (_, rest) = name.split_at(DIGEST_BYTES);
    let (group, tokens) = rest.split_first_chunk()?;
    let (&tokens, _) = tokens.split_first_chunk()?;
    let tokens = u32::from_le_bytes(tokens);
    (1..=MOST_TOKENS)
        .contains(&tokens)
        .then_some((u64::from_le_bytes(*group), tokens))
}
