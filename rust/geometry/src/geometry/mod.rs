//! The make-up of pages and checkpoints.
//!
//! Pure data, checked where it is made: whoever holds a [`Geometry`] need not check it again.
//! The payload of an entry is rank after rank; inside a rank, group after group of the class,
//! block after block of the engine's, layer after layer, segment after segment, without gaps.

mod checks;
mod class;
mod difference;
mod fingerprint;
mod group;
mod json;
mod segment;
mod whole;

pub use class::PageClass;
pub use fingerprint::{FORMAT_VERSION, Fingerprint};
pub use group::{Group, Layer, kind_name, parse_kind};
pub use segment::{Dtype, Segment};
pub use whole::Geometry;
