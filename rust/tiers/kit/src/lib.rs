//! What tiers below the host share: entries by name, the host's slots as copies see them, and how fast a tier is.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod by_name;
mod name;
mod planes;
mod speed;

pub use by_name::{ByName, Recent};
pub use name::{Identity, Name, name_of};
pub use planes::Planes;
pub use speed::Speed;
