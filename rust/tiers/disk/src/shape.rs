//! The layout of an entry's bytes in a cell, and the pieces in which they are copied.

use crate::door::ALIGNMENT;
use crate::format::HEADER_BYTES;
use hybrid_pages::error::{Error, Result};
use hybrid_pages::geometry::Geometry;
use hybrid_pages::transfer::TILE_BYTES;
use hybrid_pages_tiers::sealed_bytes;

/// Most payload of one piece: enough to keep a disk busy, and small enough that several threads share a large entry.
const PIECE_BYTES: usize = 1 << 20;

/// Most bytes of a piece, including the header of the cell.
pub(crate) const BUFFER_BYTES: usize = PIECE_BYTES + HEADER_BYTES;

/// A part of one rank's shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardPart {
    pub(crate) rank: usize,
    /// Offset in the shard, at the start of a tile.
    pub(crate) offset: usize,
    pub(crate) length: usize,
    /// Offset in the piece.
    pub(crate) at: usize,
    /// Bytes in the piece, with the seals of the tiles.
    pub(crate) stored: usize,
}

/// A piece: a stretch of a cell that one call reads or writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CellPiece {
    /// Offset in the cell.
    pub(crate) at: usize,
    pub(crate) length: usize,
    pub(crate) parts: Vec<ShardPart>,
}

/// The layout of the entries of one class in their cells.
#[derive(Debug, Clone)]
pub(crate) struct CellShape {
    pub(crate) shard_bytes: usize,
    /// Bytes that the seal of a tile takes; 0 for entries that are not encrypted.
    pub(crate) seal_bytes: usize,
    pub(crate) cell_bytes: u64,
    /// Slots of the host that an entry takes.
    pub(crate) slots: usize,
    /// The pieces of a cell. The first one includes the header.
    pub(crate) pieces: Vec<CellPiece>,
}

impl CellShape {
    fn new(shard_bytes: usize, ranks: usize, slots: usize, seal_bytes: usize) -> Self {
        let mut pieces = Vec::new();
        let mut piece = CellPiece {
            at: 0,
            length: HEADER_BYTES,
            parts: Vec::new(),
        };
        for rank in 0..ranks {
            let mut offset = 0;
            while offset < shard_bytes {
                let room = BUFFER_BYTES - piece.length;
                // Pieces end at the end of a tile, so each tile is hashed in one go.
                let tiles = room / (TILE_BYTES + seal_bytes);
                let length = (shard_bytes - offset).min(tiles * TILE_BYTES);
                if length == 0 {
                    let at = piece.at + piece.length;
                    let next = CellPiece {
                        at,
                        length: 0,
                        parts: Vec::new(),
                    };
                    pieces.push(std::mem::replace(&mut piece, next));
                    continue;
                }
                let stored = sealed_bytes(length, seal_bytes);
                piece.parts.push(ShardPart {
                    rank,
                    offset,
                    length,
                    at: piece.length,
                    stored,
                });
                piece.length += stored.next_multiple_of(ALIGNMENT);
                offset += length;
            }
        }
        let cell_bytes = (piece.at + piece.length) as u64;
        pieces.push(piece);
        Self {
            shard_bytes,
            seal_bytes,
            cell_bytes,
            slots,
            pieces,
        }
    }

    /// Number of tiles in one rank's shard.
    pub(crate) fn tiles(&self) -> usize {
        self.shard_bytes.div_ceil(TILE_BYTES)
    }
}

/// The shapes of a geometry's classes. `seal_bytes`: bytes that the seal of a tile takes.
///
/// # Errors
/// [`Error::InvalidArgument`] for slots that the ranks can't share, or more ranks than a header has room for.
pub(crate) fn shapes(
    geometry: &Geometry,
    slot_bytes: usize,
    seal_bytes: usize,
) -> Result<Vec<CellShape>> {
    let ranks = geometry.ranks();
    if ranks > crate::format::MAX_RANKS {
        return Err(Error::InvalidArgument(format!(
            "disk: expected at most {} ranks, found {ranks}",
            crate::format::MAX_RANKS
        )));
    }
    let classes = geometry.classes().iter();
    let shape = |class: &hybrid_pages::geometry::PageClass| {
        let slots = geometry.slots_per_entry(class.index, slot_bytes)?;
        Ok(CellShape::new(class.rank_bytes, ranks, slots, seal_bytes))
    };
    classes.map(shape).collect()
}

/// The number of slots of a room whose entries never take more than the quota on disk, whatever their classes.
pub(crate) fn capacity(shapes: &[CellShape], quota: u64) -> u64 {
    let of = |shape: &CellShape| {
        u128::from(quota) * shape.slots as u128 / u128::from(shape.cell_bytes.max(1))
    };
    let least = shapes.iter().map(of).min().unwrap_or(0);
    u64::try_from(least).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_cell_once_and_end_where_tiles_do() {
        for shard in [
            1,
            4095,
            4096,
            16 << 10,
            (1 << 20) - 1,
            1 << 20,
            (3 << 20) + 5,
        ] {
            for (ranks, seal_bytes) in [(1, 0), (2, 0), (3, 0), (7, 0), (1, 32), (3, 32)] {
                let shape = CellShape::new(shard, ranks, 1, seal_bytes);
                let mut at = 0;
                let mut next = vec![0; ranks];
                for piece in &shape.pieces {
                    assert_eq!(piece.at, at);
                    assert!((1..=BUFFER_BYTES).contains(&piece.length));
                    assert!(piece.length.is_multiple_of(ALIGNMENT));
                    let mut inside = if at == 0 { HEADER_BYTES } else { 0 };
                    for part in &piece.parts {
                        assert_eq!((part.at, part.offset), (inside, next[part.rank]));
                        assert!(part.offset.is_multiple_of(TILE_BYTES));
                        assert_eq!(part.stored, sealed_bytes(part.length, seal_bytes));
                        inside += part.stored.next_multiple_of(ALIGNMENT);
                        next[part.rank] += part.length;
                    }
                    assert_eq!(inside, piece.length);
                    at += piece.length;
                }
                assert_eq!(at as u64, shape.cell_bytes);
                assert_eq!(next, vec![shard; ranks]);
            }
        }
    }

    #[test]
    fn a_full_room_fits_the_quota() {
        let shapes = [
            CellShape::new(64, 2, 1, 0),
            CellShape::new(200, 2, 4, 0),
            CellShape::new(5 << 20, 2, 9, 32),
        ];
        for quota in [0, 1, 1 << 20, 123_456_789, 1 << 40, u64::MAX] {
            let room = capacity(&shapes, quota);
            for shape in &shapes {
                let cells = u128::from(room) / shape.slots as u128;
                assert!(cells * u128::from(shape.cell_bytes) <= u128::from(quota));
            }
        }
    }
}
