//! Layers, and the groups of layers that share a block table.

use crate::error::{Error, Result};
use crate::ids::ClassKind;

use super::checks::{check_count, check_name, check_unique};
use super::segment::Segment;

/// What one layer keeps in one engine block on one rank: its segments, densely in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layer {
    name: String,
    segments: Vec<Segment>,
    bytes: usize,
}

impl Layer {
    /// The most segments that a layer may have.
    pub const MAX_SEGMENTS: usize = 64;

    /// A layer of at least one segment.
    ///
    /// # Errors
    /// [`Error::Geometry`] on an empty name, no segments, repeated names or a size beyond memory.
    pub fn new(name: impl Into<String>, segments: Vec<Segment>) -> Result<Self> {
        let name = name.into();
        check_name("layer", &name)?;
        check_count(
            &format!("layer {name:?}"),
            "segments",
            segments.len(),
            Self::MAX_SEGMENTS,
        )?;
        check_unique(
            &format!("layer {name:?}: segment"),
            segments.iter().map(Segment::name),
        )?;
        let bytes = sum(segments.iter().map(Segment::bytes))
            .ok_or_else(|| Error::geometry(format!("layer {name:?}: its bytes exceed memory")))?;
        Ok(Self {
            name,
            segments,
            bytes,
        })
    }

    /// The name of the layer, unique in the geometry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The segments, in payload order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Bytes of this layer in one engine block on one rank.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Layers that share a block table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group {
    kind: ClassKind,
    window_tokens: Option<usize>,
    layers: Vec<Layer>,
    blocks_per_entry: usize,
    bytes: usize,
}

impl Group {
    /// The most layers that a group may have.
    pub const MAX_LAYERS: usize = 4096;
    /// The most engine blocks that one page or checkpoint may take.
    pub const MAX_BLOCKS_PER_ENTRY: usize = 1024;

    /// A group of at least one layer, whose entries take one engine block each.
    ///
    /// # Errors
    /// [`Error::Geometry`] on no layers, a size beyond memory, or a window where the kind has
    /// none (or none where it has).
    pub fn new(kind: ClassKind, layers: Vec<Layer>, window_tokens: Option<usize>) -> Result<Self> {
        let name = kind_name(kind);
        match (kind, window_tokens) {
            (ClassKind::Window, None | Some(0)) => {
                return Err(Error::geometry(format!(
                    "window group: expected window_tokens of at least 1, found {window_tokens:?}"
                )));
            }
            (ClassKind::Attention | ClassKind::Recurrent, Some(found)) => {
                return Err(Error::geometry(format!(
                    "{name} group: expected no window_tokens, found {found}"
                )));
            }
            _ => {}
        }
        check_count(
            &format!("{name} group"),
            "layers",
            layers.len(),
            Self::MAX_LAYERS,
        )?;
        let bytes = sum(layers.iter().map(Layer::bytes))
            .ok_or_else(|| Error::geometry(format!("{name} group: its bytes exceed memory")))?;
        Ok(Self {
            kind,
            window_tokens,
            layers,
            blocks_per_entry: 1,
            bytes,
        })
    }

    /// Returns the group with several engine blocks for each page or checkpoint. An engine may have blocks of fewer
    /// tokens than the geometry, or keep a state in several blocks.
    ///
    /// # Errors
    /// [`Error::Geometry`] on none, more than [`MAX_BLOCKS_PER_ENTRY`](Self::MAX_BLOCKS_PER_ENTRY), or a
    /// size beyond memory.
    pub fn with_blocks_per_entry(self, blocks_per_entry: usize) -> Result<Self> {
        let name = kind_name(self.kind);
        check_count(
            &format!("{name} group"),
            "blocks_per_entry",
            blocks_per_entry,
            Self::MAX_BLOCKS_PER_ENTRY,
        )?;
        let layers = self.layers.iter().map(Layer::bytes);
        let bytes = sum(layers)
            .and_then(|bytes| bytes.checked_mul(blocks_per_entry))
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| Error::geometry(format!("{name} group: its bytes exceed memory")))?;
        Ok(Self {
            blocks_per_entry,
            bytes,
            ..self
        })
    }

    /// The kind of the group's entries.
    pub fn kind(&self) -> ClassKind {
        self.kind
    }

    /// How many tokens a layer of a window group sees, itself included.
    pub fn window_tokens(&self) -> Option<usize> {
        self.window_tokens
    }

    /// The layers, in payload order.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// How many engine blocks one page or checkpoint takes.
    pub fn blocks_per_entry(&self) -> usize {
        self.blocks_per_entry
    }

    /// Bytes of this group in one entry on one rank: all layers of all its blocks.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The name a kind has in canonical JSON, errors and the Python binding.
#[must_use]
pub fn kind_name(kind: ClassKind) -> &'static str {
    match kind {
        ClassKind::Attention => "attention",
        ClassKind::Window => "window",
        ClassKind::Recurrent => "recurrent",
    }
}

/// The kind with this name.
///
/// # Errors
/// [`Error::Geometry`] listing the known names.
pub fn parse_kind(name: &str) -> Result<ClassKind> {
    match name {
        "attention" => Ok(ClassKind::Attention),
        "window" => Ok(ClassKind::Window),
        "recurrent" => Ok(ClassKind::Recurrent),
        _ => Err(Error::geometry(format!(
            "group kind: expected attention, window or recurrent, found {name:?}"
        ))),
    }
}

/// The sum, if one allocation can hold so many bytes.
pub(super) fn sum(parts: impl Iterator<Item = usize>) -> Option<usize> {
    let mut total = 0_usize;
    for part in parts {
        total = total.checked_add(part)?;
    }
    isize::try_from(total).is_ok().then_some(total)
}
