//! One direction: its streams, and how a flight is given to them.
//!
//! Everything is enqueued at once; events order the streams, and the host waits for nothing.

use std::ptr;
use std::sync::Arc;

use hybrid_pages::transfer::Direction;

use crate::driver::{CopyAttributes, Device, DevicePointer, Event, Location, Priority, Stream};
use crate::error::{CudaError, Result};
use crate::kernels::abi::{Packed, Paging};
use crate::kernels::{Kernel, Module};
use crate::line::{Copy, Line};
use crate::pinning::Pinned;

use super::buffers::{Buffers, FLIGHTS, Room};

/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`: what copies from a device need.
const ORDER_STREAM: i32 = 1;
/// `CU_MEMCPY_SRC_ACCESS_ORDER_ANY`: slots that are loaded were complete long before.
const ORDER_ANY: i32 = 3;
/// `CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`, and the longest copy that it does not slow down.
const PREFER_OVERLAP: u32 = 1;
const MOST_OVERLAPPED: u64 = 128 << 10;
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: i32 = 801;

/// How the bytes of a flight move.
pub(super) enum Way {
    /// A kernel that reaches pinned slots over the bus itself.
    Kernel,
    /// The copy engine, one copy for what is adjacent on both sides.
    Copies(Vec<Copy>),
}

/// A flight as a lane gets it.
pub(super) struct Given<'a> {
    /// Counts up.
    pub(super) number: u64,
    /// Of its word, lists and digests: no other flight's meanwhile.
    pub(super) place: usize,
    pub(super) line: &'a Line,
    pub(super) way: Way,
    /// Whether the device computes digests.
    pub(super) digests: bool,
    /// The engine's memory is touched after these.
    pub(super) after: Vec<&'a Event>,
}

pub(super) struct Lane {
    device: Arc<Device>,
    direction: Direction,
    /// Kernels run here,
    work: Stream,
    /// copies here.
    bus: Stream,
    joined: Event,
    buffers: Buffers,
    /// Recorded at a flight's end, where the driver writes no words.
    ends: Vec<Event>,
}

impl Lane {
    /// Loads, which somebody waits for, go before what else the device is to do; stores after it.
    pub(super) fn new(
        device: &Arc<Device>,
        direction: Direction,
        room: Room,
        kernels: bool,
    ) -> Result<Self> {
        let priority = match direction {
            Direction::Load => Priority::Greatest,
            Direction::Store => Priority::Least,
        };
        let mut lane = Self {
            device: Arc::clone(device),
            direction,
            work: Stream::new(device, priority)?,
            bus: Stream::new(device, priority)?,
            joined: Event::new(device)?,
            buffers: Buffers::new(device, room, kernels)?,
            ends: Vec::new(),
        };
        if !lane.writes_words()? {
            let events = (0..FLIGHTS).map(|_| Event::new(device));
            lane.ends = events.collect::<Result<_>>()?;
        }
        Ok(lane)
    }

    /// Whether words that the device writes are seen here. It waits for one.
    fn writes_words(&self) -> Result<bool> {
        const TRIED: u64 = u64::MAX;
        let _entered = self.device.enter()?;
        // SAFETY: the lane's own word.
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

    /// Whether the driver has to be asked which flights have ended.
    pub(super) fn asks_driver(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Whether a flight has ended. Flights of a lane end in any order.
    pub(super) fn has_ended(&self, number: u64, place: usize) -> Result<bool> {
        if let Some(end) = self.ends.get(place) {
            let _entered = self.device.enter()?;
            return end.query();
        }
        Ok(self.buffers.word(place) == number)
    }

    /// Whether the device still works.
    pub(super) fn check(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        self.work.check()?;
        self.bus.check()
    }

    /// Waits on the host for all that the lane was given.
    pub(super) fn drain(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        let first = self.work.synchronize();
        self.bus.synchronize().and(first)
    }

    /// Gives a flight to the streams. After an error some of it may be under way: drain.
    ///
    /// # Safety
    /// Lists and copies name live memory that belongs to the flight until it has ended; so does its
    /// place in the buffers.
    pub(super) unsafe fn enqueue(
        &self,
        given: &Given<'_>,
        module: Option<&Module>,
        slots: &Pinned,
    ) -> Result<()> {
        let _entered = self.device.enter()?;
        let by_kernel = matches!(given.way, Way::Kernel);
        let module = module.filter(|_| given.digests || by_kernel);
        let last = match (&given.way, module) {
            (Way::Copies(copies), None) => {
                self.after(given, &self.bus)?;
                // SAFETY: the caller's.
                unsafe { self.copy_all(copies, slots)? };
                &self.bus
            }
            (Way::Copies(copies), Some(module)) => {
                let paging = self.paging(given, &[])?;
                // SAFETY: the caller's.
                unsafe { self.copy_and_digest(given, copies, module, paging, slots)? }
            }
            (Way::Kernel, Some(module)) => {
                let packed: Vec<Packed> = given
                    .line
                    .packed
                    .iter()
                    .map(|piece| Packed {
                        address: slots.mapped(piece.address),
                        ..*piece
                    })
                    .collect();
                let paging = self.paging(given, &packed)?;
                self.after(given, &self.work)?;
                let kernel = match self.direction {
                    Direction::Store => Kernel::Gather,
                    Direction::Load => Kernel::Scatter,
                };
                // SAFETY: the caller's.
                unsafe { module.launch(kernel, paging, &self.work)? };
                &self.work
            }
            (Way::Kernel, None) => {
                return Err(CudaError::Unavailable(
                    "expected a kernel, found none".into(),
                ));
            }
        };
        match self.ends.get(given.place) {
            Some(end) => end.record(last),
            None => {
                let word = self.buffers.word_address(given.place);
                // SAFETY: the place is the flight's until its word is read.
                unsafe { last.write(word, given.number) }
            }
        }
    }

    fn after(&self, given: &Given<'_>, stream: &Stream) -> Result<()> {
        given.after.iter().try_for_each(|event| stream.wait(event))
    }

    /// What a launch is told: lists that are uploaded before it.
    fn paging(&self, given: &Given<'_>, packed: &[Packed]) -> Result<Paging> {
        let (place, strided) = (given.place, &given.line.strided);
        let (strided_at, packed_at) =
            self.buffers
                .upload(&self.device, place, strided, packed, &self.work)?;
        Ok(Paging {
            strided: strided_at,
            packed: packed_at,
            strided_count: count(strided.len()),
            packed_count: count(packed.len()),
            first_tile: 0,
            tile_count: given.line.tiles,
            digests: if given.digests {
                self.buffers.digests_address(place)
            } else {
                0
            },
        })
    }

    /// The stream on which it ends.
    ///
    /// # Safety
    /// As for [`Lane::enqueue`].
    unsafe fn copy_and_digest(
        &self,
        given: &Given<'_>,
        copies: &[Copy],
        module: &Module,
        paging: Paging,
        slots: &Pinned,
    ) -> Result<&Stream> {
        self.after(given, &self.bus)?;
        // SAFETY: the caller's. A store reads the same bytes twice; a load hashes what has arrived.
        unsafe {
            match self.direction {
                Direction::Store => {
                    self.after(given, &self.work)?;
                    module.launch(Kernel::Digest, paging, &self.work)?;
                    self.copy_all(copies, slots)?;
                    self.joined.record(&self.work)?;
                    self.bus.wait(&self.joined)?;
                    Ok(&self.bus)
                }
                Direction::Load => {
                    self.copy_all(copies, slots)?;
                    self.joined.record(&self.bus)?;
                    self.work.wait(&self.joined)?;
                    module.launch(Kernel::Digest, paging, &self.work)?;
                    Ok(&self.work)
                }
            }
        }
    }

    /// Gives copies to the bus, in one call where the driver has one for many pinned places.
    ///
    /// # Safety
    /// Addresses of live memory that belongs to the flight until they have ended.
    unsafe fn copy_all(&self, copies: &[Copy], slots: &Pinned) -> Result<()> {
        let driver = self.device.driver();
        let pinned = !slots.is_pageable();
        if copies.len() > 1 && pinned && driver.has_copy_batch() {
            // SAFETY: the caller's.
            match unsafe { self.copy_batch(copies) } {
                Err(CudaError::Driver { code, .. }) if code == NOT_SUPPORTED => {}
                outcome => return outcome,
            }
        }
        for copy in copies {
            let arena = ptr::with_exposed_provenance_mut(copy.arena as usize);
            let (bytes, stream) = (copy.bytes as usize, self.bus.handle());
            // SAFETY: the caller's.
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
    /// As for [`Lane::copy_all`].
    unsafe fn copy_batch(&self, copies: &[Copy]) -> Result<()> {
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
        // SAFETY: the caller's; the lists are equally long and read before the call returns.
        unsafe { driver.copy_batch(to, from, &mut sizes, attributes, stream) }
    }
}

fn count(pieces: usize) -> u32 {
    u32::try_from(pieces).expect("a plan has fewer pieces than 2^32")
}
