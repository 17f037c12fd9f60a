//! The entries of a transfer on one line, and where its bytes lie on both sides.
//!
//! Entries begin on tiles. The engine's side is folded: runs at equal distances, nested up to four
//! deep, are one piece, so that a page of many layers is often one or two pieces.

use std::ops::Range;

use hybrid_pages::transfer::{EntryCopy, Layout, Plan, SlotMemory, Span, TILE_BYTES};

use crate::kernels::abi::{Packed, Strided};

const TILE: u64 = TILE_BYTES as u64;
/// A run's length is 32 bits wide on the device; longer ones are cut.
const MOST_RUN: usize = 1 << 30;

/// Adjacent bytes that are copied in one go. Addresses are the host's for the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) engine: u64,
    pub(crate) arena: u64,
    pub(crate) bytes: u64,
}

/// Runs of one of an entry's blocks, as if that were the engine's block 0, folded.
#[derive(Debug, Clone, Copy)]
struct Pattern {
    /// Which of an entry's block ids applies.
    block: usize,
    block_stride: usize,
    /// `position` is relative to the payload's start.
    piece: Strided,
}

/// The folded runs of an entry, for each class of a layout.
#[derive(Debug)]
pub(crate) struct Patterns {
    classes: Vec<Vec<Pattern>>,
}

impl Patterns {
    pub(crate) fn new(layout: &Layout) -> Self {
        let classes = 0..layout.geometry().classes().len();
        Self {
            classes: classes.map(|class| fold(layout.spans(class))).collect(),
        }
    }
}

/// One transfer on its line.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) strided: Vec<Strided>,
    /// Addresses are the host's.
    pub(crate) packed: Vec<Packed>,
    /// Of each entry: where it begins, and its bytes.
    pub(crate) entries: Vec<(u64, u64)>,
    pub(crate) tiles: u64,
    /// Those that move.
    pub(crate) bytes: u64,
    /// Whether bytes of entries are left out on the engine's side.
    pub(crate) partial: bool,
}

impl Line {
    pub(crate) fn new(
        layout: &Layout,
        patterns: &Patterns,
        memory: &SlotMemory,
        plan: &Plan,
    ) -> Self {
        let mut line = Self {
            bytes: plan.bytes(layout) as u64,
            ..Self::default()
        };
        for (index, entry) in plan.entries().iter().enumerate() {
            let start = line.tiles * TILE;
            let bytes = layout.geometry().classes()[entry.class].rank_bytes;
            let patterns = patterns.classes[entry.class].iter();
            line.strided
                .extend(patterns.filter_map(|p| p.at(entry, start)));
            line.partial |= entry.blocks.contains(&None);
            let stretches = plan.stretches(memory, index, 0..bytes);
            line.packed.extend(stretches.map(|stretch| Packed {
                position: start + stretch.position as u64,
                address: stretch.arena.addr() as u64,
                bytes: stretch.length as u64,
            }));
            line.entries.push((start, bytes as u64));
            line.tiles += (bytes as u64).div_ceil(TILE);
        }
        line
    }

    /// Most copies that [`Line::copies`] can come to.
    pub(crate) fn runs(&self) -> u64 {
        let runs = self
            .strided
            .iter()
            .map(|piece| piece.bytes / u64::from(piece.run));
        runs.sum::<u64>() + self.packed.len() as u64
    }

    /// The tiles of an entry.
    pub(crate) fn tiles_of(&self, entry: usize) -> Range<usize> {
        let (start, bytes) = self.entries[entry];
        let first = (start / TILE) as usize;
        first..first + bytes.div_ceil(TILE) as usize
    }

    /// Piece by piece from one side to the other; what is adjacent on both is one copy.
    pub(crate) fn copies(layout: &Layout, memory: &SlotMemory, plan: &Plan) -> Vec<Copy> {
        let mut copies: Vec<Copy> = Vec::new();
        for (index, entry) in plan.entries().iter().enumerate() {
            let bytes = layout.geometry().classes()[entry.class].rank_bytes;
            for piece in plan.pieces(layout, memory, index, 0..bytes) {
                let (engine, arena) = (piece.engine.addr() as u64, piece.arena.addr() as u64);
                let length = piece.length as u64;
                match copies.last_mut() {
                    Some(last)
                        if last.engine + last.bytes == engine
                            && last.arena + last.bytes == arena =>
                    {
                        last.bytes += length;
                    }
                    _ => copies.push(Copy {
                        engine,
                        arena,
                        bytes: length,
                    }),
                }
            }
        }
        copies
    }
}

/// The parts of sorted packed pieces that lie in a stretch of the line.
pub(crate) fn within(packed: &[Packed], range: Range<u64>) -> impl Iterator<Item = Packed> + '_ {
    let first = packed.partition_point(|piece| piece.position + piece.bytes <= range.start);
    let end = range.end;
    packed[first..]
        .iter()
        .take_while(move |piece| piece.position < end)
        .map(move |piece| {
            let start = piece.position.max(range.start);
            let stop = (piece.position + piece.bytes).min(range.end);
            Packed {
                position: start,
                address: piece.address + (start - piece.position),
                bytes: stop - start,
            }
        })
}

impl Pattern {
    fn of(span: &Span, skip: usize, length: usize) -> Self {
        Self {
            block: span.block,
            block_stride: span.block_stride,
            piece: Strided::once(
                (span.start + skip) as u64,
                span.in_block(0).addr() as u64 + skip as u64,
                u32::try_from(length).expect("runs are cut below 32 bits"),
            ),
        }
    }

    fn at(&self, entry: &EntryCopy, start: u64) -> Option<Strided> {
        let block = entry.blocks[self.block]? * self.block_stride;
        Some(Strided {
            position: start + self.piece.position,
            address: self.piece.address + block as u64,
            ..self.piece
        })
    }

    /// Whether another pattern is the same but for where it lies.
    fn repeats(&self, other: &Self) -> bool {
        let (a, b) = (&self.piece, &other.piece);
        (self.block, self.block_stride) == (other.block, other.block_stride)
            && (a.run, a.extent, a.stride) == (b.run, b.extent, b.stride)
    }

    fn distance(&self, other: &Self) -> i64 {
        other
            .piece
            .address
            .wrapping_sub(self.piece.address)
            .cast_signed()
    }
}

fn fold(spans: &[Span]) -> Vec<Pattern> {
    let cut = |span: &Span| {
        let span = *span;
        (0..span.length)
            .step_by(MOST_RUN)
            .map(move |skip| Pattern::of(&span, skip, MOST_RUN.min(span.length - skip)))
    };
    let mut patterns: Vec<Pattern> = spans.iter().flat_map(cut).collect();
    for level in (0..4).rev() {
        patterns = fold_level(&patterns, level);
    }
    patterns
}

/// Puts neighbours that repeat at one distance into one pattern, as its dimension `level`.
fn fold_level(patterns: &[Pattern], level: usize) -> Vec<Pattern> {
    let mut folded = Vec::new();
    let mut rest = patterns;
    while let Some(first) = rest.first() {
        let mut count = 1;
        if let Some(second) = rest.get(1) {
            let distance = first.distance(second);
            let repeats = |pair: &&[Pattern]| {
                pair[0].repeats(&pair[1]) && pair[0].distance(&pair[1]) == distance
            };
            count += rest.windows(2).take_while(repeats).count();
        }
        let mut pattern = *first;
        if count > 1 {
            pattern.piece.extent[level] =
                u32::try_from(count).expect("a layout has fewer runs than 2^32");
            pattern.piece.stride[level] = first.distance(&rest[1]);
            pattern.piece.bytes *= count as u64;
        }
        folded.push(pattern);
        rest = &rest[count..];
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(position: u64, address: u64, run: u32) -> Pattern {
        Pattern {
            block: 0,
            block_stride: 0,
            piece: Strided::once(position, address, run),
        }
    }

    #[test]
    fn runs_at_equal_distances_fold_level_by_level() {
        let mut patterns = Vec::new();
        for outer in 0..3 {
            for inner in 0..5 {
                let position = (outer * 5 + inner) * 8;
                patterns.push(pattern(position, 1000 * outer + 16 * inner, 8));
            }
        }
        let inner = fold_level(&patterns, 3);
        assert_eq!(inner.len(), 3);
        let outer = fold_level(&inner, 2);
        assert_eq!(outer.len(), 1);
        let piece = outer[0].piece;
        assert_eq!(piece.extent, [1, 1, 3, 5]);
        assert_eq!(piece.stride, [0, 0, 1000, 16]);
        assert_eq!(piece.bytes, 120);
    }

    #[test]
    fn what_does_not_repeat_stays_apart() {
        let patterns = [pattern(0, 0, 8), pattern(8, 16, 8), pattern(16, 64, 4)];
        let folded = fold_level(&patterns, 3);
        assert_eq!(folded.len(), 2);
        assert_eq!(folded[1].piece.run, 4);
    }

    #[test]
    fn a_part_of_the_line_cuts_pieces_on_both_ends() {
        let packed = |position, address, bytes| Packed {
            position,
            address,
            bytes,
        };
        let pieces = [packed(0, 100, 10), packed(10, 500, 10), packed(32, 900, 8)];
        let parts: Vec<_> = within(&pieces, 4..34).collect();
        assert_eq!(
            parts,
            [packed(4, 104, 6), packed(10, 500, 10), packed(32, 900, 2)]
        );
        assert_eq!(within(&pieces, 20..32).count(), 0);
    }
}
