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

/// The engine's chained hash of every token up to a boundary: 8 to 32 bytes, compared whole. One of 31 bytes is the key
/// of a *tail*: of the tokens behind a prefix's last whole block.
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
    /// Bytes of a tail's key: the digest, the stem, and the number of tokens.
    pub const TAIL_BYTES: usize = Self::TAIL_DIGEST_BYTES + Self::STEM_BYTES + 4;
    /// Bytes of the digest in a tail's key.
    pub const TAIL_DIGEST_BYTES: usize = 19;
    /// Bytes of the key before that a tail's key repeats.
    const STEM_BYTES: usize = Self::MIN_BYTES;

    /// Takes a hash as the engine made it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless it is 8 to 32 bytes long, and for a tail's key without tokens.
    pub fn new(hash: &[u8]) -> Result<Self> {
        if !(Self::MIN_BYTES..=Self::MAX_BYTES).contains(&hash.len()) {
            return Err(Error::InvalidArgument(format!(
                "prefix key: expected {} to {} bytes, found {}",
                Self::MIN_BYTES,
                Self::MAX_BYTES,
                hash.len()
            )));
        }
        if hash.len() == Self::TAIL_BYTES && hash.ends_with(&[0; 4]) {
            return Err(Error::InvalidArgument(
                "prefix key: expected at least 1 token in a key of 31 bytes, which is a tail's, found 0".into(),
            ));
        }
        let mut bytes = [0; Self::MAX_BYTES];
        bytes[..hash.len()].copy_from_slice(hash);
        Ok(Self {
            bytes,
            len: hash.len() as u8,
        })
    }

    /// The key of a tail of so many tokens behind the block whose key is `before`, or at the start of a prompt.
    /// `digest`: a hash of all that comes before the tail, of its tokens and of whatever else its bytes depend on.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without tokens, for a digest of fewer than
    /// [`TAIL_DIGEST_BYTES`](Self::TAIL_DIGEST_BYTES), and behind another tail.
    pub fn tail(before: Option<&Self>, digest: &[u8], tokens: u32) -> Result<Self> {
        let Some(digest) = digest.get(..Self::TAIL_DIGEST_BYTES) else {
            return Err(Error::InvalidArgument(format!(
                "tail: expected a digest of at least {} bytes, found {}",
                Self::TAIL_DIGEST_BYTES,
                digest.len()
            )));
        };
        if tokens == 0 || before.is_some_and(Self::is_tail) {
            return Err(Error::InvalidArgument(
                "tail: expected tokens behind a whole block, found none, or another tail before"
                    .into(),
            ));
        }
        let stem = Self::stem_of(before).to_le_bytes();
        Self::new(&[digest, &stem, &tokens.to_le_bytes()].concat())
    }

    /// Whether this is the key of a tail.
    #[inline]
    #[must_use]
    pub const fn is_tail(&self) -> bool {
        self.len as usize == Self::TAIL_BYTES
    }

    /// Tokens of the tail that this is the key of; `None` for the key of a whole block.
    #[must_use]
    pub fn tail_tokens(&self) -> Option<u32> {
        self.is_tail().then(|| {
            let [.., a, b, c, d, _] = self.bytes;
            u32::from_le_bytes([a, b, c, d])
        })
    }

    /// The short name of the boundary that a tail hangs from: the same for all tails there. `None` for the key of a
    /// whole block.
    #[must_use]
    pub fn stem(&self) -> Option<u64> {
        self.is_tail().then(|| {
            let mut stem = [0; Self::STEM_BYTES];
            stem.copy_from_slice(&self.bytes[Self::TAIL_DIGEST_BYTES..][..Self::STEM_BYTES]);
            u64::from_le_bytes(stem)
        })
    }

    /// The [`stem`](Self::stem) of the tails behind the block with this key, or of those at the start of prompts.
    #[must_use]
    pub fn stem_of(before: Option<&Self>) -> u64 {
        before.map_or(0, Self::short)
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
