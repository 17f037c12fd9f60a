//! Sets of tiers.

/// Number of the host among the tiers; those below it follow in order.
pub(crate) const HOST: usize = 0;

/// A set of tiers, by number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Places(u8);

impl Places {
    /// No tier.
    pub(crate) const NONE: Self = Self(0);
    /// The host.
    pub(crate) const HOST: Self = Self::of(HOST);
    /// Every tier below the host.
    pub(crate) const BELOW: Self = Self(!Self::HOST.0);
    /// Every tier.
    pub(crate) const ALL: Self = Self(!0);
    /// Most tiers, the host included.
    pub(crate) const MAX_TIERS: usize = u8::BITS as usize;

    /// One tier.
    pub(crate) const fn of(tier: usize) -> Self {
        Self(1 << tier)
    }

    #[inline]
    pub(crate) const fn has(self, tier: usize) -> bool {
        self.0 & Self::of(tier).0 != 0
    }

    #[inline]
    pub(crate) const fn in_host(self) -> bool {
        self.has(HOST)
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Tiers that are in both sets.
    #[inline]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[inline]
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline]
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The numbers of the tiers, the host first.
    #[inline]
    pub(crate) fn tiers(self) -> impl Iterator<Item = usize> {
        let rest = |set: u8| (set != 0).then_some(set);
        std::iter::successors(rest(self.0), move |&set| rest(set & (set - 1)))
            .map(|set| set.trailing_zeros() as usize)
    }
}
