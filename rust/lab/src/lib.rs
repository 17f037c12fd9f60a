//! The lab: replays traces through the policies of the cache, and computes an upper bound that holds for all
//! policies.
//!
//! A page has size 1, and a checkpoint has size R, the ratio. A budget is a share of the footprint, which is the
//! number of different full blocks times (1 + R). Requests run one at a time. Only full blocks count, and each
//! request computes at least one token.
//!
//! The lab is a crate of its own, so that the core depends on no decompressor. From the core it uses ids, the error,
//! [`policy`](hybrid_pages::policy) and, for several engines, the [`cache`](hybrid_pages::cache).
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod bound;
mod counted_tier;
mod disk_tier;
mod engine;
mod error;
mod fleet;
mod fleets;
mod network;
mod one_replay;
mod packs;
mod parallel;
mod policies;
mod replay;
mod route;
mod router;
mod row;
mod scaled_trace;
mod session_ids;
mod simulated_store;
mod source;
mod store_load;
mod trace;

pub use error::{LabError, Result};
pub use fleet::{Fleet, FleetRow, FleetTerms};
pub use fleets::{FleetProgress, fleets};
pub use network::{NetworkLink, RemoteUse};
pub use policies::policies;
pub use replay::{BOUND, Budget, ReplayRow, ReplayedTier, replay, replay_over};
pub use route::{RouteResult, route};
pub use router::Route;
pub use session_ids::SessionIds;
pub use simulated_store::RemoteTraffic;
pub use store_load::{PackFormat, StoreLoad};
pub use trace::{ReadOptions, Trace};
