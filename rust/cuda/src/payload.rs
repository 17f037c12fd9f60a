//! The payload of a batch: the bytes of its entries one after another, and their places in memory.
//!
//! Each entry begins at a tile. On the engine's side, neighbouring runs at equal distances form one piece, so a page
//! of many layers is often one piece or a few.

use std::ops::Range;
use std::ptr;

use hybrid_pages::transfer::{EntryCopy, Plan, SlotMemory, Span, TILE_BYTES, TransferLayout};

use crate::kernels::abi::{MOST_RUN, Packed, Strided};
use crate::pinning::Cuts;

const TILE: u64 = TILE_BYTES as u64;

/// Bytes that are adjacent on both sides, and are copied at once. The arena's address is the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyRange {
    pub(crate) engine: u64,
    pub(crate) arena: u64,
    pub(crate) bytes: u64,
}

/// Runs of bytes at equal distances in one of an entry's blocks, as they lie in the engine's block 0.
#[derive(Debug, Clone, Copy)]
struct Pattern {
    /// The index of the block among an entry's block ids.
    block: usize,
    block_stride: usize,
    /// `position` is relative to the payload's start.
    piece: Strided,
}

/// The patterns of an entry, for each class of a layout.
#[derive(Debug)]
pub(crate) struct Patterns {
    classes: Vec<Vec<Pattern>>,
}

impl Patterns {
    pub(crate) fn new(layout: &TransferLayout) -> Self {
        let classes = 0..layout.geometry().classes().len();
        Self {
            classes: classes.map(|class| fold(layout.spans(class))).collect(),
        }
    }

    /// How many strided pieces an entry has at most, with all of its tokens or with one of a few other numbers.
    pub(crate) fn most(&self, layout: &TransferLayout) -> usize {
        let whole = self.classes.iter().map(Vec::len);
        let last = layout.geometry().block_tokens() - 1;
        let parts = (0..self.classes.len()).flat_map(|class| {
            let spans = move |tokens| layout.spans_of_tokens(class, tokens).ok();
            let tried = [1, last / 3, last / 2, last].into_iter();
            tried.filter_map(spans).map(|spans| fold(&spans).len())
        });
        whole.chain(parts).max().unwrap_or(0)
    }
}

/// The bytes of several entries one after another.
#[derive(Debug, Default)]
pub(crate) struct Payload {
    /// Pieces in the engine's memory.
    pub(crate) strided: Vec<Strided>,
    /// Pieces in slots, with the host's addresses.
    pub(crate) packed: Vec<Packed>,
    pub(crate) entries: Vec<PlacedEntry>,
    pub(crate) tiles: u64,
    /// How many bytes move.
    pub(crate) bytes: u64,
    /// How many bytes the entries have, moved or not.
    held: u64,
    /// How many runs the strided pieces have.
    runs: u64,
}

/// The place of an entry in a payload, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacedEntry {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// How many bytes move. The others a load leaves out, since the engine may have no block for them. A store writes
    /// zeros in their place, since they are of no token of the page.
    pub(crate) moved: u64,
}

impl PlacedEntry {
    pub(crate) fn is_partial(&self) -> bool {
        self.moved < self.bytes
    }
}

impl Payload {
    /// Appends an entry of a plan.
    pub(crate) fn push(
        &mut self,
        layout: &TransferLayout,
        patterns: &Patterns,
        memory: &SlotMemory,
        cuts: Cuts,
        plan: &Plan,
        index: usize,
    ) {
        let entry = &plan.entries()[index];
        let start = self.tiles * TILE;
        let bytes = layout.geometry().classes()[entry.class].rank_bytes;
        let first = self.strided.len();
        let part = plan.part(index).map(fold);
        let patterns = part.as_ref().unwrap_or(&patterns.classes[entry.class]);
        self.strided
            .extend(patterns.iter().filter_map(|p| p.at(entry, start)));
        let strided = self.strided[first..].iter();
        self.runs += strided.clone().map(Strided::runs).sum::<u64>();
        let moved = strided.map(|piece| piece.bytes).sum();
        for stretch in plan.stretches(memory, index, 0..bytes) {
            let arena = stretch.arena.addr() as u64;
            let mut position = start + stretch.position as u64;
            for (address, bytes) in cuts.parts(arena, stretch.length as u64) {
                self.packed.push(Packed {
                    position,
                    address,
                    bytes,
                });
                position += bytes;
            }
        }
        self.entries.push(PlacedEntry {
            start,
            bytes: bytes as u64,
            moved,
        });
        self.tiles += (bytes as u64).div_ceil(TILE);
        self.bytes += moved;
        self.held += bytes as u64;
    }

    /// Writes zeros to the slots wherever no byte of an entry moves.
    ///
    /// # Safety
    /// The slots can be written, and nobody else uses them.
    pub(crate) unsafe fn write_zeros(&self) {
        let partial = self.entries.iter().filter(|entry| entry.is_partial());
        for entry in partial {
            let end = entry.start + entry.bytes;
            let first = self
                .strided
                .partition_point(|piece| piece.position < entry.start);
            let mut zeros = entry.start;
            let moved = self.strided[first..].iter();
            let moved = moved.map(|piece| (piece.position, piece.position + piece.bytes));
            for (from, to) in moved
                .take_while(|(from, _)| *from < end)
                .chain([(end, end)])
            {
                for piece in within(&self.packed, zeros..from) {
                    let slot = ptr::with_exposed_provenance_mut::<u8>(piece.address as usize);
                    // SAFETY: the caller promises this.
                    unsafe { slot.write_bytes(0, piece.bytes as usize) };
                }
                zeros = to;
            }
        }
    }

    /// Removes the last entry.
    pub(crate) fn pop(&mut self) {
        if let Some(PlacedEntry {
            start,
            bytes,
            moved,
        }) = self.entries.pop()
        {
            let kept = self.strided.partition_point(|piece| piece.position < start);
            let popped = self.strided.drain(kept..);
            self.runs -= popped.map(|piece| piece.runs()).sum::<u64>();
            self.packed
                .truncate(self.packed.partition_point(|piece| piece.position < start));
            self.tiles = start / TILE;
            self.bytes -= moved;
            self.held -= bytes;
        }
    }

    /// Whether any entry has bytes that do not move.
    pub(crate) fn is_partial(&self) -> bool {
        self.bytes < self.held
    }

    /// Number of pieces of adjacent bytes on the side that has more of them: the least number of copies.
    pub(crate) fn pieces(&self) -> u64 {
        self.runs.max(self.packed.len() as u64)
    }

    /// The tiles of an entry, by its index.
    pub(crate) fn tiles_of(&self, entry: usize) -> Range<usize> {
        let PlacedEntry { start, bytes, .. } = self.entries[entry];
        let first = (start / TILE) as usize;
        first..first + bytes.div_ceil(TILE) as usize
    }

    /// The copies between slots and a buffer on the device that holds the payload in one piece.
    pub(crate) fn staged_copies(&self, staging: u64, cuts: Cuts) -> Vec<CopyRange> {
        let mut copies = Vec::new();
        for piece in &self.packed {
            let engine = staging + piece.position;
            push(&mut copies, engine, piece.address, piece.bytes, cuts);
        }
        copies
    }

    /// The copies that move the payload: one for each range that is adjacent on both sides and was registered in one
    /// piece.
    pub(crate) fn copies(&self, cuts: Cuts) -> Vec<CopyRange> {
        let mut copies: Vec<CopyRange> = Vec::new();
        let mut packed = self.packed.iter().copied().peekable();
        for piece in &self.strided {
            let run = u64::from(piece.run);
            for index in 0..piece.runs() {
                let start = piece.position + index * run;
                let engine = piece
                    .address
                    .wrapping_add(index.wrapping_mul(piece.stride as u64));
                let mut done = 0;
                while done < run {
                    let position = start + done;
                    while packed
                        .next_if(|slot| slot.position + slot.bytes <= position)
                        .is_some()
                    {}
                    let Some(slot) = packed.peek() else {
                        debug_assert!(false, "slots hold the whole payload");
                        return copies;
                    };
                    let skip = position - slot.position;
                    let bytes = (slot.bytes - skip).min(run - done);
                    push(&mut copies, engine + done, slot.address + skip, bytes, cuts);
                    done += bytes;
                }
            }
        }
        copies
    }
}

fn push(copies: &mut Vec<CopyRange>, engine: u64, arena: u64, bytes: u64, cuts: Cuts) {
    match copies.last_mut() {
        Some(last)
            if last.engine + last.bytes == engine
                && last.arena + last.bytes == arena
                && cuts.at(last.arena).1 > last.bytes =>
        {
            last.bytes += bytes;
        }
        _ => copies.push(CopyRange {
            engine,
            arena,
            bytes,
        }),
    }
}

/// The parts of sorted packed pieces that lie in a range of the payload.
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

    /// Whether another run follows in the payload and differs only in its place.
    fn repeats(&self, other: &Self) -> bool {
        let (a, b) = (&self.piece, &other.piece);
        (self.block, self.block_stride, a.run) == (other.block, other.block_stride, b.run)
            && a.position + u64::from(a.run) == b.position
    }

    fn distance(&self, other: &Self) -> i64 {
        other
            .piece
            .address
            .wrapping_sub(self.piece.address)
            .cast_signed()
    }
}

/// Joins neighbouring runs at equal distances into patterns.
fn fold(spans: &[Span]) -> Vec<Pattern> {
    const MOST: usize = MOST_RUN as usize;
    let cut = |span: &Span| {
        let span = *span;
        (0..span.length)
            .step_by(MOST)
            .map(move |skip| Pattern::of(&span, skip, MOST.min(span.length - skip)))
    };
    let runs: Vec<Pattern> = spans.iter().flat_map(cut).collect();
    fold_runs(&runs)
}

fn fold_runs(runs: &[Pattern]) -> Vec<Pattern> {
    let mut folded = Vec::new();
    let mut rest = runs;
    while let Some(first) = rest.first() {
        let mut pattern = *first;
        let mut count = 1;
        if let Some(second) = rest.get(1) {
            let distance = first.distance(second);
            let repeats = |pair: &&[Pattern]| {
                pair[0].repeats(&pair[1]) && pair[0].distance(&pair[1]) == distance
            };
            count += rest.windows(2).take_while(repeats).count();
            if count > 1 {
                pattern.piece.stride = distance;
                pattern.piece.bytes *= count as u64;
            }
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
    fn neighbours_at_equal_distances_are_one_piece() {
        let mut patterns = Vec::new();
        for outer in 0..3 {
            for inner in 0..5 {
                let position = (outer * 5 + inner) * 8;
                patterns.push(pattern(position, 1000 * outer + 16 * inner, 8));
            }
        }
        let folded = fold_runs(&patterns);
        assert_eq!(folded.len(), 3);
        for (index, pattern) in folded.iter().enumerate() {
            let piece = pattern.piece;
            assert_eq!((piece.bytes, piece.run, piece.stride), (40, 8, 16));
            assert_eq!(piece.address, 1000 * index as u64);
        }
    }

    #[test]
    fn what_does_not_repeat_stays_apart() {
        let patterns = [pattern(0, 0, 8), pattern(8, 16, 8), pattern(16, 64, 4)];
        let folded = fold_runs(&patterns);
        assert_eq!(folded.len(), 2);
        assert_eq!(folded[1].piece.run, 4);
        let apart = [pattern(0, 0, 8), pattern(9, 16, 8), pattern(18, 32, 8)];
        assert_eq!(fold_runs(&apart).len(), 3, "zeros lie in between");
    }

    #[test]
    fn copies_are_of_what_is_adjacent_on_both_sides_and_end_with_a_registration() {
        let strided = |position, address, run, runs: u64, stride| Strided {
            bytes: u64::from(run) * runs,
            stride,
            ..Strided::once(position, address, run)
        };
        let packed = |position, address, bytes| Packed {
            position,
            address,
            bytes,
        };
        let payload = Payload {
            strided: vec![strided(0, 100, 8, 3, 8), strided(30, 300, 4, 2, 50)],
            packed: vec![packed(0, 4096, 20), packed(20, 5096, 18)],
            ..Payload::default()
        };
        let cuts = Cuts::new(4096, 1 << 20, 4096, 4096, 1 << 20);
        let found: Vec<_> = payload
            .copies(cuts)
            .iter()
            .map(|c| (c.engine, c.arena, c.bytes))
            .collect();
        assert_eq!(
            found,
            [
                (100, 4096, 20),
                (120, 5096, 4),
                (300, 5106, 4),
                (350, 5110, 4)
            ]
        );
        let payload = Payload {
            strided: vec![strided(0, 100, 4096, 2, 4096)],
            packed: vec![packed(0, 4096, 4096), packed(4096, 8192, 4096)],
            ..Payload::default()
        };
        assert_eq!(payload.copies(cuts).len(), 1);
        assert_eq!(
            payload
                .copies(Cuts::new(4096, 1 << 20, 4096, 4096, 4096))
                .len(),
            2
        );
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
