//! The place of one layer's blocks in an engine's memory.

use crate::error::{Error, Result};
use crate::geometry::{Geometry, Group, Layer};
use crate::ids::ClassKind;

use super::region::Region;
use super::tokens::{self, TokenPart};

/// Adjacent bytes of one layer's block, relative to the block's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRun {
    /// Distance from the block's start, in bytes.
    pub offset: usize,
    /// Number of bytes.
    pub length: usize,
}

/// The place of one layer's blocks: block `b` starts at `region + b * block_stride`, and its bytes are the runs, in
/// payload order. Bytes between runs are padding and never move. A layer without runs is in the memory of another rank:
/// a store writes zeros in the place of its bytes, and a load leaves them out.
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
    /// Where the tokens of a page lie in the block's bytes, in payload order; `None` if that is not known. Then the
    /// layer's pages can only be stored whole.
    pub tokens: Option<Vec<TokenPart>>,
}

/// The maps by group and layer: exactly one for each layer of a geometry.
///
/// # Errors
/// [`Error::InvalidArgument`] naming a layer that is mapped twice, not at all, or does not exist.
pub(super) fn by_layer(geometry: &Geometry, maps: &[LayerMap]) -> Result<Vec<Vec<LayerMap>>> {
    let groups = geometry.groups().iter();
    let mut table: Vec<Vec<Option<&LayerMap>>> = groups
        .map(|group| vec![None; group.layers().len()])
        .collect();
    for map in maps {
        let (group, layer) = (map.group, map.layer);
        let layers = table.get_mut(group);
        let place = layers.and_then(|layers| layers.get_mut(layer));
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
    let complete = |(group, layers): (usize, Vec<Option<&LayerMap>>)| {
        let layers = layers.into_iter().enumerate();
        layers
            .map(|(layer, map)| map.cloned().ok_or_else(|| missing(group, layer)))
            .collect()
    };
    table.into_iter().enumerate().map(complete).collect()
}

fn check_runs(name: &str, bytes: usize, map: &LayerMap, num_blocks: usize) -> Result<()> {
    let reject = |what: String| Err(Error::geometry(format!("layer '{name}': {what}")));
    let mut ends = Vec::with_capacity(map.runs.len());
    for run in &map.runs {
        match run.offset.checked_add(run.length) {
            Some(end) if run.length > 0 => ends.push((run.offset, end)),
            _ => return reject(format!("expected non-empty runs, found {run:?}")),
        }
    }
    let lengths = map.runs.iter().map(|run| run.length);
    let found = lengths.fold(0, usize::saturating_add);
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

/// Checks that a layer's blocks fit its map.
///
/// # Errors
/// [`Error::Geometry`] naming the layer and what does not fit.
pub(super) fn check(
    geometry: &Geometry,
    group: &Group,
    layer: &Layer,
    map: &LayerMap,
    num_blocks: usize,
) -> Result<()> {
    if !map.runs.is_empty() || map.tokens.is_some() {
        check_runs(layer.name(), layer.bytes(), map, num_blocks)?;
    }
    check_tokens(geometry, group, layer, map)
}

/// Checks the places of a layer's tokens. Each of the blocks of an entry has an equal share of a block's tokens.
fn check_tokens(geometry: &Geometry, group: &Group, layer: &Layer, map: &LayerMap) -> Result<()> {
    let Some(parts) = &map.tokens else {
        return Ok(());
    };
    let reject = |what: String| Err(Error::geometry(format!("layer '{}': {what}", layer.name())));
    let (tokens, blocks) = (geometry.block_tokens(), group.blocks_per_entry());
    if group.kind() == ClassKind::Recurrent {
        return reject("token parts: expected none of a recurrent layer, found some".into());
    }
    if tokens % blocks != 0 {
        return reject(format!(
            "token parts: expected {tokens} tokens in equal parts, found {blocks} blocks"
        ));
    }
    tokens::check(parts, layer.bytes(), tokens / blocks).or_else(reject)
}
