//! The lanes of a device, one per direction, and what they share.

use std::sync::Arc;

use hybrid_pages::transfer::Direction;

use crate::driver::{Device, Event, Registration};
use crate::error::{CudaError, Result};
use crate::kernels::Module;

use super::buffers::{Buffers, Pool};
use super::kernels;
use super::lane::{Given, Lane, Slots};
use super::method::Method;
use super::options::Options;
use super::ring::Ring;

/// Both lanes and what they share. Dropped in this order: streams before what they use.
pub(super) struct Lanes {
    each: [Lane; 2],
    pool: Pool,
    module: Option<Module>,
    slots: Slots,
    _registration: Option<Registration>,
    device: Arc<Device>,
}

impl Lanes {
    /// The lanes of a device, and the methods that work there: at least one, the best guess first.
    pub(super) fn new(
        device: &Arc<Device>,
        slots: Slots,
        registration: Option<Registration>,
        options: &Options,
        warnings: &mut Vec<String>,
    ) -> Result<(Self, Vec<Method>)> {
        let mut lanes = Self {
            each: [
                Lane::new(device, Direction::Store)?,
                Lane::new(device, Direction::Load)?,
            ],
            pool: Pool::default(),
            module: kernels::load(device, options, warnings)?,
            slots,
            _registration: registration,
            device: Arc::clone(device),
        };
        let mut methods = vec![Method::Copy];
        if lanes.module.is_some() {
            if slots.mapped.is_some() {
                methods.push(Method::Kernel);
            }
            match lanes.make_rings(options.staging_bytes) {
                Ok(()) => methods.insert(0, Method::Staged),
                Err(error) if error.is_sticky() => return Err(error),
                Err(error) => warnings.push(format!(
                    "no ring on the device, many small pieces move slower: {error}"
                )),
            }
        }
        Ok((lanes, methods))
    }

    fn make_rings(&mut self, nbytes: usize) -> Result<()> {
        for lane in &mut self.each {
            lane.set_ring(Ring::new(&self.device, nbytes)?);
        }
        Ok(())
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn slots(&self) -> Slots {
        self.slots
    }

    /// Whether kernels, and so digests on the device, are to be had.
    pub(super) fn has_kernels(&self) -> bool {
        self.module.is_some()
    }

    /// Waits on the host for all that both lanes were given.
    pub(super) fn drain(&self) -> Result<()> {
        let [store, load] = &self.each;
        // Both, whatever one says.
        let first = store.drain();
        load.drain().and(first)
    }

    /// Waits on the host for an event.
    pub(super) fn wait(&self, event: &Event) -> Result<()> {
        let _entered = self.device.enter()?;
        event.synchronize()
    }

    /// Buffers of a transfer that has ended.
    pub(super) fn give_back(&mut self, buffers: Option<Buffers>) {
        if let Some(buffers) = buffers {
            self.pool.give_back(buffers);
        }
    }

    /// Gives a transfer to its lane; on failure, waits until nothing of it is under way.
    ///
    /// # Safety
    /// As for [`Lane::enqueue`].
    pub(super) unsafe fn enqueue(
        &mut self,
        direction: Direction,
        given: &Given<'_>,
        kept: &mut Option<Buffers>,
    ) -> std::result::Result<(), Failed> {
        let Self {
            each, pool, module, ..
        } = self;
        let lane = &mut each[direction as usize];
        // SAFETY: the caller's.
        let outcome = unsafe { lane.enqueue(given, module.as_ref(), pool, kept) };
        outcome.map_err(|error| match lane.drain() {
            Ok(()) => Failed::of(error),
            Err(broken) => Failed::Device(broken),
        })
    }
}

/// How far a failure reaches.
pub(super) enum Failed {
    /// This transfer alone.
    This(CudaError),
    /// Everything on the device.
    Device(CudaError),
}

impl Failed {
    pub(super) fn of(error: CudaError) -> Self {
        if error.is_sticky() {
            Self::Device(error)
        } else {
            Self::This(error)
        }
    }
}
