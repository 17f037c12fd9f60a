//! A tier below the host in a Mooncake Store: memory of other machines behind one master.
//!
//! Mooncake's client is a library that starts threads and opens ports, and its calls may last as long as a peer is
//! silent. So it runs in a process of its own, the *helper*, which the tier starts, and ends when it hangs:
//!
//! ```text
//! this process                        helper                             other machines
//! slots      --- read-only mapping --> put from the slots   ----------->  Mooncake's segments
//! staging    <-- shared mapping ------ get into staging     <-----------
//!   `-> copied, verified, into slots
//! ```
//! The helper can't write slots. The tier trusts neither the helper nor the store: a value counts only if its header
//! names the entry and the identity, and an entry is published only if its bytes have the right checksums.
//!
//! A value is one entry: a header with the checksums, then the shards. It is in the store as a whole or not at all.
//! `put` never replaces a value, so a key covers everything that the bytes depend on.

#[cfg(test)]
#[path = "../../../../tests/rust/mooncake/fuzz.rs"]
mod fuzz;
mod handle;
mod helper;
mod link;
mod options;
mod reply;
mod shared;
#[cfg(test)]
#[path = "../../../../tests/rust/mooncake/sizes.rs"]
mod sizes;
mod staging;
mod state;
mod stats;
mod tier;
mod value;
mod wire;

pub use handle::MooncakeHandle;
pub use options::MooncakeOptions;
pub use stats::{MooncakeFailure, MooncakeStats};
pub use tier::Mooncake;
pub use value::MOONCAKE_FORMAT_VERSION;
