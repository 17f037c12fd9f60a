//! The network to a remote store and an engine's speed: the costs of fetching and of computing.

use hybrid_pages::error::Error;

use crate::error::Result;

/// The most bytes of a page or a checkpoint.
const MOST_BYTES: u64 = 1 << 40;

/// The network between an engine and a remote store, the sizes of entries, and the engine's speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NetworkLink {
    /// Seconds from a request to the first byte of its answer.
    pub latency: f64,
    /// Bytes per second between one engine and the store.
    pub bandwidth: f64,
    /// Bytes of the page of one block.
    pub page_bytes: u64,
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: u64,
    /// Prompt tokens that an engine computes per second.
    pub speed: f64,
}

/// Which entries engines upload to a remote store and fetch from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteUse {
    /// Uploads entries that a second request has passed, and fetches prefixes that are faster to fetch than to
    /// compute.
    Auto,
    /// Uploads everything that is published, and fetches everything that is found.
    All,
}

impl RemoteUse {
    /// Each choice with its name.
    pub const ALL: [(&'static str, Self); 2] = [("auto", Self::Auto), ("all", Self::All)];

    /// The name of the choice.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::All => "all",
        }
    }
}

impl NetworkLink {
    /// Rejects numbers that are out of range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the number's name.
    pub fn check(&self) -> Result<()> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let sizes = 1..=MOST_BYTES;
        let wrong = if !(self.latency.is_finite() && self.latency >= 0.0) {
            format!(
                "latency: expected seconds from 0 on, found {}",
                self.latency
            )
        } else if !positive(self.bandwidth) {
            let found = self.bandwidth;
            format!("bandwidth: expected bytes per second above 0, found {found}")
        } else if !positive(self.speed) {
            format!(
                "speed: expected tokens per second above 0, found {}",
                self.speed
            )
        } else if !sizes.contains(&self.page_bytes) || !sizes.contains(&self.checkpoint_bytes) {
            let (page, checkpoint) = (self.page_bytes, self.checkpoint_bytes);
            format!(
                "bytes of a page and of a checkpoint: expected 1 to {MOST_BYTES} each, found {page} and {checkpoint}"
            )
        } else {
            return Ok(());
        };
        Err(Error::InvalidArgument(wrong).into())
    }

    /// The least number of tokens of a prefix that is faster to fetch, with one checkpoint, than to compute; `None`
    /// if the network is too slow for any.
    #[must_use]
    pub fn break_even(&self, block_tokens: u64) -> Option<u64> {
        let page = self.page_bytes as f64 / block_tokens as f64 / self.bandwidth;
        let gain = 1.0 / self.speed - page;
        let tokens = self.fetch(self.checkpoint_bytes) / gain;
        // Larger results come from rounding errors of the gain.
        (gain > 0.0 && tokens < 1e15).then(|| tokens as u64 + 1)
    }

    /// Total bytes of these numbers of pages and checkpoints.
    pub(crate) const fn bytes(&self, pages: usize, checkpoints: usize) -> u64 {
        let pages = self.page_bytes.saturating_mul(pages as u64);
        pages.saturating_add(self.checkpoint_bytes.saturating_mul(checkpoints as u64))
    }

    /// Seconds that fetching `bytes` takes, with all requests under way at the same time.
    pub(crate) fn fetch(&self, bytes: u64) -> f64 {
        self.latency + bytes as f64 / self.bandwidth
    }

    /// Seconds that computing `tokens` takes.
    pub(crate) fn compute(&self, tokens: u64) -> f64 {
        tokens as f64 / self.speed
    }
}
