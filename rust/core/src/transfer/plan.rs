//! Plans: entries resolved to pieces of engine memory and slots.

use std::ops::Range;

use hashbrown::HashSet;

use crate::error::{Error, Result};
use crate::ids::SlotId;

use super::layout::TransferLayout;
use super::region::SlotMemory;
use super::span::Span;
use hybrid_pages_tiles::TILE_BYTES;

/// Which way bytes move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the engine's memory to slots.
    Store,
    /// From slots to the engine's memory.
    Load,
}

/// One page or checkpoint to be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryCopy {
    /// Index of the class in the geometry.
    pub class: usize,
    /// The slots of the payload, in order.
    pub slots: Vec<SlotId>,
    /// The engine's blocks: of each group of the class, in order, as many as
    /// [`Group::blocks_per_entry`](crate::geometry::Group::blocks_per_entry) says. A load leaves out the
    /// bytes of a block that is `None`. A store may lack the blocks that lie behind its `tokens`.
    pub blocks: Vec<Option<usize>>,
    /// For a load: the checksum that this rank's shard must have; `None` if it is not verified.
    pub checksum: Option<u64>,
    /// For a store of a page: how many of its tokens there are, counted from its start; `None` for all. What lies
    /// behind them is never read: zeros are written to the slots in its place, and hashed.
    pub tokens: Option<usize>,
}

/// One copy of adjacent bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Address in the engine's memory.
    pub engine: *mut u8,
    /// Address in the arena.
    pub arena: *mut u8,
    /// Number of bytes.
    pub length: usize,
}

/// A [`Piece`], bytes of a shard that a load leaves out, or zeros of a store.
pub(super) struct Cut {
    /// Address in the engine's memory; `None` for bytes that are left out, and for zeros. Then there are at most
    /// [`TILE_BYTES`].
    pub(super) engine: Option<*mut u8>,
    /// Address in the arena.
    pub(super) arena: *mut u8,
    /// Number of bytes.
    pub(super) length: usize,
}

/// Entries that were checked against a layout and an arena: every piece lies inside both.
#[derive(Debug)]
pub struct Plan {
    direction: Direction,
    entries: Vec<EntryCopy>,
    /// The bytes of each entry that has not all of its tokens, by its index.
    parts: Vec<(usize, Vec<Span>)>,
}

impl Plan {
    /// Checks every index and count; nothing has moved when it fails.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the first entry that is wrong, and how.
    pub fn new(
        layout: &TransferLayout,
        memory: &SlotMemory,
        direction: Direction,
        entries: Vec<EntryCopy>,
    ) -> Result<Self> {
        let (mut written, mut parts) = (HashSet::new(), Vec::new());
        for (index, entry) in entries.iter().enumerate() {
            let checked = check(layout, memory, direction, entry, &mut written);
            let spans = checked.and_then(|()| match entry.tokens {
                Some(tokens) => layout.spans_of_tokens(entry.class, tokens).map(Some),
                None => Ok(None),
            });
            let spans = spans.map_err(|error| match error {
                Error::InvalidArgument(what) => {
                    Error::InvalidArgument(format!("entry {index}: {what}"))
                }
                other => other,
            })?;
            parts.extend(spans.map(|spans| (index, spans)));
        }
        Ok(Self {
            direction,
            entries,
            parts,
        })
    }

    /// Which way the bytes of the plan move.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The entries that the plan moves.
    #[must_use]
    pub fn entries(&self) -> &[EntryCopy] {
        &self.entries
    }

    /// The number of bytes that the plan moves. It must be a plan of this layout.
    #[must_use]
    pub fn bytes(&self, layout: &TransferLayout) -> usize {
        let of_entry = |(index, entry): (usize, &EntryCopy)| {
            let spans = self.part(index).unwrap_or(layout.spans(entry.class));
            let moved = spans
                .iter()
                .filter(|span| entry.blocks[span.block].is_some());
            moved.map(|span| span.length).sum::<usize>()
        };
        self.entries.iter().enumerate().map(of_entry).sum()
    }

    /// The bytes of an entry that has not all of its tokens, in payload order; `None` if it has.
    #[must_use]
    pub fn part(&self, entry: usize) -> Option<&[Span]> {
        let index = self.parts.binary_search_by_key(&entry, |part| part.0);
        index.ok().map(|index| &*self.parts[index].1)
    }

    /// The copies of a range of this rank's shard of one entry, in payload order, without zeros. It must be a plan of
    /// this layout and memory.
    pub fn pieces<'a>(
        &'a self,
        layout: &'a TransferLayout,
        memory: &'a SlotMemory,
        entry: usize,
        range: Range<usize>,
    ) -> impl Iterator<Item = Piece> + 'a {
        let piece = |cut: Cut| {
            Some(Piece {
                engine: cut.engine?,
                arena: cut.arena,
                length: cut.length,
            })
        };
        self.cuts(layout, memory, entry, range).filter_map(piece)
    }

    /// The [`pieces`](Self::pieces) of a range, and what lies in between: bytes that a load leaves out, or zeros.
    pub(super) fn cuts<'a>(
        &'a self,
        layout: &'a TransferLayout,
        memory: &'a SlotMemory,
        entry: usize,
        range: Range<usize>,
    ) -> impl Iterator<Item = Cut> + 'a {
        let EntryCopy { class, blocks, .. } = &self.entries[entry];
        let spans = self.part(entry).unwrap_or(layout.spans(*class));
        let mut current = spans.partition_point(|span| span.end() <= range.start);
        let mut stretches = self.stretches(memory, entry, range);
        let mut rest = Stretch {
            position: 0,
            arena: std::ptr::null_mut(),
            length: 0,
        };
        std::iter::from_fn(move || {
            if rest.length == 0 {
                rest = stretches.next()?;
            }
            if spans
                .get(current)
                .is_some_and(|span| span.end() == rest.position)
            {
                current += 1;
            }
            let (engine, length) = match spans.get(current) {
                Some(span) if span.start <= rest.position => {
                    let skip = rest.position - span.start;
                    let engine =
                        blocks[span.block].map(|block| span.in_block(block).wrapping_add(skip));
                    (engine, span.length - skip)
                }
                zeros => {
                    let end = zeros.map_or(usize::MAX, |next| next.start);
                    (None, TILE_BYTES.min(end - rest.position))
                }
            };
            let length = length.min(rest.length);
            let cut = Cut {
                engine,
                arena: rest.arena,
                length,
            };
            rest.position += length;
            rest.arena = rest.arena.wrapping_add(length);
            rest.length -= length;
            Some(cut)
        })
    }

    /// The arena's side of a range of this rank's shard of one entry: runs of slots that follow
    /// each other are one stretch.
    pub fn stretches<'a>(
        &'a self,
        memory: &'a SlotMemory,
        entry: usize,
        range: Range<usize>,
    ) -> impl Iterator<Item = Stretch> + 'a {
        let slots = &self.entries[entry].slots;
        let slot_bytes = memory.slot_bytes();
        let mut position = range.start;
        std::iter::from_fn(move || {
            if position >= range.end {
                return None;
            }
            let needed = range.end - position;
            let (mut slot, skip) = (position / slot_bytes, position % slot_bytes);
            let offset = slots[slot].0 as usize * slot_bytes + skip;
            let mut length = slot_bytes - skip;
            while length < needed && slots[slot + 1].0.checked_sub(1) == Some(slots[slot].0) {
                slot += 1;
                length += slot_bytes;
            }
            let length = length.min(needed);
            let stretch = Stretch {
                position,
                arena: memory.region().at(offset),
                length,
            };
            position += length;
            Some(stretch)
        })
    }
}

/// Adjacent bytes of an arena, and where in the rank's shard they belong.
#[derive(Debug, Clone, Copy)]
pub struct Stretch {
    /// Position in the rank's shard.
    pub position: usize,
    /// Address in the arena.
    pub arena: *mut u8,
    /// Number of bytes.
    pub length: usize,
}

/// Checks an entry of a plan. `written` collects what earlier entries of the plan write: slots of a store, blocks of
/// groups of a load.
fn check(
    layout: &TransferLayout,
    memory: &SlotMemory,
    direction: Direction,
    entry: &EntryCopy,
    written: &mut HashSet<(usize, usize)>,
) -> Result<()> {
    let reject = |what: String| Err(Error::InvalidArgument(what));
    let class = layout.geometry().class(entry.class)?;
    let needed = class.rank_bytes.div_ceil(memory.slot_bytes());
    if entry.slots.len() != needed {
        return reject(format!(
            "slots: expected {needed}, found {}",
            entry.slots.len()
        ));
    }
    if let Some(SlotId(slot)) = entry.slots.iter().find(|s| s.0 as usize >= memory.slots()) {
        return reject(format!(
            "slot: expected below {}, found {slot}",
            memory.slots()
        ));
    }
    let groups = layout.geometry().groups();
    let blocks_of = |group: &usize| groups[*group].blocks_per_entry();
    let expected: usize = class.groups.iter().map(blocks_of).sum();
    if entry.blocks.len() != expected {
        let part = |group: &usize| format!("{} of group {group}", blocks_of(group));
        let parts: Vec<_> = class.groups.iter().map(part).collect();
        return reject(format!(
            "blocks: expected {expected} ({}), found {}",
            parts.join(", "),
            entry.blocks.len()
        ));
    }
    if direction == Direction::Store {
        let tokens = entry.tokens.unwrap_or(usize::MAX);
        let mut blocks = layout.blocks(entry.class).zip(&entry.blocks);
        if blocks.any(|(at, block)| block.is_none() && at.tokens_before < tokens) {
            return reject(
                "blocks: a store needs every block that has tokens, found one left out".into(),
            );
        }
    } else if let Some(tokens) = entry.tokens {
        return reject(format!(
            "tokens: a load copies whole pages, expected none, found {tokens}"
        ));
    }
    let blocks = layout.blocks(entry.class).zip(&entry.blocks);
    let targets = blocks.filter_map(|(at, block)| Some((at.group, (*block)?)));
    let mut beyond = targets.clone();
    if let Some((group, block)) = beyond.find(|&(group, block)| block >= layout.num_blocks()[group])
    {
        return reject(format!(
            "block of group {group}: expected below {}, found {block}",
            layout.num_blocks()[group]
        ));
    }
    match direction {
        Direction::Store => {
            if entry.checksum.is_some() {
                return reject("checksum: a store computes it, expected none".into());
            }
            let mut slots = entry.slots.iter();
            if let Some(SlotId(slot)) = slots.find(|s| !written.insert((0, s.0 as usize))) {
                return reject(format!(
                    "slot {slot}: expected once in a store, found twice"
                ));
            }
        }
        Direction::Load => {
            let mut slots = HashSet::with_capacity(entry.slots.len());
            if let Some(SlotId(slot)) = entry.slots.iter().find(|slot| !slots.insert(**slot)) {
                return reject(format!(
                    "slot {slot}: expected once in an entry, found twice"
                ));
            }
            let mut targets = targets;
            if let Some((group, block)) = targets.find(|target| !written.insert(*target)) {
                return reject(format!(
                    "block {block} of group {group}: expected once in a load, found twice"
                ));
            }
        }
    }
    Ok(())
}
