//! Names and positions of block boundaries.

use crate::error::{Error, Result};
use crate::ids::PrefixKey;

/// The name of a boundary in policies. `seed` is the namespace's seed, so memories of a boundary stay right when its
/// identity is freed and comes back under another number.
pub(crate) fn boundary_name(seed: u64, key: &PrefixKey) -> u64 {
    key.short() ^ seed
}

/// Positions of the hashes at the ends of blocks, among `hashes` hashes of which `stride` cover one block: that of
/// block `i` is `(i + 1) * stride - 1`.
///
/// # Errors
/// [`Error::InvalidArgument`] if `stride` is 0.
pub fn boundaries(hashes: usize, stride: usize) -> Result<impl ExactSizeIterator<Item = usize>> {
    if stride == 0 {
        return Err(Error::InvalidArgument(
            "stride: expected at least 1 hash a block, found 0".into(),
        ));
    }
    Ok((0..hashes / stride).map(move |block| block * stride + (stride - 1)))
}
