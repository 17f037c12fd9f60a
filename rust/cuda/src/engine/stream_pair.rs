//! The two streams of one direction, and how a batch is given to them.
//!
//! A batch is enqueued as a whole; events order the streams, and the host never waits.

use std::ptr;
use std::sync::Arc;

use hybrid_pages::transfer::Direction;

use crate::driver::{CopyAttributes, Device, DevicePointer, Event, Location, Priority, Stream};
use crate::error::{CudaError, Result};
use crate::kernels::abi::{Packed, Paging};
use crate::kernels::{Kernel, Module, Width};
use crate::payload::{CopyRange, Payload};
use crate::pinning::Pinned;

use super::batch_call::BatchCall;
use super::buffers::{BufferSizes, Buffers, MOST_IN_FLIGHT};

/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`, which copies from a device need.
const ORDER_STREAM: i32 = 1;
/// `CU_MEMCPY_SRC_ACCESS_ORDER_ANY`, for loads: their slots were complete long before.
const ORDER_ANY: i32 = 3;
/// `CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`, and the longest copy that it does not slow down.
const PREFER_OVERLAP: u32 = 1;
const MOST_OVERLAPPED: u64 = 128 << 10;
/// Most tiles of a launch of a store: 8 MiB. Between two launches the device gives its multiprocessors to kernels that
/// wait for a whole one.
const MOST_TILES: u64 = 512;

/// How the bytes of a batch move.
pub(super) enum CopyMethod {
    /// A kernel that reaches pinned slots over the bus itself.
    Kernel,
    /// A kernel between the pieces and the staging buffer at this address, and copies between that and the slots.
    Staged(DevicePointer, Vec<CopyRange>),
    /// The device's copy engines: one copy for each range that is adjacent on both sides.
    Copies(Vec<CopyRange>),
}

/// A batch in the form that streams take.
pub(super) struct Submission<'a> {
    /// The batch's number, higher than that of any earlier batch.
    pub(super) number: u64,
    /// The index of the batch's buffers, which no other batch uses at the same time.
    pub(super) index: usize,
    pub(super) payload: &'a Payload,
    pub(super) method: CopyMethod,
    /// Whether all slots are pinned.
    pub(super) pinned: bool,
    /// Whether the device computes digests.
    pub(super) digests: bool,
    /// Points in other streams after which the engine's memory may be touched.
    pub(super) after: Vec<&'a Event>,
}

/// The streams of one direction, with the buffers of its batches.
pub(super) struct StreamPair {
    device: Arc<Device>,
    direction: Direction,
    /// The stream for kernels.
    work: Stream,
    /// The stream for copies.
    bus: Stream,
    /// Orders the two streams.
    joined: Event,
    buffers: Buffers,
    batch_call: Arc<BatchCall>,
    /// One event for each set of buffers, recorded at a batch's end; empty if the driver writes completion words.
    ends: Vec<Event>,
}

impl StreamPair {
    /// Makes the streams. Loads have priority over all other work of the device, since requests wait for them. Stores
    /// have the least.
    pub(super) fn new(
        device: &Arc<Device>,
        direction: Direction,
        sizes: BufferSizes,
        kernels: bool,
        batch_call: &Arc<BatchCall>,
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        let priority = match direction {
            Direction::Load => Priority::Greatest,
            Direction::Store => Priority::Least,
        };
        let mut pair = Self {
            device: Arc::clone(device),
            direction,
            work: Stream::new(device, priority)?,
            bus: Stream::new(device, priority)?,
            joined: Event::new(device)?,
            buffers: Buffers::new(device, sizes, kernels, warnings)?,
            batch_call: Arc::clone(batch_call),
            ends: Vec::new(),
        };
        if !pair.writes_words()? {
            let events = (0..MOST_IN_FLIGHT).map(|_| Event::new(device));
            pair.ends = events.collect::<Result<_>>()?;
        }
        Ok(pair)
    }

    /// Tests whether the device can write completion words. Waits until it has written one.
    fn writes_words(&self) -> Result<bool> {
        const TRIED: u64 = u64::MAX;
        let _entered = self.device.enter()?;
        // SAFETY: no batch uses the word yet.
        let told = unsafe { self.bus.write(self.buffers.word_address(0), TRIED) };
        match told.and_then(|()| self.bus.synchronize()) {
            Ok(()) => Ok(self.buffers.word(0) == TRIED),
            Err(error) if error.is_sticky() => Err(error),
            Err(_) => Ok(false),
        }
    }

    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Whether only the driver knows which batches have ended, since the device writes no completion words.
    pub(super) fn asks_driver(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Whether a batch has ended. Batches of one direction may end in any order.
    pub(super) fn has_ended(&self, number: u64, index: usize) -> Result<bool> {
        if let Some(end) = self.ends.get(index) {
            let _entered = self.device.enter()?;
            return end.query();
        }
        Ok(self.buffers.word(index) == number)
    }

    /// Checks whether the device still works.
    pub(super) fn check(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        self.work.check()?;
        self.bus.check()
    }

    /// Waits on the host until all batches have ended.
    pub(super) fn drain(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        let first = self.work.synchronize();
        self.bus.synchronize().and(first)
    }

    /// Gives a batch to the streams. After an error a part of it may be under way: call
    /// [`drain`](Self::drain).
    ///
    /// # Safety
    /// All memory that the lists and copies name is live and belongs to the batch until it has ended, and so do the
    /// buffers with its index.
    pub(super) unsafe fn enqueue(
        &self,
        batch: &Submission<'_>,
        module: Option<&Module>,
        slots: &Pinned,
    ) -> Result<()> {
        let _entered = self.device.enter()?;
        let by_kernel = !matches!(batch.method, CopyMethod::Copies(_));
        let module = module.filter(|_| batch.digests || by_kernel);
        let last = match (&batch.method, module) {
            (CopyMethod::Copies(copies), None) => {
                self.after(batch, &self.bus)?;
                // SAFETY: the caller promises this.
                unsafe { self.copy_all(copies, batch.pinned)? };
                &self.bus
            }
            (CopyMethod::Copies(copies), Some(module)) => {
                let paging = self.paging(batch, &[])?;
                // SAFETY: the caller promises this.
                unsafe { self.copy_and_digest(batch, copies, module, paging)? }
            }
            (CopyMethod::Kernel, Some(module)) => {
                let paging = self.paging(
                    batch,
                    &relocated(batch, |piece| slots.mapped(piece.address)),
                )?;
                self.after(batch, &self.work)?;
                // SAFETY: the caller promises this.
                unsafe { self.launch(module, self.moving_kernel(), paging, Width::Share)? };
                &self.work
            }
            (CopyMethod::Staged(staging, copies), Some(module)) => {
                let paging =
                    self.paging(batch, &relocated(batch, |piece| staging + piece.position))?;
                // SAFETY: the caller promises this.
                unsafe { self.stage(batch, copies, module, paging)? }
            }
            (CopyMethod::Kernel | CopyMethod::Staged(..), None) => {
                return Err(CudaError::Unavailable(
                    "expected a kernel, found none".into(),
                ));
            }
        };
        match self.ends.get(batch.index) {
            Some(end) => end.record(last),
            None => {
                let word = self.buffers.word_address(batch.index);
                // SAFETY: the word belongs to the batch until it is read.
                unsafe { last.write(word, batch.number) }
            }
        }
    }

    /// Lets what comes later on a stream wait for what another has now.
    fn join(&self, first: &Stream, then: &Stream) -> Result<()> {
        self.joined.record(first)?;
        then.wait(&self.joined)
    }

    fn after(&self, batch: &Submission<'_>, stream: &Stream) -> Result<()> {
        batch.after.iter().try_for_each(|event| stream.wait(event))
    }

    /// Uploads the lists; returns the parameter of the launch.
    fn paging(&self, batch: &Submission<'_>, packed: &[Packed]) -> Result<Paging> {
        let (index, strided) = (batch.index, &batch.payload.strided);
        let (strided_at, packed_at) =
            self.buffers
                .upload(&self.device, index, strided, packed, &self.work)?;
        Ok(Paging {
            strided: strided_at,
            packed: packed_at,
            strided_count: count(strided.len()),
            packed_count: count(packed.len()),
            first_tile: 0,
            tile_count: batch.payload.tiles,
            digests: if batch.digests {
                self.buffers.digests_address(index)
            } else {
                0
            },
        })
    }

    fn moving_kernel(&self) -> Kernel {
        match self.direction {
            Direction::Store => Kernel::Gather,
            Direction::Load => Kernel::Scatter,
        }
    }

    /// Gives a kernel to its stream: for a load in one launch, for a store in several short ones.
    ///
    /// # Safety
    /// The demands of [`Module::launch`].
    unsafe fn launch(
        &self,
        module: &Module,
        kernel: Kernel,
        whole: Paging,
        width: Width,
    ) -> Result<()> {
        let most = match self.direction {
            Direction::Store => MOST_TILES,
            Direction::Load => u64::MAX,
        };
        let mut paging = whole;
        let mut left = whole.tile_count;
        while left > 0 {
            paging.tile_count = left.min(most);
            // SAFETY: the caller promises this.
            unsafe { module.launch(kernel, paging, width, &self.work)? };
            paging.first_tile += paging.tile_count;
            if paging.digests != 0 {
                paging.digests += paging.tile_count * size_of::<u64>() as u64;
            }
            left -= paging.tile_count;
        }
        Ok(())
    }

    /// Gives a kernel and copies from or to a staging buffer to the streams; returns the stream on which the batch ends.
    /// The buffer is free: the last batch that used it has ended.
    ///
    /// # Safety
    /// The demands of [`StreamPair::enqueue`].
    unsafe fn stage(
        &self,
        batch: &Submission<'_>,
        copies: &[CopyRange],
        module: &Module,
        paging: Paging,
    ) -> Result<&Stream> {
        let kernel = self.moving_kernel();
        // SAFETY: the caller promises this. A load touches the engine's memory in its kernel alone.
        unsafe {
            match self.direction {
                Direction::Store => {
                    self.after(batch, &self.work)?;
                    self.launch(module, kernel, paging, Width::All)?;
                    self.join(&self.work, &self.bus)?;
                    self.copy_all(copies, batch.pinned)?;
                    Ok(&self.bus)
                }
                Direction::Load => {
                    self.copy_all(copies, batch.pinned)?;
                    self.join(&self.bus, &self.work)?;
                    self.after(batch, &self.work)?;
                    self.launch(module, kernel, paging, Width::All)?;
                    Ok(&self.work)
                }
            }
        }
    }

    /// Gives copies and a kernel that computes digests to the streams; returns the stream on which the batch
    /// ends.
    ///
    /// # Safety
    /// The demands of [`StreamPair::enqueue`].
    unsafe fn copy_and_digest(
        &self,
        batch: &Submission<'_>,
        copies: &[CopyRange],
        module: &Module,
        paging: Paging,
    ) -> Result<&Stream> {
        self.after(batch, &self.bus)?;
        // SAFETY: the caller promises this. A store reads its bytes twice; a load hashes the bytes that have arrived.
        unsafe {
            match self.direction {
                Direction::Store => {
                    self.after(batch, &self.work)?;
                    self.launch(module, Kernel::Digest, paging, Width::All)?;
                    self.copy_all(copies, batch.pinned)?;
                    self.join(&self.work, &self.bus)?;
                    Ok(&self.bus)
                }
                Direction::Load => {
                    self.copy_all(copies, batch.pinned)?;
                    self.join(&self.bus, &self.work)?;
                    self.launch(module, Kernel::Digest, paging, Width::All)?;
                    Ok(&self.work)
                }
            }
        }
    }

    /// Gives copies to their stream, in one call if the driver can do that and all memory is pinned. If it refuses,
    /// it may have taken some: the stream makes all of them again, with the same bytes.
    ///
    /// # Safety
    /// The addresses are of live memory that belongs to the batch until the copies have ended.
    unsafe fn copy_all(&self, copies: &[CopyRange], pinned: bool) -> Result<()> {
        let driver = self.device.driver();
        if copies.len() > 1 && pinned && self.batch_call.is_used() {
            // SAFETY: the caller promises this.
            match unsafe { self.copy_batch(copies) } {
                Err(error) if !error.is_sticky() => self.batch_call.refuse(&error),
                outcome => return outcome,
            }
        }
        for copy in copies {
            let arena = ptr::with_exposed_provenance_mut(copy.arena as usize);
            let (bytes, stream) = (copy.bytes as usize, self.bus.handle());
            // SAFETY: the caller promises this.
            unsafe {
                match self.direction {
                    Direction::Store => driver.copy_to_host(arena, copy.engine, bytes, stream)?,
                    Direction::Load => driver.copy_to_device(copy.engine, arena, bytes, stream)?,
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// The demands of [`StreamPair::copy_all`].
    unsafe fn copy_batch(&self, copies: &[CopyRange]) -> Result<()> {
        let (mut engine, mut arena): (Vec<DevicePointer>, Vec<DevicePointer>) =
            copies.iter().map(|copy| (copy.engine, copy.arena)).unzip();
        let mut sizes: Vec<usize> = copies.iter().map(|copy| copy.bytes as usize).collect();
        let (to, from, order) = match self.direction {
            Direction::Store => (&mut arena, &mut engine, ORDER_STREAM),
            Direction::Load => (&mut engine, &mut arena, ORDER_ANY),
        };
        let nowhere = Location { kind: 0, id: 0 };
        let short = copies.iter().all(|copy| copy.bytes <= MOST_OVERLAPPED);
        let attributes = CopyAttributes {
            source_access_order: order,
            source: nowhere,
            destination: nowhere,
            flags: if short { PREFER_OVERLAP } else { 0 },
        };
        let (driver, stream) = (self.device.driver(), self.bus.handle());
        // SAFETY: the caller promises this; the lists have equal lengths and are read before the call returns.
        unsafe { driver.copy_batch(to, from, &mut sizes, attributes, stream) }
    }
}

/// The packed pieces of a batch at other addresses.
fn relocated(batch: &Submission<'_>, address: impl Fn(&Packed) -> u64) -> Vec<Packed> {
    let packed = batch.payload.packed.iter();
    packed
        .map(|piece| Packed {
            address: address(piece),
            ..*piece
        })
        .collect()
}

fn count(pieces: usize) -> u32 {
    u32::try_from(pieces).expect("a plan has fewer pieces than 2^32")
}
