//! One direction: its streams, and how a transfer is given to them.
//!
//! Everything is enqueued at once; events order the streams, and the host waits for nothing.

use std::ptr;
use std::sync::Arc;

use hybrid_pages::transfer::{Direction, TILE_BYTES};

use crate::driver::{CopyAttributes, Device, DevicePointer, Event, Location, Stream};
use crate::error::{CudaError, Result};
use crate::kernels::abi::{Packed, Paging};
use crate::kernels::{Kernel, Module};
use crate::line::{Copy, Line, within};

use super::buffers::{Buffers, Pool};
use super::method::Method;
use super::ring::Ring;

const TILE: u64 = TILE_BYTES as u64;
/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`: what copies from a device need.
const ORDER_STREAM: i32 = 1;
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: i32 = 801;

/// How the device reaches the slots.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    /// Where their region begins, for the host.
    pub(super) host: u64,
    /// Where the device sees that, if they are pinned.
    pub(super) mapped: Option<u64>,
}

impl Slots {
    fn mapped(self, address: u64) -> u64 {
        self.mapped
            .map_or(address, |mapped| mapped + (address - self.host))
    }
}

/// A transfer as a lane gets it.
pub(super) struct Given<'a> {
    pub(super) method: Method,
    pub(super) line: &'a Line,
    /// For [`Method::Copy`].
    pub(super) copies: &'a [Copy],
    pub(super) slots: Slots,
    /// Whether the device computes digests.
    pub(super) digests: bool,
    /// The engine's memory is touched after this.
    pub(super) after: &'a Event,
    /// Recorded at the end.
    pub(super) done: &'a Event,
}

pub(super) struct Lane {
    device: Arc<Device>,
    direction: Direction,
    /// Kernels run here,
    work: Stream,
    /// copies here.
    bus: Stream,
    joined: Event,
    ring: Option<Ring>,
}

impl Lane {
    pub(super) fn new(device: &Arc<Device>, direction: Direction) -> Result<Self> {
        Ok(Self {
            device: Arc::clone(device),
            direction,
            work: Stream::new(device)?,
            bus: Stream::new(device)?,
            joined: Event::new(device)?,
            ring: None,
        })
    }

    pub(super) fn set_ring(&mut self, ring: Ring) {
        self.ring = Some(ring);
    }

    /// Waits on the host for all that the lane was given.
    pub(super) fn drain(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        self.work.synchronize()?;
        self.bus.synchronize()
    }

    /// Gives a transfer to the streams. After an error some of it may be under way: drain.
    ///
    /// # Safety
    /// Lists and copies name live memory that belongs to the transfer until `done`.
    pub(super) unsafe fn enqueue(
        &mut self,
        given: &Given<'_>,
        module: Option<&Module>,
        pool: &mut Pool,
        kept: &mut Option<Buffers>,
    ) -> Result<()> {
        let device = Arc::clone(&self.device);
        let _entered = device.enter()?;
        let module = module.filter(|_| given.digests || given.method != Method::Copy);
        let Some(module) = module else {
            self.bus.wait(given.after)?;
            // SAFETY: the caller's.
            unsafe { self.copy_pieces(given)? };
            return given.done.record(&self.bus);
        };
        let packed = match (given.method, &self.ring) {
            (Method::Kernel, _) => given
                .line
                .packed
                .iter()
                .map(|piece| Packed {
                    address: given.slots.mapped(piece.address),
                    ..*piece
                })
                .collect(),
            (Method::Staged, Some(ring)) => staged(given.line, ring),
            _ => Vec::new(),
        };
        let strided = &given.line.strided;
        let lists = size_of_val(&**strided) + size_of_val(&*packed);
        let buffers = kept.insert(pool.take(&device, lists, given.line.tiles as usize)?);
        let (strided_at, packed_at) = buffers.upload(&device, strided, &packed, &self.work)?;
        let paging = Paging {
            strided: strided_at,
            packed: packed_at,
            strided_count: count(strided.len()),
            packed_count: count(packed.len()),
            first_tile: 0,
            tile_count: given.line.tiles,
            digests: if given.digests {
                buffers.digests_address()
            } else {
                0
            },
        };
        // SAFETY: the caller's; the buffers are kept until the transfer has ended.
        unsafe {
            match given.method {
                Method::Copy => self.copy_and_digest(given, module, paging),
                Method::Kernel => {
                    self.work.wait(given.after)?;
                    module.launch(self.kernel(), paging, &self.work)?;
                    given.done.record(&self.work)
                }
                Method::Staged => self.stage(given, module, paging, &packed),
            }
        }
    }

    fn kernel(&self) -> Kernel {
        match self.direction {
            Direction::Store => Kernel::Gather,
            Direction::Load => Kernel::Scatter,
        }
    }

    /// # Safety
    /// As for [`Lane::enqueue`].
    unsafe fn copy_and_digest(
        &self,
        given: &Given<'_>,
        module: &Module,
        paging: Paging,
    ) -> Result<()> {
        // SAFETY: the caller's. A store reads the same bytes twice; a load hashes what has arrived.
        unsafe {
            self.bus.wait(given.after)?;
            match self.direction {
                Direction::Store => {
                    self.work.wait(given.after)?;
                    module.launch(Kernel::Digest, paging, &self.work)?;
                    self.copy_pieces(given)?;
                    self.joined.record(&self.work)?;
                    self.bus.wait(&self.joined)?;
                    given.done.record(&self.bus)
                }
                Direction::Load => {
                    self.copy_pieces(given)?;
                    self.joined.record(&self.bus)?;
                    self.work.wait(&self.joined)?;
                    module.launch(Kernel::Digest, paging, &self.work)?;
                    given.done.record(&self.work)
                }
            }
        }
    }

    /// Part by part through the ring: while one part is on the bus, the next is gathered.
    ///
    /// # Safety
    /// As for [`Lane::enqueue`].
    unsafe fn stage(
        &mut self,
        given: &Given<'_>,
        module: &Module,
        paging: Paging,
        packed: &[Packed],
    ) -> Result<()> {
        let ring = self.ring.as_mut().ok_or_else(|| {
            CudaError::Unavailable("staged: expected a ring on the device, found none".into())
        })?;
        let pinned = given.slots.mapped.is_some();
        // Only the kernels touch the engine's memory.
        self.work.wait(given.after)?;
        let mut listed = 0;
        for first in (0..given.line.tiles).step_by(ring.tiles() as usize) {
            let tiles = ring.tiles().min(given.line.tiles - first);
            let range = first * TILE..(first + tiles) * TILE;
            let pieces = packed[listed..].partition_point(|piece| piece.position < range.end);
            let part = Paging {
                packed: paging.packed + (listed * size_of::<Packed>()) as u64,
                packed_count: count(pieces),
                first_tile: first,
                tile_count: tiles,
                digests: match paging.digests {
                    0 => 0,
                    digests => digests + first * 8,
                },
                ..paging
            };
            listed += pieces;
            let place = ring.turn();
            let copies: Vec<Copy> = within(&given.line.packed, range.clone())
                .map(|piece| Copy {
                    engine: place.address + (piece.position - range.start),
                    arena: piece.address,
                    bytes: piece.bytes,
                })
                .collect();
            // SAFETY: the caller's; a place is used by one part at a time, by its events.
            unsafe {
                match self.direction {
                    Direction::Store => {
                        self.work.wait(&place.empty)?;
                        module.launch(Kernel::Gather, part, &self.work)?;
                        place.full.record(&self.work)?;
                        self.bus.wait(&place.full)?;
                        copy_all(&self.device, self.direction, pinned, &copies, &self.bus)?;
                        place.empty.record(&self.bus)?;
                    }
                    Direction::Load => {
                        self.bus.wait(&place.empty)?;
                        copy_all(&self.device, self.direction, pinned, &copies, &self.bus)?;
                        place.full.record(&self.bus)?;
                        self.work.wait(&place.full)?;
                        module.launch(Kernel::Scatter, part, &self.work)?;
                        place.empty.record(&self.work)?;
                    }
                }
            }
        }
        match self.direction {
            Direction::Store => given.done.record(&self.bus),
            Direction::Load => given.done.record(&self.work),
        }
    }

    /// # Safety
    /// As for [`Lane::enqueue`].
    unsafe fn copy_pieces(&self, given: &Given<'_>) -> Result<()> {
        let pinned = given.slots.mapped.is_some();
        // SAFETY: the caller's.
        unsafe {
            copy_all(
                &self.device,
                self.direction,
                pinned,
                given.copies,
                &self.bus,
            )
        }
    }
}

/// The ring's side of a line, part by part from the ring's next place on.
fn staged(line: &Line, ring: &Ring) -> Vec<Packed> {
    let entries: Vec<Packed> = line
        .entries
        .iter()
        .map(|&(position, bytes)| Packed {
            position,
            address: 0,
            bytes,
        })
        .collect();
    let mut pieces = Vec::new();
    let parts = (0..line.tiles).step_by(ring.tiles() as usize).enumerate();
    for (turn, first) in parts {
        let range = first * TILE..(first + ring.tiles()) * TILE;
        pieces.extend(within(&entries, range.clone()).map(|piece| Packed {
            address: ring.ahead(turn) + (piece.position - range.start),
            ..piece
        }));
    }
    pieces
}

/// Gives copies to a stream, in one call where the driver has one for many pinned places.
///
/// # Safety
/// Addresses of live memory that belongs to the transfer until they have ended.
unsafe fn copy_all(
    device: &Device,
    direction: Direction,
    pinned: bool,
    copies: &[Copy],
    stream: &Stream,
) -> Result<()> {
    let driver = device.driver();
    if copies.len() > 1 && pinned && driver.has_copy_batch() {
        // SAFETY: the caller's.
        match unsafe { copy_batch(device, direction, copies, stream) } {
            Err(CudaError::Driver { code, .. }) if code == NOT_SUPPORTED => {}
            outcome => return outcome,
        }
    }
    for copy in copies {
        let arena = ptr::with_exposed_provenance_mut(copy.arena as usize);
        let bytes = copy.bytes as usize;
        // SAFETY: the caller's.
        unsafe {
            match direction {
                Direction::Store => {
                    driver.copy_to_host(arena, copy.engine, bytes, stream.handle())?
                }
                Direction::Load => {
                    driver.copy_to_device(copy.engine, arena, bytes, stream.handle())?
                }
            }
        }
    }
    Ok(())
}

/// # Safety
/// As for [`copy_all`].
unsafe fn copy_batch(
    device: &Device,
    direction: Direction,
    copies: &[Copy],
    stream: &Stream,
) -> Result<()> {
    let (mut engine, mut arena): (Vec<DevicePointer>, Vec<DevicePointer>) =
        copies.iter().map(|copy| (copy.engine, copy.arena)).unzip();
    let mut sizes: Vec<usize> = copies.iter().map(|copy| copy.bytes as usize).collect();
    let (to, from) = match direction {
        Direction::Store => (&mut arena, &mut engine),
        Direction::Load => (&mut engine, &mut arena),
    };
    let nowhere = Location { kind: 0, id: 0 };
    let attributes = CopyAttributes {
        source_access_order: ORDER_STREAM,
        source: nowhere,
        destination: nowhere,
        flags: 0,
    };
    let driver = device.driver();
    // SAFETY: the caller's; the lists are equally long and read before the call returns.
    unsafe { driver.copy_batch(to, from, &mut sizes, attributes, stream.handle()) }
}

fn count(pieces: usize) -> u32 {
    u32::try_from(pieces).expect("a plan has fewer pieces than 2^32")
}
