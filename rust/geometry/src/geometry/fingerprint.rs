//! The digest of all that stored bytes depend on.

use std::fmt;

/// Version of every format this crate writes: arena, payload order, checksums.
pub const FORMAT_VERSION: u32 = 2;

/// BLAKE3 of a geometry's canonical JSON: format version, geometry and identity. Bytes stored
/// under one fingerprint mean nothing under another.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; Fingerprint::BYTES]);

impl Fingerprint {
    /// Length of a digest.
    pub const BYTES: usize = 32;

    pub(super) fn of(canonical: &str) -> Self {
        Self(*blake3::hash(canonical.as_bytes()).as_bytes())
    }

    /// A digest read back from a header.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes of the digest.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}
