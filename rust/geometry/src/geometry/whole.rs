//! A whole geometry: its groups, their classes, and how they are cut into slots.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

use super::checks::{check_count, check_unique};
use super::class::{PageClass, classify};
use super::fingerprint::Fingerprint;
use super::group::{Group, Layer};
use super::json;

/// Groups, their layers and all else that an engine's bytes depend on. Geometries are equal if their fingerprints are.
#[derive(Debug, Clone)]
pub struct Geometry {
    block_tokens: usize,
    ranks: usize,
    groups: Vec<Group>,
    classes: Vec<PageClass>,
    identity: BTreeMap<String, String>,
    canonical: String,
    fingerprint: Fingerprint,
}

impl Geometry {
    /// The most groups that a geometry may have.
    pub const MAX_GROUPS: usize = 64;
    /// The most tensor-parallel ranks.
    pub const MAX_RANKS: usize = 1024;
    /// Smallest part of a slot, in a rank's plane, that [`Geometry::suggest_slot_bytes`] proposes.
    pub const MIN_SUGGESTED_SLOT: usize = 512;
    /// Largest part of a slot, in a rank's plane, that [`Geometry::suggest_slot_bytes`] proposes.
    pub const MAX_SUGGESTED_SLOT: usize = 2 << 20;

    /// A geometry whose layers' names are unique. `identity` names whatever else the bytes
    /// depend on: model, revision, layout, backend.
    ///
    /// # Errors
    /// [`Error::Geometry`] saying which number or name is impossible.
    pub fn new(
        block_tokens: usize,
        groups: Vec<Group>,
        ranks: usize,
        identity: BTreeMap<String, String>,
    ) -> Result<Self> {
        if block_tokens == 0 {
            return Err(Error::geometry(
                "block_tokens: expected at least 1, found 0",
            ));
        }
        check_count("geometry", "ranks", ranks, Self::MAX_RANKS)?;
        check_count("geometry", "groups", groups.len(), Self::MAX_GROUPS)?;
        let layers = groups.iter().flat_map(Group::layers);
        check_unique("geometry: layer", layers.map(Layer::name))?;
        if identity.contains_key("") {
            return Err(Error::geometry(
                "identity: expected named keys, found an empty one",
            ));
        }
        let classes = classify(&groups, block_tokens, ranks)?;
        let canonical = json::write(block_tokens, &groups, ranks, &identity)?;
        let fingerprint = Fingerprint::of(&canonical);
        Ok(Self {
            block_tokens,
            ranks,
            groups,
            classes,
            identity,
            canonical,
            fingerprint,
        })
    }

    /// Tokens in a block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Tensor-parallel ranks, each holding the same number of an entry's bytes.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The groups as given.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The classes that exist: attention first, then windows from the narrowest, then recurrent.
    pub fn classes(&self) -> &[PageClass] {
        &self.classes
    }

    /// The class with this index.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is none.
    pub fn class(&self, index: usize) -> Result<&PageClass> {
        self.classes.get(index).ok_or_else(|| {
            Error::InvalidArgument(format!(
                "class: expected an index below {}, found {index}",
                self.classes.len()
            ))
        })
    }

    /// Other things that the bytes depend on, by name.
    pub fn identity(&self) -> &BTreeMap<String, String> {
        &self.identity
    }

    /// Digest of the geometry and the format version.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// The geometry as canonical JSON: the same text for equal geometries.
    pub fn to_json(&self) -> &str {
        &self.canonical
    }

    /// Reads a geometry from the text of [`Geometry::to_json`].
    ///
    /// # Errors
    /// [`Error::Geometry`] on anything malformed, [`Error::Foreign`] on another format version.
    pub fn from_json(text: &str) -> Result<Self> {
        let (block_tokens, groups, ranks, identity) = json::read(text)?;
        Self::new(block_tokens, groups, ranks, identity)
    }

    /// The bytes that a slot of `slot_bytes` bytes has in each rank's plane.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on empty slots, or slots that the ranks can't share equally.
    pub fn rank_slot_bytes(&self, slot_bytes: usize) -> Result<usize> {
        if slot_bytes == 0 || !slot_bytes.is_multiple_of(self.ranks) {
            return Err(Error::InvalidArgument(format!(
                "slot_bytes: expected a multiple of the number of ranks, {}, found {slot_bytes}",
                self.ranks
            )));
        }
        Ok(slot_bytes / self.ranks)
    }

    /// Slots that one entry of a class takes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on an unknown class, empty slots, or slots that the ranks can't share
    /// equally.
    pub fn slots_per_entry(&self, class_index: usize, slot_bytes: usize) -> Result<usize> {
        let class = self.class(class_index)?;
        Ok(class.rank_bytes.div_ceil(self.rank_slot_bytes(slot_bytes)?))
    }

    /// Suggests the bytes of a slot, all ranks together. The part in each rank's plane is the largest power of two with
    /// which rounding wastes at most 1/64 of one entry of each class.
    pub fn suggest_slot_bytes(&self) -> usize {
        let shards = || self.classes.iter().map(|class| class.rank_bytes);
        let used: u128 = shards().map(|bytes| bytes as u128).sum();
        let wasted = |slot: usize| -> u128 {
            let rounding = |bytes: usize| (bytes.next_multiple_of(slot) - bytes) as u128;
            shards().map(rounding).sum()
        };
        let mut slot = Self::MAX_SUGGESTED_SLOT;
        while slot > Self::MIN_SUGGESTED_SLOT && wasted(slot) * 64 > used {
            slot /= 2;
        }
        slot * self.ranks
    }
}

impl PartialEq for Geometry {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for Geometry {}
