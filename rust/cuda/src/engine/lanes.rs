//! The lanes of a device, one per direction, and what they share.

use std::sync::Arc;

use hybrid_pages::transfer::Direction;

use crate::driver::Device;
use crate::error::{CudaError, Result};
use crate::kernels::Module;
use crate::pinning::Pinned;

use super::buffers::Room;
use super::kernels;
use super::lane::{Given, Lane};

/// Both lanes and what they share. Dropped in this order: streams before what they use.
pub(super) struct Lanes {
    each: [Lane; 2],
    module: Option<Module>,
    slots: Pinned,
}

impl Lanes {
    pub(super) fn new(
        device: &Arc<Device>,
        slots: Pinned,
        share: f64,
        room: Room,
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        let module = kernels::load(device, share, warnings)?;
        let lane = |direction| Lane::new(device, direction, room, module.is_some());
        let each = [lane(Direction::Store)?, lane(Direction::Load)?];
        if each.iter().any(Lane::asks_driver) {
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
        })
    }

    pub(super) fn of(&self, direction: Direction) -> &Lane {
        &self.each[direction as usize]
    }

    pub(super) fn slots(&self) -> &Pinned {
        &self.slots
    }

    /// Whether kernels, and so digests on the device, are to be had.
    pub(super) fn has_kernels(&self) -> bool {
        self.module.is_some()
    }

    /// Whether the device still works.
    pub(super) fn check(&self) -> Result<()> {
        self.each.iter().try_for_each(Lane::check)
    }

    /// Waits on the host for all that both lanes were given.
    pub(super) fn drain(&self) -> Result<()> {
        let [store, load] = &self.each;
        // Both, whatever one says.
        let first = store.drain();
        load.drain().and(first)
    }

    /// Gives a flight to its lane; on failure, waits until nothing of it is under way.
    ///
    /// # Safety
    /// As for [`Lane::enqueue`].
    pub(super) unsafe fn enqueue(
        &self,
        direction: Direction,
        given: &Given<'_>,
    ) -> std::result::Result<(), Failed> {
        let lane = self.of(direction);
        // SAFETY: the caller's.
        let outcome = unsafe { lane.enqueue(given, self.module.as_ref(), &self.slots) };
        outcome.map_err(|error| match lane.drain() {
            Ok(()) => Failed::of(error),
            Err(broken) => Failed::Device(broken),
        })
    }
}

/// How far a failure reaches.
pub(super) enum Failed {
    /// This flight alone.
    This(CudaError),
    /// Everything on the device.
    Device(CudaError),
}

impl Failed {
    fn of(error: CudaError) -> Self {
        if error.is_sticky() {
            Self::Device(error)
        } else {
            Self::This(error)
        }
    }
}
