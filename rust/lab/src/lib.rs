//! The lab: replays traces through the policies of the cache, beside a bound that is proven for all of them.
//!
//! Sizes: a page has size 1, a checkpoint size R, the ratio. A budget is a share of the dense footprint, the
//! distinct full blocks times (1 + R). Requests run one at a time; only full blocks count, and at
//! least one token is computed.
//!
//! The lab is a crate of its own, so that the core depends on no decompressor. Of the core it uses ids, the
//! error, [`policy`](hybrid_pages::policy) and, for several engines, the [`cache`](hybrid_pages::cache).
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod bound;
mod crowd;
mod disk;
mod engine;
mod error;
mod fleet;
mod lab;
mod level;
mod link;
mod load;
mod packs;
mod policies;
mod replay;
mod route;
mod router;
mod row;
mod sessions;
mod shelf;
mod simulation;
mod source;
mod trace;

pub use error::{LabError, Result};
pub use fleet::{Progress, fleets};
pub use link::{Admit, Link};
pub use load::{Load, Packing};
pub use policies::policies;
pub use replay::{BOUND, Below, Budget, Row, replay, replay_over};
pub use route::{Routed, route};
pub use router::Route;
pub use sessions::Sessions;
pub use shelf::Crossed;
pub use simulation::{Fleet, FleetRow, Terms};
pub use trace::{ReadOptions, Trace};
