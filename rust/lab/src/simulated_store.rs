//! A remote store below the host of one replay. It is unbounded, so it has no policy.

use crate::counted_tier::CountedTier;
use crate::network::{NetworkLink, RemoteUse};

/// The traffic between a host and a remote store, and the time that it saved.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RemoteTraffic {
    /// Tokens that requests resumed over and that the host alone would not have found.
    pub hit_tokens: u64,
    /// Tokens that the store had and the host lacked, in prefixes that are slower to fetch than to compute. They are
    /// fetched only with [`RemoteUse::All`], at a loss.
    pub slow_tokens: u64,
    /// Bytes to the store.
    pub up_bytes: u64,
    /// Bytes from the store.
    pub down_bytes: u64,
    /// Seconds of computing that fetching saved, minus the seconds that it took.
    pub saved_seconds: f64,
}

pub(crate) struct SimulatedStore {
    link: NetworkLink,
    admit: RemoteUse,
    pages: Vec<bool>,
    checkpoints: Vec<bool>,
    /// Whether a request has passed each block.
    passed: Vec<bool>,
    pub(crate) traffic: RemoteTraffic,
}

impl SimulatedStore {
    pub(crate) fn new(boundaries: usize, link: NetworkLink, admit: RemoteUse) -> Self {
        let none = vec![false; boundaries];
        Self {
            link,
            admit,
            pages: none.clone(),
            checkpoints: none.clone(),
            passed: none,
            traffic: RemoteTraffic::default(),
        }
    }

    pub(crate) fn has_page(&self, at: u32) -> bool {
        self.pages[at as usize]
    }

    pub(crate) fn has_checkpoint(&self, at: u32) -> bool {
        self.checkpoints[at as usize]
    }

    /// Decides whether to fetch the part of a path that the host lacks, or to compute its `tokens`.
    pub(crate) fn fetch(&mut self, path: &[u32], tokens: u64, host: &CountedTier<'_>) -> bool {
        let pages = path.iter().filter(|&&at| !host.has_page(at)).count();
        let last = path.last().filter(|&&at| !host.has_checkpoint(at));
        let bytes = self.link.bytes(pages, usize::from(last.is_some()));
        let saved = self.link.compute(tokens) - self.link.fetch(bytes);
        if saved <= 0.0 {
            self.traffic.slow_tokens += tokens;
            if self.admit == RemoteUse::Auto {
                return false;
            }
        }
        self.traffic.hit_tokens += tokens;
        self.traffic.down_bytes = self.traffic.down_bytes.saturating_add(bytes);
        self.traffic.saved_seconds += saved;
        true
    }

    /// Offers the host's entries of a path: pages, the checkpoint that was resumed from, and new checkpoints.
    pub(crate) fn write_behind(
        &mut self,
        path: &[u32],
        resumed: usize,
        new: &[usize],
        host: &CountedTier<'_>,
    ) {
        for (depth, &at) in (1..).zip(path) {
            let index = at as usize;
            if self.admit == RemoteUse::Auto && !self.passed[index] {
                break;
            }
            let used = depth == resumed || new.contains(&depth);
            let page = !std::mem::replace(&mut self.pages[index], true);
            let checkpoint = used
                && host.has_checkpoint(at)
                && !std::mem::replace(&mut self.checkpoints[index], true);
            let bytes = self.link.bytes(usize::from(page), usize::from(checkpoint));
            self.traffic.up_bytes = self.traffic.up_bytes.saturating_add(bytes);
        }
    }

    /// Notes that a request with this path has run.
    pub(crate) fn pass(&mut self, path: &[u32]) {
        path.iter().for_each(|&at| self.passed[at as usize] = true);
    }
}
