//! Decides how much of a hit is worth reading: reads from far away may take longer than computing again, or longer than
//! their tier allows.

use std::time::Duration;

use super::super::state::CacheState;
use crate::error::{Error, Result};
use crate::ids::{EntryId, NamespaceId, PrefixKey};
use crate::prefix::IndexCell;
use crate::slot::HOST;

impl CacheState {
    pub(crate) fn set_compute_rate(&mut self, rate: Option<f64>) -> Result<()> {
        if let Some(rate) = rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
            return Err(Error::InvalidArgument(format!(
                "blocks_per_second: expected a number above 0, found {rate}"
            )));
        }
        self.restoring.compute_rate = rate;
        Ok(())
    }

    pub(crate) fn set_block_tokens(&mut self, tokens: u32) -> Result<()> {
        if tokens == 0 {
            return Err(Error::InvalidArgument(
                "block_tokens: expected at least 1, found 0".into(),
            ));
        }
        self.restoring.block_tokens = Some(tokens);
        Ok(())
    }

    /// How many leading blocks of a prompt to look for: all, unless reading the joint hit takes longer than the tiers
    /// allow, or longer than computing what would be missing without the tiers that are weighed. The engine has the
    /// first `first` blocks, and nothing before `from` is read.
    pub(super) fn affordable_blocks(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
        from: usize,
    ) -> usize {
        let in_time = self.blocks_in_time(namespace, keys, first, from);
        let affordable = self.blocks_above_break_even(namespace, &keys[..in_time], first, from);
        self.restoring.stats.not_worth += u64::from(affordable < keys.len());
        affordable
    }

    /// The most leading blocks that each tier can read for a hit before it gives the reads up.
    fn blocks_in_time(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
        from: usize,
    ) -> usize {
        let room = |tier: usize| Some((tier, self.tiers.lower(tier).tier.in_time()?));
        let rooms: Vec<(usize, u64)> = (self.tiers.below_host()).filter_map(room).collect();
        let mut most = keys.len();
        while !rooms.is_empty() {
            let mut path = Vec::new();
            let hit = self
                .index
                .joint_hit(namespace, &keys[..most], IndexCell::is_whole, |node| {
                    path.push(node);
                });
            if hit.blocks <= first {
                break;
            }
            let needed = self.needed_for(&path[..hit.blocks]);
            let reach = rooms.iter().filter_map(|&(tier, bytes)| {
                let mut room = bytes / self.classes.slot_bytes().max(1);
                let read = needed.iter().rev().filter(|&&(block, _)| block >= from);
                let mut read = read.filter(|&&(_, id)| self.source(id) == tier);
                let beyond = read.find(|&&(_, id)| {
                    let size = self.size(id).into();
                    let fits = size <= room;
                    room = room.saturating_sub(size);
                    !fits
                });
                beyond.map(|&(block, _)| block)
            });
            let Some(reach) = reach.min() else {
                break;
            };
            most = reach.min(hit.blocks - 1);
        }
        most
    }

    /// All blocks; or only those of the hit without the tiers that are weighed, if reading from these tiers takes
    /// longer than computing what the reads save.
    fn blocks_above_break_even(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
        from: usize,
    ) -> usize {
        let Some(rate) = self.restoring.compute_rate else {
            return keys.len();
        };
        let weighed = |tier: &usize| self.tiers.lower(*tier).tier.expects(1, 0).is_some();
        let weighed: Vec<usize> = (self.tiers.below_host()).filter(weighed).collect();
        if weighed.is_empty() {
            return keys.len();
        }
        let mut path = Vec::new();
        let whole = self
            .index
            .joint_hit(namespace, keys, IndexCell::is_whole, |node| path.push(node));
        if whole.blocks <= first {
            return keys.len();
        }
        let needed = self.needed_for(&path[..whole.blocks]);
        let read = needed.iter().filter(|&&(block, _)| block >= from);
        let mut longest = Duration::ZERO;
        for &tier in &weighed {
            let of_it = read.clone().filter(|&&(_, id)| self.source(id) == tier);
            let sizes = of_it.map(|&(_, id)| u64::from(self.size(id)));
            let (entries, slots) = sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
            if entries > 0 {
                let bytes = slots * self.classes.slot_bytes();
                let expected = self.tiers.lower(tier).tier.expects(entries, bytes);
                longest = longest.max(expected.unwrap_or_default());
            }
        }
        if longest.is_zero() {
            return keys.len();
        }
        let near = |cell: IndexCell| {
            let source = cell.entry().filter(|_| cell.is_whole());
            source.is_some_and(|id| !weighed.contains(&self.source(id)))
        };
        let without = self.index.joint_hit(namespace, keys, near, |_| ());
        let saved = (whole.blocks - without.blocks.max(first)) as f64;
        let saved = saved - self.part_beyond(&keys[whole.blocks - 1]);
        if saved / rate >= longest.as_secs_f64() {
            return keys.len();
        }
        without.blocks
    }

    /// The part of a block that lies beyond the tail with this key.
    fn part_beyond(&self, key: &PrefixKey) -> f64 {
        let tokens = key.tail_tokens().zip(self.restoring.block_tokens);
        tokens.map_or(0.0, |(tail, block)| {
            1.0 - f64::from(tail.min(block)) / f64::from(block)
        })
    }

    /// The tier that a whole entry is taken from: the host, if it is there or about to be.
    fn source(&self, id: EntryId) -> usize {
        let entry = self.entries.get(id);
        if entry.slots.is_some() {
            return HOST;
        }
        entry.places.tiers().next().unwrap_or(HOST)
    }
}
