//! Settings of an engine.

use std::sync::Arc;

use crate::pinning::Pinning;

/// Settings of an engine. The defaults suit every machine that was measured.
#[derive(Clone)]
pub struct CudaOptions {
    /// The device's number.
    pub device: usize,
    /// The share of the multiprocessors that kernels may take: more than 0, at most 1.
    pub share: f64,
    /// Batches whose pieces are on average shorter than so many bytes move by a kernel, others by the
    /// device's copy engines.
    pub kernel_below: usize,
    /// What pins the slots; without one, the engine pins them itself and waits for it.
    pub pinning: Option<Arc<Pinning>>,
}

impl CudaOptions {
    /// The length of pieces from which on the copy engines were measured to be faster, on an H100.
    pub const KERNEL_BELOW: usize = 28 << 10;
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            device: 0,
            share: 0.125,
            kernel_below: Self::KERNEL_BELOW,
            pinning: None,
        }
    }
}
