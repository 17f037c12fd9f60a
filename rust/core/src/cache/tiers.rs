//! The tiers of a cache, by number: the host is 0, those below it follow.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use hashbrown::HashMap;

use super::prefix_pins::PrefixPin;
use super::queries::Queries;
use super::stats::TierStats;
use crate::error::{Error, Result};
use crate::ids::NodeId;
use crate::slot::{EntryTable, Places};
use crate::tier::{Below, CopyEnd, Host, Room, Tier};

/// A tier below the host, with counts.
pub(super) struct LowerTier {
    pub(super) tier: Box<dyn Below>,
    /// Copies that have ended, and are to be ended here.
    pub(super) reported: VecDeque<CopyEnd>,
    /// Slots of the host whose bytes are waiting to be written to this tier, or are being written.
    pub(super) queued: u64,
    /// The blocks of reads that failed, by boundary and class. The tier may have these entries still, and is asked
    /// again.
    pub(super) unread: HashMap<(NodeId, usize), usize>,
    /// The last page of a prefix that is needed there while room is made.
    pub(super) prefix_pin: Option<PrefixPin>,
    /// The questions of lookups to this tier.
    pub(super) queries: Queries,
    pub(super) stats: TierStats,
}

impl LowerTier {
    fn new(tier: Box<dyn Below>) -> Self {
        let stats = TierStats {
            name: tier.name().to_owned(),
            ..TierStats::default()
        };
        Self {
            tier,
            reported: VecDeque::new(),
            queued: 0,
            unread: HashMap::new(),
            prefix_pin: None,
            queries: Queries::default(),
            stats,
        }
    }

    fn stats(&self) -> TierStats {
        TierStats {
            usage: self.tier.room().usage(),
            ..self.stats.clone()
        }
    }

    fn bytes(&self) -> usize {
        let kept = self.unread.allocation_size() + self.queries.bytes();
        size_of::<Self>() + self.tier.room().bytes() + kept
    }
}

/// The host and the tiers below it.
pub(super) struct Tiers {
    pub(super) host: Host,
    pub(super) below: Vec<LowerTier>,
    /// Tiers below that others share.
    shared: Places,
}

impl Tiers {
    /// Refuses more tiers, or more room in them, than entries can have names for.
    pub(super) fn new(host: Host, below: Vec<Box<dyn Below>>) -> Result<Self> {
        let mut tiers = Self {
            host,
            below: below.into_iter().map(LowerTier::new).collect(),
            shared: Places::NONE,
        };
        tiers.check()?;
        tiers.shared = tiers.those(|tier| tier.is_shared());
        Ok(tiers)
    }

    fn check(&self) -> Result<()> {
        if self.below.len() >= Places::MAX_TIERS {
            return Err(Error::InvalidArgument(format!(
                "tiers: expected at most {} below the host, found {}",
                Places::MAX_TIERS - 1,
                self.below.len()
            )));
        }
        let capacity = |lower: &LowerTier| u128::from(lower.tier.room().usage().capacity);
        let total = self.host.slots() as u128 + self.below.iter().map(capacity).sum::<u128>();
        if total > EntryTable::MAX_ENTRIES as u128 {
            return Err(Error::InvalidArgument(format!(
                "tiers: expected at most {} slots in all of them, the host included, found {total}",
                EntryTable::MAX_ENTRIES
            )));
        }
        Ok(())
    }

    /// Tiers below the host for which `is` is true.
    pub(super) fn those(&self, is: fn(&dyn Below) -> bool) -> Places {
        let tiers = self
            .below_host()
            .filter(|&tier| is(&*self.lower(tier).tier));
        tiers.fold(Places::NONE, |tiers, tier| tiers.with(Places::of(tier)))
    }

    /// Tiers below the host that others share.
    pub(super) const fn shared(&self) -> Places {
        self.shared
    }

    /// Numbers of the tiers below the host.
    pub(super) const fn below_host(&self) -> RangeInclusive<usize> {
        1..=self.below.len()
    }

    pub(super) const fn has_lower(&self) -> bool {
        !self.below.is_empty()
    }

    /// A tier below the host.
    pub(super) fn lower(&self, tier: usize) -> &LowerTier {
        &self.below[tier - 1]
    }

    /// A tier below the host, to change.
    pub(super) fn lower_mut(&mut self, tier: usize) -> &mut LowerTier {
        &mut self.below[tier - 1]
    }

    pub(super) fn room(&self, tier: usize) -> &Room {
        match tier.checked_sub(1) {
            None => self.host.room(),
            Some(below) => self.below[below].tier.room(),
        }
    }

    pub(super) fn room_mut(&mut self, tier: usize) -> &mut Room {
        match tier.checked_sub(1) {
            None => self.host.room_mut(),
            Some(below) => self.below[below].tier.room_mut(),
        }
    }

    pub(super) fn name(&self, tier: usize) -> String {
        match tier.checked_sub(1) {
            None => self.host.name().to_owned(),
            Some(below) => self.below[below].tier.name().to_owned(),
        }
    }

    /// Counts of the tiers below the host, in order.
    pub(super) fn stats(&self) -> Vec<TierStats> {
        self.below.iter().map(LowerTier::stats).collect()
    }

    /// The counts of the tiers below after a panic: zeros, by the names of the tiers.
    pub(super) fn when_closed(&self) -> Vec<TierStats> {
        let named = |lower: &LowerTier| TierStats {
            name: lower.tier.name().to_owned(),
            ..TierStats::default()
        };
        self.below.iter().map(named).collect()
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.host.bytes() + self.below.iter().map(LowerTier::bytes).sum::<usize>()
    }
}
