//! The state that all restores of a cache share.

use super::stats::RestoreStats;
use super::tier_pins::TierPins;
use super::transient::Transients;

/// The pins, reads and counts of restores, and what decides how much of a hit is read.
#[derive(Debug, Default)]
pub(super) struct Restoring {
    pub(super) pins: TierPins,
    pub(super) transients: Transients,
    pub(super) stats: RestoreStats,
    /// Blocks that the engine computes in a second, if that is known.
    pub(super) compute_rate: Option<f64>,
    /// Tokens of a block, if that is known.
    pub(super) block_tokens: Option<u32>,
}
