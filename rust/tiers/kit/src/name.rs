//! How tiers that outlive a process, or are shared by several, name entries and what their bytes depend on.

use hybrid_pages::ids::EntryKey;

/// The name of an entry: a digest of its key.
pub type Name = [u8; 32];

/// Names an identity: whatever the bytes depend on, the geometry included.
pub type Identity = [u8; 32];

/// The name of an entry.
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
