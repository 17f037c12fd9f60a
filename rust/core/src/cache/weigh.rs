//! Reading against computing: what comes from far away may take longer than to compute it again, or too long.

use std::time::Duration;

use super::state::State;
use crate::error::{Error, Result};
use crate::ids::{EntryId, NamespaceId, PrefixKey};
use crate::prefix::Cell;
use crate::slot::HOST;

impl State {
    pub(super) fn set_compute_rate(&mut self, rate: Option<f64>) -> Result<()> {
        if let Some(rate) = rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
            return Err(Error::InvalidArgument(format!(
                "blocks_per_second: expected a number above 0, found {rate}"
            )));
        }
        self.compute_rate = rate;
        Ok(())
    }

    /// How many leading blocks of a prompt to look for: all of them, unless reading the joint hit takes longer
    /// than the tiers allow, or than to compute what a hit without the tiers that are weighed lacks. The engine has
    /// the first `first` blocks, and what is before `from` is not read.
    pub(super) fn worth_reading(
        &mut self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
        from: usize,
    ) -> usize {
        let in_time = self.read_in_time(namespace, keys, first, from);
        let worth = self.worth_it(namespace, &keys[..in_time], first, from);
        self.restores.not_worth += u64::from(worth < keys.len());
        worth
    }

    /// So many leading blocks that what a hit reads of a tier comes before the tier gives it up.
    fn read_in_time(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
        from: usize,
    ) -> usize {
        let room = |tier: usize| Some((tier, self.below[tier - 1].tier.in_time()?));
        let rooms: Vec<(usize, u64)> = (1..=self.below.len()).filter_map(room).collect();
        let mut most = keys.len();
        while !rooms.is_empty() {
            let mut path = Vec::new();
            let hit = self
                .index
                .joint_hit(namespace, &keys[..most], Cell::is_whole, |node| {
                    path.push(node);
                });
            if hit.blocks <= first {
                break;
            }
            let used = self.stands_on(&path[..hit.blocks]);
            let reach = rooms.iter().filter_map(|&(tier, bytes)| {
                let mut room = bytes / self.slot_bytes().max(1);
                let read = used.iter().rev().filter(|&&(block, _)| block >= from);
                let mut read = read.filter(|&&(_, id)| self.source(id) == tier);
                let beyond = read.find(|&&(_, id)| {
                    let size = self.classes[self.entries.get(id).class].slots.into();
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

    fn worth_it(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        first: usize,
        from: usize,
    ) -> usize {
        let Some(rate) = self.compute_rate else {
            return keys.len();
        };
        let weighed = |tier: &usize| self.below[*tier - 1].tier.expects(1, 0).is_some();
        let weighed: Vec<usize> = (1..=self.below.len()).filter(weighed).collect();
        if weighed.is_empty() {
            return keys.len();
        }
        let mut path = Vec::new();
        let whole = self
            .index
            .joint_hit(namespace, keys, Cell::is_whole, |node| path.push(node));
        if whole.blocks <= first {
            return keys.len();
        }
        let used = self.stands_on(&path[..whole.blocks]);
        let read = used.iter().filter(|&&(block, _)| block >= from);
        let mut longest = Duration::ZERO;
        for &tier in &weighed {
            let of_it = read.clone().filter(|&&(_, id)| self.source(id) == tier);
            let sizes =
                of_it.map(|&(_, id)| u64::from(self.classes[self.entries.get(id).class].slots));
            let (entries, slots) = sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
            if entries > 0 {
                let bytes = slots * self.slot_bytes();
                let expected = self.below[tier - 1].tier.expects(entries, bytes);
                longest = longest.max(expected.unwrap_or_default());
            }
        }
        if longest.is_zero() {
            return keys.len();
        }
        let near = |cell: Cell| {
            let source = cell.entry().filter(|_| cell.is_whole());
            source.is_some_and(|id| !weighed.contains(&self.source(id)))
        };
        let without = self.index.joint_hit(namespace, keys, near, |_| ());
        let saved = whole.blocks - without.blocks.max(first);
        if saved as f64 / rate >= longest.as_secs_f64() {
            return keys.len();
        }
        without.blocks
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
