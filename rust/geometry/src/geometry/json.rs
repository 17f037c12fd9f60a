//! Canonical JSON: fields sorted by name, no whitespace. The fingerprint is a digest of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Cause, Error, Result};

use super::fingerprint::FORMAT_VERSION;
use super::group::{Group, Layer, kind_name, parse_kind};
use super::segment::{Dtype, Segment};

// The fields stand in alphabetical order, because that is the order in which they are written.

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GeometryDocument {
    block_tokens: usize,
    format_version: u32,
    groups: Vec<GroupDocument>,
    identity: BTreeMap<String, String>,
    ranks: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupDocument {
    /// Left out where it is 1, so that geometries without it keep their fingerprints.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    blocks_per_entry: usize,
    kind: String,
    layers: Vec<LayerDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window_tokens: Option<usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerDocument {
    name: String,
    segments: Vec<SegmentDocument>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SegmentDocument {
    dtype: String,
    name: String,
    shape: Vec<usize>,
}

fn one() -> usize {
    1
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_one(number: &usize) -> bool {
    *number == 1
}

#[derive(Deserialize)]
struct Version {
    format_version: u32,
}

pub(super) fn write(
    block_tokens: usize,
    groups: &[Group],
    ranks: usize,
    identity: &BTreeMap<String, String>,
) -> Result<String> {
    let document = GeometryDocument {
        block_tokens,
        format_version: FORMAT_VERSION,
        groups: groups.iter().map(group_document).collect(),
        identity: identity.clone(),
        ranks,
    };
    serde_json::to_string(&document).map_err(|error| {
        Error::geometry(Cause::new(
            format!("cannot be written as JSON: {error}"),
            error,
        ))
    })
}

/// Block size, groups, ranks and identity of a geometry, as [`write`] wrote them.
pub(super) type Parts = (usize, Vec<Group>, usize, BTreeMap<String, String>);

pub(super) fn read(text: &str) -> Result<Parts> {
    let malformed = |error| {
        Error::geometry(Cause::new(
            format!("JSON: expected a geometry, found {error}"),
            error,
        ))
    };
    // Another version may have other fields, so read the version first, and alone.
    let Version { format_version } = serde_json::from_str(text).map_err(malformed)?;
    if format_version != FORMAT_VERSION {
        return Err(Error::Foreign(format!(
            "geometry: expected format version {FORMAT_VERSION}, found {format_version}"
        )));
    }
    let document: GeometryDocument = serde_json::from_str(text).map_err(malformed)?;
    let groups = document.groups.into_iter().map(group);
    let groups = groups.collect::<Result<_>>()?;
    let (tokens, ranks) = (document.block_tokens, document.ranks);
    Ok((tokens, groups, ranks, document.identity))
}

fn group_document(group: &Group) -> GroupDocument {
    GroupDocument {
        blocks_per_entry: group.blocks_per_entry(),
        kind: kind_name(group.kind()).to_owned(),
        layers: group.layers().iter().map(layer_document).collect(),
        window_tokens: group.window_tokens(),
    }
}

fn layer_document(layer: &Layer) -> LayerDocument {
    let segment = |segment: &Segment| SegmentDocument {
        dtype: segment.dtype().name().to_owned(),
        name: segment.name().to_owned(),
        shape: segment.shape().to_vec(),
    };
    LayerDocument {
        name: layer.name().to_owned(),
        segments: layer.segments().iter().map(segment).collect(),
    }
}

fn group(document: GroupDocument) -> Result<Group> {
    let layers = document.layers.into_iter().map(layer);
    let layers = layers.collect::<Result<_>>()?;
    Group::new(parse_kind(&document.kind)?, layers, document.window_tokens)?
        .with_blocks_per_entry(document.blocks_per_entry)
}

fn layer(document: LayerDocument) -> Result<Layer> {
    let segments = document
        .segments
        .into_iter()
        .map(|segment| Segment::new(segment.name, Dtype::parse(&segment.dtype)?, segment.shape))
        .collect::<Result<_>>()?;
    Layer::new(document.name, segments)
}
