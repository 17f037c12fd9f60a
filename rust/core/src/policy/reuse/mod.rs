//! The policy `reuse`: keeps the checkpoints that are expected to save most computing for the room and time they take.
//!
//! Words of this module, each explained at its type:
//!
//! - *record*: what is known about one checkpoint ([`record::CheckpointRecord`]); a *ghost* is the record of a
//!   checkpoint that is not in the cache, kept to learn from;
//! - *bin*: an interval of a checkpoint's age, and *hazard*: the expected uses in one bin ([`hazard`]);
//! - *Gittins index*: the most expected uses per time held, over all horizons ([`hazard::Hazards::index`]);
//! - *density*: blocks that a checkpoint saves, over the size that its eviction frees; *worth*: Gittins index times
//!   density, the score by which checkpoints are evicted ([`eviction`]);
//! - *heir*: the nearest checkpoint above an evicted one, which inherits its Gittins index ([`inheritance`]).

mod admission;
mod ages;
mod eviction;
mod hazard;
mod inheritance;
mod learnt;
mod name_index;
mod order;
mod origin;
mod policy;
mod record;
mod selection;
mod sessions;
mod state;
mod tree;
mod unneeded;

pub use state::Reuse;
