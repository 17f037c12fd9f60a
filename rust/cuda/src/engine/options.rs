//! How an engine is told to work.

use std::sync::Arc;

use crate::pinning::Pinning;

/// How an engine works; the defaults are right unless something was measured.
#[derive(Clone)]
pub struct Options {
    /// The device's number.
    pub device: usize,
    /// Share of the multiprocessors that kernels may take, above 0, at most 1.
    pub share: f64,
    /// Transfers whose pieces are shorter than this, in bytes and on average, move by a kernel; others
    /// by the copy engine.
    pub kernel_below: usize,
    /// Who pins the slots; `None` for the engine itself, which then waits for it.
    pub pinning: Option<Arc<Pinning>>,
}

impl Options {
    /// From here on the copy engine was measured to be faster (H100).
    pub const KERNEL_BELOW: usize = 28 << 10;
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: 0,
            share: 0.125,
            kernel_below: Self::KERNEL_BELOW,
            pinning: None,
        }
    }
}
