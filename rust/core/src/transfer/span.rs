//! The bytes of an entry, as pieces that are adjacent on both sides.

use std::iter;
use std::ops::Range;

use crate::geometry::{Geometry, PageClass};

use super::layer_map::LayerMap;
use super::region::Region;
use super::tokens;

/// Bytes of an entry that are adjacent both in the payload and in every block of the engine's.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    region: Region,
    offset: usize,
    /// Distance from a block's start to the next one's, in bytes.
    pub block_stride: usize,
    /// Index of the group in the geometry.
    pub group: usize,
    /// Which of an entry's block ids names the block.
    pub block: usize,
    /// Position in the rank's shard of the payload.
    pub start: usize,
    /// Number of bytes.
    pub length: usize,
}

impl Span {
    /// The position in the rank's shard where the next span starts.
    pub(super) fn end(&self) -> usize {
        self.start + self.length
    }

    /// The address of the first byte in a block.
    #[must_use]
    pub fn in_block(&self, block: usize) -> *mut u8 {
        self.region.at(self.offset + block * self.block_stride)
    }

    /// Whether `next` can be copied in one go with this span, in every block.
    fn continues_with(&self, next: &Self, num_blocks: usize) -> bool {
        let end = self.region.at(self.offset + self.length).addr();
        let last = self.offset + (num_blocks - 1) * self.block_stride + self.length;
        self.end() == next.start
            && self.block == next.block
            && self.block_stride == next.block_stride
            && end == next.region.at(next.offset).addr()
            && last + next.length <= self.region.nbytes()
    }
}

/// The bytes of a class in payload order or, with `tokens`, those of the first tokens of a page: none of a layer whose
/// map does not say where tokens lie.
pub(super) fn spans(
    geometry: &Geometry,
    class: &PageClass,
    maps: &[Vec<LayerMap>],
    num_blocks: &[usize],
    tokens: Option<usize>,
) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let (mut start, mut block) = (0, 0);
    for &group in &class.groups {
        let blocks = geometry.groups()[group].blocks_per_entry();
        let each = geometry.block_tokens() / blocks;
        for index in 0..blocks {
            let tokens = tokens.map(|all| all.saturating_sub(index * each).min(each));
            for (map, layer) in maps[group].iter().zip(geometry.groups()[group].layers()) {
                let bytes = layer.bytes();
                let ranges = match (tokens, &map.tokens) {
                    (None, _) => iter::once(0..bytes).collect(),
                    (Some(tokens), Some(parts)) => tokens::real(parts, tokens),
                    (Some(_), None) => Vec::new(),
                };
                for (offset, at) in places(map, &ranges) {
                    let span = Span {
                        region: map.region,
                        offset,
                        block_stride: map.block_stride,
                        group,
                        block,
                        start: start + at.start,
                        length: at.len(),
                    };
                    match spans.last_mut() {
                        Some(last) if last.continues_with(&span, num_blocks[group]) => {
                            last.length += span.length;
                        }
                        _ => spans.push(span),
                    }
                }
                start += bytes;
            }
            block += 1;
        }
    }
    spans
}

/// Cuts ranges of a block's payload at its runs: each part's distance from the block's start, and its place in the
/// payload.
fn places(map: &LayerMap, ranges: &[Range<usize>]) -> Vec<(usize, Range<usize>)> {
    let mut places = Vec::with_capacity(ranges.len().max(map.runs.len()));
    let (mut ranges, mut start) = (ranges.iter().peekable(), 0);
    for run in &map.runs {
        let end = start + run.length;
        while let Some(range) = ranges.peek().filter(|range| range.start < end) {
            let at = range.start.max(start)..range.end.min(end);
            places.push((run.offset + at.start - start, at));
            if range.end > end {
                break;
            }
            ranges.next();
        }
        start = end;
    }
    places
}
