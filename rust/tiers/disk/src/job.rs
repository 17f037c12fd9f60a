//! A copy between slots and a cell, piece by piece, by any number of threads.

use std::sync::{Arc, Mutex, RwLock, TryLockError};
use std::time::Instant;

use crate::door::{ALIGNMENT, DoorFile};
use crate::format::Header;
use crate::health::{Health, Timed};
use crate::lock;
use crate::shape::{Part, Piece, Shape};
use crate::stats::DiskFailure;
use crate::store::Store;
use hybrid_pages::error::Cause;
use hybrid_pages::ids::SlotId;
use hybrid_pages::tier::CopyId;
use hybrid_pages::transfer::{TILE_BYTES, combine, tile_digest};
use hybrid_pages_tiers::{Name, Planes};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

/// A copy.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) copy: CopyId,
    pub(crate) direction: Direction,
    pub(crate) name: Name,
    pub(crate) class: usize,
    pub(crate) block: u32,
    pub(crate) slots: Vec<SlotId>,
    /// What the bytes should have, one per rank.
    pub(crate) sums: Box<[u64]>,
    pub(crate) store: Arc<Store>,
    pub(crate) pieces: usize,
    pub(crate) cell_bytes: u64,
    pub(crate) begun: Instant,
    /// Whether the slots are somebody else's by now. Whoever touches them holds this.
    left: RwLock<bool>,
    progress: Mutex<Progress>,
}

/// What a copy is of.
pub(crate) struct Subject {
    pub(crate) name: Name,
    pub(crate) class: usize,
    pub(crate) block: u32,
    pub(crate) slots: Vec<SlotId>,
    pub(crate) sums: Box<[u64]>,
    /// Of a read.
    pub(crate) cell: Option<u64>,
}

#[derive(Debug)]
struct Progress {
    cell: Option<u64>,
    done: usize,
    started: Option<Instant>,
    /// Of each tile, rank after rank.
    digests: Vec<u64>,
    failed: Option<(DiskFailure, Cause)>,
    /// Nobody wants what it writes any more.
    undone: bool,
}

impl Job {
    pub(crate) fn new(
        copy: CopyId,
        direction: Direction,
        subject: Subject,
        store: Arc<Store>,
        shape: &Shape,
    ) -> Arc<Self> {
        Arc::new(Self {
            copy,
            direction,
            name: subject.name,
            class: subject.class,
            block: subject.block,
            slots: subject.slots,
            store,
            pieces: shape.pieces.len(),
            cell_bytes: shape.cell_bytes,
            begun: Instant::now(),
            left: RwLock::new(false),
            progress: Mutex::new(Progress {
                cell: subject.cell,
                done: 0,
                started: None,
                digests: vec![0; shape.tiles() * subject.sums.len()],
                failed: None,
                undone: false,
            }),
            sums: subject.sums,
        })
    }

    pub(crate) fn cell(&self) -> Option<u64> {
        lock(&self.progress).cell
    }

    pub(crate) fn set_cell(&self, cell: u64) {
        lock(&self.progress).cell = Some(cell);
    }

    /// When its first piece was begun.
    pub(crate) fn started(&self) -> Option<Instant> {
        lock(&self.progress).started
    }

    /// Nobody wants what it writes any more.
    pub(crate) fn undo(&self) {
        lock(&self.progress).undone = true;
    }

    pub(crate) fn is_undone(&self) -> bool {
        lock(&self.progress).undone
    }

    /// The first failure counts.
    pub(crate) fn fail(&self, reason: DiskFailure, what: impl Into<Cause>) {
        lock(&self.progress)
            .failed
            .get_or_insert((reason, what.into()));
    }

    pub(crate) fn failure(&self) -> Option<(DiskFailure, Cause)> {
        lock(&self.progress).failed.clone()
    }

    /// So many pieces are over. True with the last one.
    pub(crate) fn end_pieces(&self, count: usize) -> bool {
        let mut progress = lock(&self.progress);
        progress.done += count;
        progress.done == self.pieces
    }

    /// Gives the slots up unless a thread touches them at this moment: from then on none does.
    pub(crate) fn leave_slots(&self) -> bool {
        match self.left.try_write() {
            Ok(mut left) => {
                *left = true;
                true
            }
            Err(TryLockError::Poisoned(left)) => {
                *left.into_inner() = true;
                true
            }
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// Whether one call may read both, this one and then the other: small entries in adjacent cells.
    pub(crate) fn is_before(&self, next: &Self) -> bool {
        let small = self.pieces == 1 && next.pieces == 1;
        small
            && self.class == next.class
            && Arc::ptr_eq(&self.store, &next.store)
            && self.cell().map(|cell| cell + 1) == next.cell()
    }

    /// Reads entries in adjacent cells by one call, or one by one if that fails: each costs itself alone.
    pub(crate) fn run_row(
        row: &[Arc<Self>],
        shape: &Shape,
        planes: &Planes,
        buffer: &mut [u8],
        health: &Mutex<Health>,
    ) {
        let cell_bytes = shape.cell_bytes as usize;
        let slab = row[0].slab(health);
        let slab: &dyn DoorFile = &slab;
        let cells: Option<Vec<u64>> = row.iter().map(|job| job.begin()).collect();
        let cells = cells.filter(|cells| {
            let bytes = buffer.get_mut(..cells.len() * cell_bytes);
            let offset = cells[0] * shape.cell_bytes;
            bytes.is_some_and(|bytes| slab.read_all(bytes, offset).is_ok())
        });
        let Some(cells) = cells else {
            for job in row {
                job.run(0, shape, planes, buffer, health);
            }
            return;
        };
        let piece = &shape.pieces[0];
        for ((job, cell), bytes) in row.iter().zip(cells).zip(buffer.chunks_exact(cell_bytes)) {
            if let Err((reason, what)) = job.take(cell, piece, shape, planes, bytes) {
                job.fail(reason, what);
            }
        }
    }

    /// The cell of a copy that is to go on; one that has failed does no more.
    fn begin(&self) -> Option<u64> {
        let mut progress = lock(&self.progress);
        progress.started.get_or_insert_with(Instant::now);
        if progress.failed.is_some() || progress.undone {
            return None;
        }
        if progress.cell.is_none() {
            let what = "expected a cell, found none".into();
            progress.failed = Some((DiskFailure::Quota, what));
        }
        progress.cell
    }

    /// Its slab, whose calls `health` is told of.
    fn slab<'a>(&'a self, health: &'a Mutex<Health>) -> Timed<'a> {
        let slab = self.store.slab(self.class);
        Timed { slab, health }
    }

    /// Copies one piece.
    pub(crate) fn run(
        &self,
        piece: usize,
        shape: &Shape,
        planes: &Planes,
        buffer: &mut [u8],
        health: &Mutex<Health>,
    ) {
        let Some(cell) = self.begin() else {
            return;
        };
        let piece = &shape.pieces[piece];
        let bytes = &mut buffer[..piece.length];
        let outcome = match self.direction {
            Direction::Read => self.read(cell, piece, shape, planes, bytes, health),
            Direction::Write => self.write(cell, piece, shape, planes, bytes, health),
        };
        if let Err((reason, what)) = outcome {
            self.fail(reason, what);
        }
    }

    fn read(
        &self,
        cell: u64,
        piece: &Piece,
        shape: &Shape,
        planes: &Planes,
        bytes: &mut [u8],
        health: &Mutex<Health>,
    ) -> Result<(), (DiskFailure, Cause)> {
        let offset = cell * shape.cell_bytes + piece.at as u64;
        let slab = self.slab(health);
        let slab: &dyn DoorFile = &slab;
        slab.read_all(bytes, offset).map_err(|error| {
            let short = error.kind() == std::io::ErrorKind::UnexpectedEof;
            let reason = if short {
                DiskFailure::Short
            } else {
                DiskFailure::Read
            };
            let what = format!("cell {cell} of class {}: {error}", self.class);
            (reason, Cause::new(what, error))
        })?;
        self.take(cell, piece, shape, planes, bytes)
    }

    /// Takes what was read: into the slots, if they are still this copy's.
    fn take(
        &self,
        cell: u64,
        piece: &Piece,
        shape: &Shape,
        planes: &Planes,
        bytes: &[u8],
    ) -> Result<(), (DiskFailure, Cause)> {
        if piece.at == 0 && !self.header(cell, shape).is(bytes) {
            let what = "expected the header of the entry, found another one";
            return Err((DiskFailure::Header, format!("cell {cell}: {what}").into()));
        }
        let left = self
            .left
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for part in &piece.parts {
            let bytes = &bytes[part.at..][..part.length];
            let mut digests = Vec::with_capacity(part.length.div_ceil(TILE_BYTES));
            for (index, tile) in bytes.chunks(TILE_BYTES).enumerate() {
                let offset = part.offset + index * TILE_BYTES;
                digests.push(if *left {
                    tile_digest(tile)
                } else {
                    // SAFETY: the cache keeps the slots for this copy until its end was reported, and
                    // the lock that is held here keeps that from happening meanwhile.
                    unsafe { planes.scatter(part.rank, &self.slots, offset, tile) }
                });
            }
            self.set_digests(part, shape, &digests);
        }
        Ok(())
    }

    fn write(
        &self,
        cell: u64,
        piece: &Piece,
        shape: &Shape,
        planes: &Planes,
        bytes: &mut [u8],
        health: &Mutex<Health>,
    ) -> Result<(), (DiskFailure, Cause)> {
        if piece.at == 0 {
            self.header(cell, shape).encode(bytes);
        }
        {
            let left = self
                .left
                .read()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            if *left {
                return Ok(());
            }
            for part in &piece.parts {
                let padded = part.length.next_multiple_of(ALIGNMENT);
                let (bytes, padding) = bytes[part.at..][..padded].split_at_mut(part.length);
                // The buffer has other entries' bytes: none of them may go to disk with this one.
                padding.fill(0);
                let mut digests = Vec::with_capacity(part.length.div_ceil(TILE_BYTES));
                for (index, tile) in bytes.chunks_mut(TILE_BYTES).enumerate() {
                    let offset = part.offset + index * TILE_BYTES;
                    // SAFETY: as in `take`: until its end nobody writes these slots.
                    digests.push(unsafe { planes.gather(part.rank, &self.slots, offset, tile) });
                }
                self.set_digests(part, shape, &digests);
            }
        }
        let offset = cell * shape.cell_bytes + piece.at as u64;
        let slab = self.slab(health);
        let slab: &dyn DoorFile = &slab;
        slab.write_all(bytes, offset).map_err(|error| {
            let full = matches!(
                error.kind(),
                std::io::ErrorKind::StorageFull
                    | std::io::ErrorKind::QuotaExceeded
                    | std::io::ErrorKind::FileTooLarge
            );
            let reason = if full {
                DiskFailure::Full
            } else {
                DiskFailure::Write
            };
            let what = format!("cell {cell} of class {}: {error}", self.class);
            (reason, Cause::new(what, error))
        })
    }

    fn header(&self, cell: u64, shape: &Shape) -> Header<'_> {
        Header {
            identity: &self.store.identity,
            name: &self.name,
            class: self.class,
            block: self.block,
            cell,
            shard_bytes: shape.shard_bytes,
            sums: &self.sums,
        }
    }

    fn set_digests(&self, part: &Part, shape: &Shape, digests: &[u64]) {
        let first = part.rank * shape.tiles() + part.offset / TILE_BYTES;
        lock(&self.progress).digests[first..][..digests.len()].copy_from_slice(digests);
    }

    /// The checksums of the bytes that were copied, once all pieces are over.
    pub(crate) fn found_sums(&self, shape: &Shape) -> Vec<u64> {
        let progress = lock(&self.progress);
        let shards = progress.digests.chunks(shape.tiles());
        shards
            .map(|digests| combine(digests.iter().copied(), shape.shard_bytes))
            .collect()
    }
}
