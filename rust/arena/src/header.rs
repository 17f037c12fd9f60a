//! The header of a plane, its first bytes: the geometry that its slots are for, and how they are cut.
//!
//! ```text
//! 0        8         12             16           24      32            64     68      72      header_bytes
//! | magic  | version | header_bytes | slot_bytes | slots | fingerprint | rank | ranks | zeros | slot 0 ...
//! ```
//! Integers are little-endian. The header fills whole memory pages, so that slots start on one. `slot_bytes` counts the
//! bytes of a slot in this plane.

use hybrid_pages::error::{Error, Result};
use hybrid_pages::geometry::{FORMAT_VERSION, Fingerprint, Geometry};

const MAGIC: [u8; 8] = *b"HYBPAGES";

/// A decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaneHeader {
    pub(crate) header_bytes: usize,
    pub(crate) slot_bytes: usize,
    pub(crate) slots: usize,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

impl PlaneHeader {
    pub(crate) const ENCODED_BYTES: usize = 72;

    /// Bytes of a plane with this header, in whole memory pages; `None` if no allocation can be that large.
    pub(crate) fn total_bytes(&self) -> Option<usize> {
        let slots = self.slots.checked_mul(self.slot_bytes)?;
        let total = slots.checked_add(self.header_bytes)?;
        let total = total.checked_next_multiple_of(self.header_bytes)?;
        isize::try_from(total).is_ok().then_some(total)
    }

    pub(crate) fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.header_bytes as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&(self.slot_bytes as u64).to_le_bytes());
        bytes[24..32].copy_from_slice(&(self.slots as u64).to_le_bytes());
        bytes[32..64].copy_from_slice(self.fingerprint.as_bytes());
        bytes[64..68].copy_from_slice(&(self.rank as u32).to_le_bytes());
        bytes[68..].copy_from_slice(&(self.ranks as u32).to_le_bytes());
        bytes
    }

    /// Reads a header of this format, made for this geometry.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code))]
    pub(crate) fn decode(bytes: &[u8; Self::ENCODED_BYTES], geometry: &Geometry) -> Result<Self> {
        if bytes[..8] != MAGIC {
            return Err(Error::Foreign(format!(
                "arena: expected a header that begins with {}, found {}",
                MAGIC.escape_ascii(),
                bytes[..8].escape_ascii()
            )));
        }
        let version = number(&bytes[8..12]);
        if version != u64::from(FORMAT_VERSION) {
            return Err(Error::Foreign(format!(
                "arena: expected format version {FORMAT_VERSION}, found {version}"
            )));
        }
        let fingerprint = Fingerprint::from_bytes(std::array::from_fn(|i| bytes[32 + i]));
        if fingerprint != *geometry.fingerprint() {
            return Err(Error::Foreign(format!(
                "arena: expected fingerprint {}, found {fingerprint}: it was made for another \
                 geometry",
                geometry.fingerprint()
            )));
        }
        let word = |range: std::ops::Range<usize>| usize::try_from(number(&bytes[range])).ok();
        let header = || {
            Some(Self {
                header_bytes: word(12..16)?,
                slot_bytes: word(16..24)?,
                slots: word(24..32)?,
                fingerprint,
                rank: word(64..68)?,
                ranks: word(68..72)?,
            })
        };
        header()
            .filter(|h| h.header_bytes >= Self::ENCODED_BYTES && h.slot_bytes > 0 && h.slots > 0)
            .filter(|h| h.rank < h.ranks && h.ranks == geometry.ranks())
            .ok_or_else(|| {
                Error::arena(format!(
                    "header: expected slots of at least 1 byte, of one of {} ranks, found none",
                    geometry.ranks()
                ))
            })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}
