//! Copies between slots and cells. Any number of threads may copy the pieces of an entry.

use std::sync::{Arc, RwLock, TryLockError};
use std::time::Instant;

use crate::door::{ALIGNMENT, DoorFile};
use crate::format::{CellHeader, DISK_FORMAT_VERSION, ON_DISK, SEALED_DISK_FORMAT_VERSION};
use crate::health::{DiskHealth, Timed};
use crate::shape::{CellPiece, CellShape, ShardPart};
use crate::stats::DiskFailure;
use crate::store::DiskStore;
use hybrid_pages::error::Cause;
use hybrid_pages::ids::SlotId;
use hybrid_pages::tier::CopyId;
use hybrid_pages::transfer::{TILE_BYTES, combine, tile_digest};
use hybrid_pages_tiers::{Name, OWNER_BYTES, Planes, PriorityMutex, Seal, SealedPlace, lock};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskDirection {
    /// From the disk to the host.
    Read,
    /// From the host to the disk.
    Write,
}

/// A copy of one entry between the host and the disk.
#[derive(Debug)]
pub(crate) struct DiskJob {
    pub(crate) copy: CopyId,
    pub(crate) direction: DiskDirection,
    pub(crate) name: Name,
    pub(crate) class: usize,
    pub(crate) block: u32,
    pub(crate) slots: Vec<SlotId>,
    /// Checksums that the bytes should have, one per rank.
    pub(crate) sums: Box<[u64]>,
    /// The checksums as they are on the disk.
    pub(crate) told: Box<[u64]>,
    seal: Option<Seal>,
    pub(crate) store: Arc<DiskStore>,
    pub(crate) pieces: usize,
    pub(crate) cell_bytes: u64,
    pub(crate) begun: Instant,
    /// Whether the copy has given up its slots. A thread holds this lock while it touches them.
    left: RwLock<bool>,
    progress: PriorityMutex<JobProgress>,
}

/// The entry that is copied.
pub(crate) struct Subject {
    pub(crate) name: Name,
    pub(crate) class: usize,
    pub(crate) block: u32,
    pub(crate) slots: Vec<SlotId>,
    pub(crate) sums: Box<[u64]>,
    /// The checksums as they are on the disk: hidden ones if the entry is encrypted.
    pub(crate) told: Box<[u64]>,
    pub(crate) seal: Option<Seal>,
    /// The cell that a read is from; `None` for a write.
    pub(crate) cell: Option<u64>,
}

#[derive(Debug)]
struct JobProgress {
    cell: Option<u64>,
    done: usize,
    started: Option<Instant>,
    /// Digests of all tiles, one rank after another.
    digests: Vec<u64>,
    failed: Option<(DiskFailure, Cause)>,
    /// Whether the write is not wanted any more.
    undone: bool,
}

impl DiskJob {
    pub(crate) fn new(
        copy: CopyId,
        direction: DiskDirection,
        subject: Subject,
        store: Arc<DiskStore>,
        shape: &CellShape,
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
            progress: PriorityMutex::new(JobProgress {
                cell: subject.cell,
                done: 0,
                started: None,
                digests: vec![0; shape.tiles() * subject.sums.len()],
                failed: None,
                undone: false,
            }),
            sums: subject.sums,
            told: subject.told,
            seal: subject.seal,
        })
    }

    pub(crate) fn cell(&self) -> Option<u64> {
        lock(&self.progress).cell
    }

    pub(crate) fn set_cell(&self, cell: u64) {
        lock(&self.progress).cell = Some(cell);
    }

    /// When the first piece was begun.
    pub(crate) fn started(&self) -> Option<Instant> {
        lock(&self.progress).started
    }

    /// Marks a write as not wanted any more.
    pub(crate) fn undo(&self) {
        lock(&self.progress).undone = true;
    }

    pub(crate) fn is_undone(&self) -> bool {
        lock(&self.progress).undone
    }

    /// Notes a failure; only the first one counts.
    pub(crate) fn fail(&self, reason: DiskFailure, what: impl Into<Cause>) {
        lock(&self.progress)
            .failed
            .get_or_insert((reason, what.into()));
    }

    pub(crate) fn failure(&self) -> Option<(DiskFailure, Cause)> {
        lock(&self.progress).failed.clone()
    }

    /// Notes that `count` pieces are over. Returns whether these were the last.
    pub(crate) fn end_pieces(&self, count: usize) -> bool {
        let mut progress = lock(&self.progress);
        progress.done += count;
        progress.done == self.pieces
    }

    /// Gives up the slots, so that no thread touches them any more. False if a thread does at this moment.
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

    /// Whether one call can read both this copy and `next`: they are small entries in adjacent cells.
    pub(crate) fn is_before(&self, next: &Self) -> bool {
        let small = self.pieces == 1 && next.pieces == 1;
        small
            && self.class == next.class
            && Arc::ptr_eq(&self.store, &next.store)
            && self.cell().map(|cell| cell + 1) == next.cell()
    }

    /// Reads entries in adjacent cells by one call, or one by one if that fails, so that one bad entry costs no
    /// other.
    pub(crate) fn run_row(
        row: &[Arc<Self>],
        shape: &CellShape,
        planes: &Planes,
        buffer: &mut [u8],
        health: &PriorityMutex<DiskHealth>,
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
        for ((job, cell), bytes) in row
            .iter()
            .zip(cells)
            .zip(buffer.chunks_exact_mut(cell_bytes))
        {
            if let Err((reason, what)) = job.take(cell, piece, shape, planes, bytes) {
                job.fail(reason, what);
            }
        }
    }

    /// Begins a piece. Returns the cell, or `None` if the copy has failed or is not wanted any more.
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

    /// The slab file of the copy. Calls to it are reported to `health`.
    fn slab<'a>(&'a self, health: &'a PriorityMutex<DiskHealth>) -> Timed<'a> {
        let slab = self.store.slab(self.class);
        Timed { slab, health }
    }

    /// Copies one piece.
    pub(crate) fn run(
        &self,
        piece: usize,
        shape: &CellShape,
        planes: &Planes,
        buffer: &mut [u8],
        health: &PriorityMutex<DiskHealth>,
    ) {
        let Some(cell) = self.begin() else {
            return;
        };
        let piece = &shape.pieces[piece];
        let bytes = &mut buffer[..piece.length];
        let outcome = match self.direction {
            DiskDirection::Read => self.read(cell, piece, shape, planes, bytes, health),
            DiskDirection::Write => self.write(cell, piece, shape, planes, bytes, health),
        };
        if let Err((reason, what)) = outcome {
            self.fail(reason, what);
        }
    }

    fn read(
        &self,
        cell: u64,
        piece: &CellPiece,
        shape: &CellShape,
        planes: &Planes,
        bytes: &mut [u8],
        health: &PriorityMutex<DiskHealth>,
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

    /// Copies the bytes that were read into the slots, unless the copy has given them up.
    fn take(
        &self,
        cell: u64,
        piece: &CellPiece,
        shape: &CellShape,
        planes: &Planes,
        bytes: &mut [u8],
    ) -> Result<(), (DiskFailure, Cause)> {
        if piece.at == 0 && !self.header(cell, shape).is(bytes) {
            let what = "expected the header of the entry, found another one";
            return Err((DiskFailure::Header, format!("cell {cell}: {what}").into()));
        }
        if let Some(seal) = &self.seal {
            let sealed_at = self.sealed_at(cell, shape);
            let whole = piece.parts.iter().all(|part| {
                let bytes = &mut bytes[part.at..][..part.stored];
                seal.open(&sealed_at, part.rank, part.offset / TILE_BYTES, bytes)
            });
            if !whole {
                let what = format!(
                    "cell {cell}: expected bytes that were sealed for it with this key, found others"
                );
                return Err((DiskFailure::Sealed, what.into()));
            }
        }
        let left = self
            .left
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for part in &piece.parts {
            let bytes = &bytes[part.at..][..part.stored];
            let mut digests = Vec::with_capacity(part.length.div_ceil(TILE_BYTES));
            let tiles = bytes.chunks(TILE_BYTES + shape.seal_bytes);
            for (index, tile) in tiles.enumerate() {
                let tile = &tile[..tile.len() - shape.seal_bytes];
                let offset = part.offset + index * TILE_BYTES;
                digests.push(if *left {
                    tile_digest(tile)
                } else {
                    // SAFETY: the cache keeps the slots for this copy until its end is reported, which the lock held
                    // here prevents.
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
        piece: &CellPiece,
        shape: &CellShape,
        planes: &Planes,
        bytes: &mut [u8],
        health: &PriorityMutex<DiskHealth>,
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
                let padded = part.stored.next_multiple_of(ALIGNMENT);
                let (bytes, padding) = bytes[part.at..][..padded].split_at_mut(part.stored);
                // The buffer may have bytes of other entries, which must not be written with this one.
                padding.fill(0);
                let mut digests = Vec::with_capacity(part.length.div_ceil(TILE_BYTES));
                let tiles = bytes.chunks_mut(TILE_BYTES + shape.seal_bytes);
                for (index, tile) in tiles.enumerate() {
                    let (tile, _) = tile.split_at_mut(tile.len() - shape.seal_bytes);
                    let offset = part.offset + index * TILE_BYTES;
                    // SAFETY: as in `take`, nobody writes these slots before the copy's end.
                    digests.push(unsafe { planes.gather(part.rank, &self.slots, offset, tile) });
                }
                self.set_digests(part, shape, &digests);
            }
        }
        self.encrypt(cell, piece, shape, bytes)
            .map_err(|what| (DiskFailure::Sealed, what))?;
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

    /// Seals the tiles of a piece, if the entry is to be encrypted.
    fn encrypt(
        &self,
        cell: u64,
        piece: &CellPiece,
        shape: &CellShape,
        bytes: &mut [u8],
    ) -> Result<(), Cause> {
        let Some(seal) = &self.seal else {
            return Ok(());
        };
        let (sealed_at, lot) = (self.sealed_at(cell, shape), seal.lot()?);
        for part in &piece.parts {
            let bytes = &mut bytes[part.at..][..part.stored];
            lot.seal(&sealed_at, part.rank, part.offset / TILE_BYTES, bytes)?;
        }
        Ok(())
    }

    fn sealed_at(&self, cell: u64, shape: &CellShape) -> SealedPlace<'_> {
        SealedPlace {
            identity: &self.store.identity,
            place: [ON_DISK, self.class as u64, cell, u64::from(self.block)],
            shard_bytes: shape.shard_bytes,
            sums: &self.sums,
        }
    }

    fn header(&self, cell: u64, shape: &CellShape) -> CellHeader<'_> {
        CellHeader {
            format: match self.seal {
                Some(_) => SEALED_DISK_FORMAT_VERSION,
                None => DISK_FORMAT_VERSION,
            },
            identity: &self.store.identity,
            name: &self.name,
            class: self.class,
            block: self.block,
            cell,
            shard_bytes: shape.shard_bytes,
            sums: &self.told,
            owner: self.seal.as_ref().map_or([0; OWNER_BYTES], Seal::owner),
        }
    }

    fn set_digests(&self, part: &ShardPart, shape: &CellShape, digests: &[u64]) {
        let first = part.rank * shape.tiles() + part.offset / TILE_BYTES;
        lock(&self.progress).digests[first..][..digests.len()].copy_from_slice(digests);
    }

    /// The checksums of the copied bytes. All pieces must be over.
    pub(crate) fn found_sums(&self, shape: &CellShape) -> Vec<u64> {
        let progress = lock(&self.progress);
        let shards = progress.digests.chunks(shape.tiles());
        shards
            .map(|digests| combine(digests.iter().copied(), shape.shard_bytes))
            .collect()
    }
}
