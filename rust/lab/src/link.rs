//! The way to a remote store: what fetching costs against computing.

use hybrid_pages::error::Error;

use crate::error::Result;

/// Most bytes of a page and of a checkpoint.
const MOST_BYTES: u64 = 1 << 40;

/// Bytes per second, tokens per second, and how many bytes there are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
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

/// What is uploaded and fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Up goes what a second request has passed; down comes what is faster to fetch than to compute.
    Auto,
    /// Everything that is published goes up, everything that is found comes down.
    All,
}

impl Admit {
    /// Both, with their names.
    pub const ALL: [(&'static str, Self); 2] = [("auto", Self::Auto), ("all", Self::All)];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::All => "all",
        }
    }
}

impl Link {
    /// Rejects numbers that no link has.
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

    /// Least tokens of a prefix that are faster to fetch, with one checkpoint, than to compute; `None` if the
    /// network is so slow that none are.
    #[must_use]
    pub fn break_even(&self, block_tokens: u64) -> Option<u64> {
        let page = self.page_bytes as f64 / block_tokens as f64 / self.bandwidth;
        let gain = 1.0 / self.speed - page;
        let tokens = self.fetch(self.checkpoint_bytes) / gain;
        // Beyond this it is a rounding error of the gain.
        (gain > 0.0 && tokens < 1e15).then(|| tokens as u64 + 1)
    }

    /// Bytes of so many entries.
    pub(crate) const fn bytes(&self, pages: usize, checkpoints: usize) -> u64 {
        let pages = self.page_bytes.saturating_mul(pages as u64);
        pages.saturating_add(self.checkpoint_bytes.saturating_mul(checkpoints as u64))
    }

    /// Seconds that fetching takes; its requests are under way together.
    pub(crate) fn fetch(&self, bytes: u64) -> f64 {
        self.latency + bytes as f64 / self.bandwidth
    }

    /// Seconds that computing takes.
    pub(crate) fn compute(&self, tokens: u64) -> f64 {
        tokens as f64 / self.speed
    }
}
