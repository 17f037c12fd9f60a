//! Which boundaries can be resumed: a tree of boundaries under their keys, and the joint hit.
//!
//! With an attention class the tree is the whole truth: a boundary is known exactly while its
//! page is resident in some tier or in writing, its parent is the boundary before it, and a page that
//! leaves a tier takes what is below out of that tier. Without one, boundaries stand alone and are known
//! while they have any entry. A tail is a boundary, too, one block behind the one that it hangs from, and nothing hangs
//! from it. A namespace is known while it is held or a boundary is known under it.

mod boundary;
mod cell;
mod index;
mod joint;
mod namespace;
mod roles;
mod tails;

pub use boundary::boundaries;
pub(crate) use boundary::boundary_name;
pub(crate) use cell::{Fate, IndexCell};
pub(crate) use index::{Observer, PrefixIndex};
pub use joint::{Hit, Missing};
pub(crate) use roles::Roles;
pub(crate) use tails::{check_chain, is_tail_at};
