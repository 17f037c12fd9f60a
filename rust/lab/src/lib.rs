//! The lab: replays traces through the policies of the cache, beside a bound that is proven for all of them.
//!
//! Sizes: a page has size 1, a checkpoint size R, the ratio. A budget is a share of the dense footprint, the
//! distinct full blocks times (1 + R). Requests run one at a time; only full blocks count, and at
//! least one token is computed.
//!
//! The lab is a crate of its own, so that the core depends on no decompressor. Of the core it uses ids, the
//! error, [`policy`](hybrid_pages::policy) and, for `route`, the [`cache`](hybrid_pages::cache). Imports point strictly down:
//!
//! | modules | |
//! |---|---|
//! | `route` | a router in front of several caches |
//! | `replay` | every trace with every policy and budget, over all cores |
//! | `lab`, `bound` | one replay; the bound |
//! | `disk` | the tier below the host of a replay |
//! | `level` | one tier: its entries and its policy |
//! | `sessions` | session ids derived from chains |
//! | `trace` | requests as chains of boundaries |
//! | `row`, `source` | one row of a trace; its bytes, plain or compressed |
//! | `error` | what can go wrong |
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod bound;
mod disk;
mod error;
mod lab;
mod level;
mod replay;
mod route;
mod row;
mod sessions;
mod source;
mod trace;

pub use error::{LabError, Result};
pub use replay::{BOUND, Below, Budget, Row, replay, replay_over};
pub use route::{Route, Routed, route};
pub use sessions::Sessions;
pub use trace::{ReadOptions, Trace};
