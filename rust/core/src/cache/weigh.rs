//! Reading against computing: what comes from far away may take longer than to compute it again.

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
    /// than to compute what a hit without the tiers that are weighed lacks. The engine has the first `first`
    /// blocks, and what is before `from` is not read.
    pub(super) fn worth_reading(
        &mut self,
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
        self.restores.not_worth += 1;
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
