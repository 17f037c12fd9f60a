//! The places of one rank's blocks in the engine's memory.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::ids::ClassKind;

use super::layer_map::{LayerMap, by_layer, check};
use super::region::SlotMemory;
use super::span::{Span, spans};

/// The places of all layers of a geometry on one rank. They are in bounds for every block id below a group's number of
/// blocks, so a block id is all that is left to check.
#[derive(Debug)]
pub struct TransferLayout {
    geometry: Arc<Geometry>,
    rank: usize,
    num_blocks: Vec<usize>,
    /// By group and layer.
    maps: Vec<Vec<LayerMap>>,
    spans: Vec<Vec<Span>>,
}

/// One of the engine's blocks that an entry takes.
pub(super) struct EngineBlock {
    /// Index of the group in the geometry.
    pub(super) group: usize,
    /// How many tokens of a page lie before it.
    pub(super) tokens_before: usize,
}

impl TransferLayout {
    /// Makes a layout from maps, and checks that each layer of the geometry has exactly one. `num_blocks`: how many
    /// blocks the engine has, by group.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on a rank, group or layer that does not exist, is mapped twice
    /// or not at all, and on a group with fewer blocks than an entry takes; [`Error::Geometry`] on runs
    /// that do not fit the layer, the stride or the region, and on token parts that do not fit the layer.
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
                check(&geometry, group, layer, map, found)?;
            }
        }
        let of_class = |class| spans(&geometry, class, &maps, num_blocks, None);
        let spans = geometry.classes().iter().map(of_class).collect();
        Ok(Self {
            geometry,
            rank,
            num_blocks: num_blocks.to_vec(),
            maps,
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

    /// The engine's blocks that an entry of a class takes.
    pub(super) fn blocks(&self, class: usize) -> impl Iterator<Item = EngineBlock> + Clone + '_ {
        let groups = self.geometry.classes()[class].groups.iter();
        groups.flat_map(|&index| {
            let group = &self.geometry.groups()[index];
            let blocks = group.blocks_per_entry();
            let each = self.geometry.block_tokens() / blocks;
            (0..blocks).map(move |block| EngineBlock {
                group: index,
                tokens_before: block * each,
            })
        })
    }

    /// The bytes of a class, in payload order, without those of layers that are not here.
    #[must_use]
    pub fn spans(&self, class: usize) -> &[Span] {
        &self.spans[class]
    }

    /// The bytes of the first tokens of a page of a class, in payload order. The bytes in between and behind are those
    /// of other tokens.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on a class of checkpoints, a number of tokens that fill no page or a whole one, and
    /// layers whose tokens are not known.
    pub fn spans_of_tokens(&self, class: usize, tokens: usize) -> Result<Vec<Span>> {
        let class = self.geometry.class(class)?;
        if class.kind == ClassKind::Recurrent {
            return Err(Error::InvalidArgument(format!(
                "tokens: expected none, since class {} has checkpoints, found {tokens}",
                class.index
            )));
        }
        let most = self.geometry.block_tokens() - 1;
        if !(1..=most).contains(&tokens) {
            return Err(Error::InvalidArgument(format!(
                "tokens: expected 1 to {most}, fewer than a block has, found {tokens}"
            )));
        }
        for &group in &class.groups {
            let layers = self.geometry.groups()[group].layers().iter();
            let mut layers = layers.zip(&self.maps[group]);
            if let Some((layer, _)) =
                layers.find(|(_, map)| map.tokens.is_none() && !map.runs.is_empty())
            {
                return Err(Error::InvalidArgument(format!(
                    "tokens: expected a layer map of '{}' that says where tokens lie, found one that does not, so \
                     its pages can only be stored whole",
                    layer.name()
                )));
            }
        }
        let (geometry, num_blocks) = (&self.geometry, &self.num_blocks);
        Ok(spans(geometry, class, &self.maps, num_blocks, Some(tokens)))
    }
}
