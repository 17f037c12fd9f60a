//! Names of entries and identities, for tiers that outlive a process or are shared by several processes.

use hybrid_pages::ids::EntryKey;

/// The name of an entry: a digest of its key.
pub type Name = [u8; 32];

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
    *hasher.finalize().as_bytes()
}
