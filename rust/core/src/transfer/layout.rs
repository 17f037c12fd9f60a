//! The places of one rank's blocks in the engine's memory.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::geometry::{Geometry, PageClass};

use super::region::{Region, SlotMemory};

/// Adjacent bytes of one layer's block, relative to the block's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRun {
    /// Distance from the block's start, in bytes.
    pub offset: usize,
    /// Number of bytes.
    pub length: usize,
}

/// The place of one layer's blocks: block `b` starts at `region + b * block_stride`, and its bytes are the runs, in
/// payload order. Bytes between runs are padding and never move.
#[derive(Debug, Clone)]
pub struct LayerMap {
    /// Index of the group in the geometry.
    pub group: usize,
    /// Index of the layer in the group.
    pub layer: usize,
    /// The engine's memory; other layers may lie in it, too.
    pub region: Region,
    /// Distance from a block's start to the next one's, in bytes.
    pub block_stride: usize,
    /// The block's bytes in payload order.
    pub runs: Vec<ByteRun>,
}

/// The places of all layers of a geometry on one rank. They are in bounds for every block id below a group's number of
/// blocks, so a block id is all that is left to check.
#[derive(Debug)]
pub struct TransferLayout {
    geometry: Arc<Geometry>,
    rank: usize,
    num_blocks: Vec<usize>,
    spans: Vec<Vec<Span>>,
}

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
        self.block == next.block
            && self.block_stride == next.block_stride
            && end == next.region.at(next.offset).addr()
            && last + next.length <= self.region.nbytes()
    }
}

impl TransferLayout {
    /// Makes a layout from maps, and checks that each layer of the geometry has exactly one. `num_blocks`: how many
    /// blocks the engine has, by group.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on a rank, group or layer that does not exist, is mapped twice
    /// or not at all, and on a group with fewer blocks than an entry takes; [`Error::Geometry`] on runs
    /// that do not fit the layer, the stride or the region.
    pub fn new(
        geometry: Arc<Geometry>,
        rank: usize,
        num_blocks: &[usize],
        maps: &[LayerMap],
    ) -> Result<Self> {
        if rank >= geometry.ranks() {
            return Err(Error::InvalidArgument(format!(
                "rank: expected below {}, found {rank}",
                geometry.ranks()
            )));
        }
        if num_blocks.len() != geometry.groups().len() {
            return Err(Error::InvalidArgument(format!(
                "num_blocks: expected one per group, {}, found {}",
                geometry.groups().len(),
                num_blocks.len()
            )));
        }
        let maps = by_layer(&geometry, maps)?;
        for (index, group) in geometry.groups().iter().enumerate() {
            let (found, least) = (num_blocks[index], group.blocks_per_entry());
            if found < least {
                return Err(Error::InvalidArgument(format!(
                    "num_blocks: group {index}: expected at least {least}, found {found}"
                )));
            }
            for (layer, map) in group.layers().iter().zip(&maps[index]) {
                check(layer.name(), layer.bytes(), map, found)?;
            }
        }
        let spans = geometry
            .classes()
            .iter()
            .map(|class| spans(&geometry, class, &maps, num_blocks))
            .collect();
        Ok(Self {
            geometry,
            rank,
            num_blocks: num_blocks.to_vec(),
            spans,
        })
    }

    /// Rejects slots that were made for another geometry.
    ///
    /// # Errors
    /// [`Error::Foreign`] if they were.
    pub fn check_slots(&self, memory: &SlotMemory) -> Result<()> {
        let (expected, found) = (self.geometry.fingerprint(), memory.fingerprint());
        if expected != found {
            return Err(Error::Foreign(format!(
                "arena: expected fingerprint {expected}, found {found}"
            )));
        }
        Ok(())
    }

    /// The geometry of the entries.
    #[must_use]
    pub fn geometry(&self) -> &Arc<Geometry> {
        &self.geometry
    }

    /// The rank whose blocks these are.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of the engine's blocks of each group: block ids are below it.
    #[must_use]
    pub fn num_blocks(&self) -> &[usize] {
        &self.num_blocks
    }

    /// The bytes of each of the engine's blocks that an entry of a class takes.
    pub(super) fn block_bytes(&self, class: usize) -> impl Iterator<Item = usize> + '_ {
        let groups = self.geometry.classes()[class].groups.iter();
        groups.flat_map(|&group| {
            let group = &self.geometry.groups()[group];
            let blocks = group.blocks_per_entry();
            std::iter::repeat_n(group.bytes() / blocks, blocks)
        })
    }

    /// The bytes of a class, in payload order.
    #[must_use]
    pub fn spans(&self, class: usize) -> &[Span] {
        &self.spans[class]
    }
}

fn by_layer<'a>(geometry: &Geometry, maps: &'a [LayerMap]) -> Result<Vec<Vec<&'a LayerMap>>> {
    let mut table: Vec<Vec<Option<&LayerMap>>> = geometry
        .groups()
        .iter()
        .map(|group| vec![None; group.layers().len()])
        .collect();
    for map in maps {
        let (group, layer) = (map.group, map.layer);
        let place = table
            .get_mut(group)
            .and_then(|layers| layers.get_mut(layer));
        let place = place.ok_or_else(|| {
            Error::InvalidArgument(format!(
                "layer map: expected a layer of the geometry, found group {group} layer {layer}"
            ))
        })?;
        if place.replace(map).is_some() {
            return Err(Error::InvalidArgument(format!(
                "layer map: expected one for group {group} layer {layer} ('{}'), found two",
                geometry.groups()[group].layers()[layer].name()
            )));
        }
    }
    let missing = |group: usize, layer: usize| {
        Error::InvalidArgument(format!(
            "layer map: expected one for group {group} layer {layer} ('{}'), found none",
            geometry.groups()[group].layers()[layer].name()
        ))
    };
    let complete = |(group, layers): (usize, Vec<Option<&'a LayerMap>>)| {
        let layers = layers.into_iter().enumerate();
        layers
            .map(|(layer, map)| map.ok_or_else(|| missing(group, layer)))
            .collect()
    };
    table.into_iter().enumerate().map(complete).collect()
}

fn check(name: &str, bytes: usize, map: &LayerMap, num_blocks: usize) -> Result<()> {
    let reject = |what: String| Err(Error::geometry(format!("layer '{name}': {what}")));
    let mut ends = Vec::with_capacity(map.runs.len());
    for run in &map.runs {
        match run.offset.checked_add(run.length) {
            Some(end) if run.length > 0 => ends.push((run.offset, end)),
            _ => return reject(format!("expected non-empty runs, found {run:?}")),
        }
    }
    let found = map
        .runs
        .iter()
        .fold(0_usize, |sum, run| sum.saturating_add(run.length));
    if found != bytes {
        return reject(format!(
            "expected runs of {bytes} bytes in all, found {found}"
        ));
    }
    ends.sort_unstable();
    if let Some(pair) = ends.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        return reject(format!("expected disjoint runs, found {pair:?}"));
    }
    let end = ends.last().map_or(0, |(_, end)| *end);
    if num_blocks > 1 && end > map.block_stride {
        return reject(format!(
            "expected runs within a block stride of {} bytes, found one that ends at {end}",
            map.block_stride
        ));
    }
    let needed = (num_blocks - 1)
        .checked_mul(map.block_stride)
        .and_then(|n| n.checked_add(end));
    match needed {
        Some(needed) if needed <= map.region.nbytes() => Ok(()),
        _ => reject(format!(
            "expected a region for {num_blocks} blocks of stride {}, {} bytes, found {}",
            map.block_stride,
            needed.map_or("too many".to_owned(), |n| n.to_string()),
            map.region.nbytes()
        )),
    }
}

fn spans(
    geometry: &Geometry,
    class: &PageClass,
    maps: &[Vec<&LayerMap>],
    num_blocks: &[usize],
) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let (mut start, mut block) = (0, 0);
    for &group in &class.groups {
        for _ in 0..geometry.groups()[group].blocks_per_entry() {
            for map in &maps[group] {
                for run in &map.runs {
                    let span = Span {
                        region: map.region,
                        offset: run.offset,
                        block_stride: map.block_stride,
                        group,
                        block,
                        start,
                        length: run.length,
                    };
                    start += run.length;
                    match spans.last_mut() {
                        Some(last) if last.continues_with(&span, num_blocks[group]) => {
                            last.length += span.length;
                        }
                        _ => spans.push(span),
                    }
                }
            }
            block += 1;
        }
    }
    spans
}
