//! Settings of a pinning.

use std::time::Duration;

/// Settings of a pinning. The defaults suit every system that is known.
#[derive(Debug, Clone, Copy)]
pub struct PinningOptions {
    /// The most bytes that are registered in one call. Some systems refuse more, and other callers of the driver wait
    /// meanwhile.
    pub piece_bytes: usize,
    /// The least bytes that are registered in one call: a piece that fails is halved down to these.
    pub least_bytes: usize,
    /// Bytes of a memory page. Two registrations never share one.
    pub page_bytes: usize,
    /// The pause before a piece that failed is tried again.
    pub retry_after: Duration,
}

impl PinningOptions {
    /// The default of [`piece_bytes`](Self::piece_bytes). On an H200 other threads waited up to 3.5 ms for pieces of this
    /// size, 11 ms for 256 MiB and 64 ms for 2 GiB, and pinning took an eighth longer than in those.
    pub const PIECE_BYTES: usize = 64 << 20;
}

impl Default for PinningOptions {
    fn default() -> Self {
        Self {
            piece_bytes: Self::PIECE_BYTES,
            least_bytes: 16 << 20,
            page_bytes: rustix::param::page_size(),
            retry_after: Duration::from_millis(200),
        }
    }
}
