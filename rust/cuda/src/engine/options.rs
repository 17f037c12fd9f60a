//! Settings of a CUDA engine.

use std::sync::Arc;

use crate::pinning::Pinning;

/// Settings of a CUDA engine. The defaults suit every machine that was measured.
#[derive(Clone)]
pub struct CudaOptions {
    /// The device's number.
    pub device: usize,
    /// The share of the multiprocessors that kernels may take while they wait for the bus: more than 0, at most 1.
    pub share: f64,
    /// Batches move by a kernel if their pieces are on average shorter than this many bytes, else by the device's
    /// copy engines alone. Pages that have not all of their tokens always move by a kernel, which writes the zeros,
    /// too.
    pub kernel_below: usize,
    /// Bytes of the device's memory for staging: kernels collect small pieces there, and copy engines move them over
    /// the bus in one. With 0 kernels reach over the bus themselves.
    pub staging: usize,
    /// Whether many copies may go to the driver in one call, where it has such a call.
    pub batch_copies: bool,
    /// The pinning of the slots. Without one, the engine pins them itself, and waits for that.
    pub pinning: Option<Arc<Pinning>>,
}

impl CudaOptions {
    /// The length of pieces, in bytes, from which on the copy engines alone were about as fast as a kernel with staging
    /// on an idle H200, and faster on a busy one.
    pub const KERNEL_BELOW: usize = 28 << 10;
    /// Enough that one batch fills a buffer while another crosses the bus.
    pub const STAGING: usize = 128 << 20;
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            device: 0,
            share: 0.125,
            kernel_below: Self::KERNEL_BELOW,
            staging: Self::STAGING,
            batch_copies: true,
            pinning: None,
        }
    }
}
