//! Classes: groups whose bytes at one block are kept and evicted together.

use crate::error::{Error, Result};
use crate::ids::ClassKind;

use super::group::{Group, sum};

/// Groups that are resumed by the same rule. An entry is the bytes of one class at one block, for
/// all its groups and all ranks: whole or absent, so nothing is ever published for half of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageClass {
    /// Place in [`super::Geometry::classes`].
    pub index: usize,
    /// Whether its entries are pages or checkpoints.
    pub kind: ClassKind,
    /// The groups in it, by their index in the geometry, ascending.
    pub groups: Vec<usize>,
    /// For a window: how many blocks before a boundary must be there to resume from it.
    pub window_blocks: Option<usize>,
    /// Bytes of one entry on one rank.
    pub rank_bytes: usize,
    /// Bytes of one entry: every rank's shard, rank after rank.
    pub entry_bytes: usize,
}

/// Sorts groups into classes: attention first, then windows from the narrowest, then recurrent.
pub(super) fn classify(
    groups: &[Group],
    block_tokens: usize,
    ranks: usize,
) -> Result<Vec<PageClass>> {
    let key_of = |group: &Group| (group.kind(), group.window_tokens());
    let mut keys: Vec<_> = groups.iter().map(key_of).collect();
    keys.sort_unstable();
    keys.dedup();

    let mut classes = Vec::with_capacity(keys.len());
    for (index, key) in keys.into_iter().enumerate() {
        let members: Vec<usize> = (0..groups.len())
            .filter(|&i| key_of(&groups[i]) == key)
            .collect();
        let rank_bytes = sum(members.iter().map(|&i| groups[i].bytes()));
        let (rank_bytes, entry_bytes) = rank_bytes
            .and_then(|bytes| Some((bytes, bytes.checked_mul(ranks)?)))
            .filter(|(_, entry)| isize::try_from(*entry).is_ok())
            .ok_or_else(|| {
                Error::geometry(format!(
                    "class {index}: the bytes of one entry exceed memory"
                ))
            })?;
        classes.push(PageClass {
            index,
            kind: key.0,
            groups: members,
            // The last token of the window is the one being computed.
            window_blocks: key
                .1
                .map(|tokens| (tokens - 1).div_ceil(block_tokens).max(1)),
            rank_bytes,
            entry_bytes,
        });
    }
    Ok(classes)
}
