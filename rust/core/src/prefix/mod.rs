//! Which boundaries can be resumed: a tree of boundaries under their keys, and the joint hit.
//!
//! With an attention class the tree is the whole truth: a boundary is known exactly while its
//! page is resident in some tier or in writing, its parent is the boundary before it, and a page that
//! leaves a tier takes what is below out of that tier. Without one, boundaries stand alone and are known
//! while they have any entry. A namespace is known while it is held or a boundary is known under it.

mod announced;
mod index;
mod joint;
mod namespace;
mod roles;

pub use announced::{Changes, Medium, Removed, Span};
pub(crate) use index::{Boundary, Cell, Fate, Index};
pub use joint::{Hit, Missing};
pub(crate) use namespace::Namespaces;
pub(crate) use roles::Roles;

use crate::error::{Error, Result};
use crate::ids::PrefixKey;

/// The name of a boundary in policies. `seed` is the namespace's: what is remembered of a boundary is
/// still right when its identity was freed and comes back under another number.
pub(crate) fn boundary_name(seed: u64, key: &PrefixKey) -> u64 {
    key.short() ^ seed
}

/// Positions, among `hashes` hashes of which `stride` cover one block, of those at a block's end:
/// the one of block `i` is `(i + 1) * stride - 1`.
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
