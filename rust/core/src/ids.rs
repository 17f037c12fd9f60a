//! Names for the small integers and keys that travel between modules.

use std::sync::Arc;

use crate::error::{Error, Result};

/// A fixed-size place in an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// The number of an identity under which prefix keys are unique: an engine's fingerprint plus whatever else its tokens
/// depend on (a LoRA adapter, a tenant). A number never stands for a second identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NamespaceId(pub u32);

/// The engine's chained hash of every token up to a boundary: 8 to 32 bytes, compared whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixKey {
    bytes: [u8; PrefixKey::MAX_BYTES],
    len: u8,
}

impl PrefixKey {
    /// Shortest accepted hash: below this, collisions are not negligible.
    pub const MIN_BYTES: usize = 8;
    /// Longest accepted hash (SHA-256).
    pub const MAX_BYTES: usize = 32;

    /// Takes a hash as the engine made it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless it is 8 to 32 bytes long.
    pub fn new(hash: &[u8]) -> Result<Self> {
        if !(Self::MIN_BYTES..=Self::MAX_BYTES).contains(&hash.len()) {
            return Err(Error::InvalidArgument(format!(
                "prefix key: expected {} to {} bytes, found {}",
                Self::MIN_BYTES,
                Self::MAX_BYTES,
                hash.len()
            )));
        }
        let mut bytes = [0; Self::MAX_BYTES];
        bytes[..hash.len()].copy_from_slice(hash);
        Ok(Self {
            bytes,
            len: hash.len() as u8,
        })
    }

    /// The first 64 bits: a short name for uses that can bear a collision.
    #[must_use]
    pub fn short(&self) -> u64 {
        let mut word = [0; Self::MIN_BYTES];
        word.copy_from_slice(&self.bytes[..Self::MIN_BYTES]);
        u64::from_le_bytes(word)
    }

    /// The hash as given.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::hash::Hash for PrefixKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // The key is already uniform: eight of its bytes are hash enough. Equality compares all.
        state.write(&self.bytes[..Self::MIN_BYTES]);
    }
}

/// The kind of bytes that the layers of a class keep. It decides which entries of the class a prefix needs to be
/// resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClassKind {
    /// Full attention: a page of every block from the first.
    Attention,
    /// Sliding-window attention: only the pages of the last window.
    Window,
    /// A recurrence: only the checkpoint at the boundary itself.
    Recurrent,
}

/// The bytes of one class at one block (a page or a checkpoint), wherever its slots lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(pub u32);

/// The name of an entry, the same in any process. A tier below the host keeps and finds the entry by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryKey {
    /// Identity of the namespace, as the engine gave it.
    pub namespace: Arc<[u8]>,
    /// Hash of every token up to the end of the block.
    pub prefix: PrefixKey,
    /// Index of the block in its prefix.
    pub block_index: usize,
    /// Index of the class.
    pub class_index: usize,
}

/// A boundary known to the prefix index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// The tenant against whose share of the room an entry counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u32);

impl TenantId {
    /// No tenant: entries count against no share.
    pub const NONE: Self = Self(u32::MAX);
}
