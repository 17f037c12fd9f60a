//! The streams of both directions, with the kernels and the pinned slots that batches need.

use std::sync::Arc;

use hybrid_pages::transfer::Direction;

use crate::driver::Device;
use crate::error::{CudaError, Result};
use crate::kernels::Module;
use crate::pinning::Pinned;

use super::batch_call::BatchCall;
use super::buffers::BufferSizes;
use super::kernels;
use super::stream_pair::{StreamPair, Submission};

/// The streams of one device that batches are given to. Fields drop in this order: streams before the memory they
/// use.
pub(super) struct DeviceStreams {
    each: [StreamPair; 2],
    module: Option<Module>,
    slots: Pinned,
    batch_call: Arc<BatchCall>,
}

impl DeviceStreams {
    pub(super) fn new(
        device: &Arc<Device>,
        slots: Pinned,
        share: f64,
        sizes: BufferSizes,
        batch_call: Arc<BatchCall>,
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        let module = kernels::load(device, share, warnings)?;
        let kernels = module.is_some();
        let mut pair =
            |direction| StreamPair::new(device, direction, sizes, kernels, &batch_call, warnings);
        let each = [pair(Direction::Store)?, pair(Direction::Load)?];
        if each.iter().any(StreamPair::asks_driver) {
            warnings.push(
                "this driver writes no words to the host (cuStreamWriteValue64): it is asked which \
                 transfers have ended, which slows down its other callers"
                    .into(),
            );
        }
        Ok(Self {
            each,
            module,
            slots,
            batch_call,
        })
    }

    pub(super) fn of(&self, direction: Direction) -> &StreamPair {
        &self.each[direction as usize]
    }

    pub(super) fn slots(&self) -> &Pinned {
        &self.slots
    }

    /// Whether kernels are loaded; without them the device computes no digests.
    pub(super) fn has_kernels(&self) -> bool {
        self.module.is_some()
    }

    /// Whether many copies go to the driver in one call.
    pub(super) fn batches_copies(&self) -> bool {
        self.batch_call.is_used()
    }

    /// Checks whether the device still works.
    pub(super) fn check(&self) -> Result<()> {
        self.each.iter().try_for_each(StreamPair::check)
    }

    /// Waits on the host until all batches of both directions have ended.
    pub(super) fn drain(&self) -> Result<()> {
        let [store, load] = &self.each;
        // Both are drained, even if one fails.
        let first = store.drain();
        load.drain().and(first)
    }

    /// Gives a batch to the streams of its direction. On failure, waits until no part of the batch is under way.
    ///
    /// # Safety
    /// The demands of [`StreamPair::enqueue`].
    pub(super) unsafe fn enqueue(
        &self,
        direction: Direction,
        batch: &Submission<'_>,
    ) -> std::result::Result<(), SubmitError> {
        let pair = self.of(direction);
        // SAFETY: the caller promises what `StreamPair::enqueue` demands.
        let outcome = unsafe { pair.enqueue(batch, self.module.as_ref(), &self.slots) };
        outcome.map_err(|error| match pair.drain() {
            Ok(()) => SubmitError::of(error),
            Err(broken) => SubmitError::Device(broken),
        })
    }
}

/// A failure to submit a batch, and how far it reaches.
pub(super) enum SubmitError {
    /// Only this batch fails.
    This(CudaError),
    /// The device is broken: everything on it fails.
    Device(CudaError),
}

impl SubmitError {
    fn of(error: CudaError) -> Self {
        if error.is_sticky() {
            Self::Device(error)
        } else {
            Self::This(error)
        }
    }
}
