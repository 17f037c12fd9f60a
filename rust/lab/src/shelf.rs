//! A remote store below the host of one replay: unbounded, so it has no policy.

use crate::level::Level;
use crate::link::{Admit, Link};

/// What crossed the network, and what that was worth.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Crossed {
    /// Tokens that were resumed over and that the host alone would not have found.
    pub hit_tokens: u64,
    /// Tokens that the store had beyond the host in prefixes that are slower to fetch than to compute. They are
    /// not fetched, or, by [`Admit::All`], fetched at a loss.
    pub slow_tokens: u64,
    /// Bytes to the store.
    pub up_bytes: u64,
    /// Bytes from the store.
    pub down_bytes: u64,
    /// Seconds that computing what was fetched would have taken, less those that fetching took.
    pub saved_seconds: f64,
}

pub(crate) struct Shelf {
    link: Link,
    admit: Admit,
    pages: Vec<bool>,
    checkpoints: Vec<bool>,
    /// Boundaries that a request has passed.
    passed: Vec<bool>,
    pub(crate) crossed: Crossed,
}

impl Shelf {
    pub(crate) fn new(boundaries: usize, link: Link, admit: Admit) -> Self {
        let none = vec![false; boundaries];
        Self {
            link,
            admit,
            pages: none.clone(),
            checkpoints: none.clone(),
            passed: none,
            crossed: Crossed::default(),
        }
    }

    pub(crate) fn has_page(&self, at: u32) -> bool {
        self.pages[at as usize]
    }

    pub(crate) fn has_checkpoint(&self, at: u32) -> bool {
        self.checkpoints[at as usize]
    }

    /// Whether a path that the host lacks a part of comes from here, and not from computing so many tokens.
    pub(crate) fn fetch(&mut self, path: &[u32], tokens: u64, host: &Level<'_>) -> bool {
        let pages = path.iter().filter(|&&at| !host.has_page(at)).count();
        let last = path.last().filter(|&&at| !host.has_checkpoint(at));
        let bytes = self.link.bytes(pages, usize::from(last.is_some()));
        let saved = self.link.compute(tokens) - self.link.fetch(bytes);
        if saved <= 0.0 {
            self.crossed.slow_tokens += tokens;
            if self.admit == Admit::Auto {
                return false;
            }
        }
        self.crossed.hit_tokens += tokens;
        self.crossed.down_bytes = self.crossed.down_bytes.saturating_add(bytes);
        self.crossed.saved_seconds += saved;
        true
    }

    /// Offers a path that the host has: its pages, the checkpoint that was resumed from and the new ones.
    pub(crate) fn write_behind(
        &mut self,
        path: &[u32],
        resumed: usize,
        new: &[usize],
        host: &Level<'_>,
    ) {
        for (depth, &at) in (1..).zip(path) {
            let index = at as usize;
            if self.admit == Admit::Auto && !self.passed[index] {
                break;
            }
            let used = depth == resumed || new.contains(&depth);
            let page = !std::mem::replace(&mut self.pages[index], true);
            let checkpoint = used
                && host.has_checkpoint(at)
                && !std::mem::replace(&mut self.checkpoints[index], true);
            let bytes = self.link.bytes(usize::from(page), usize::from(checkpoint));
            self.crossed.up_bytes = self.crossed.up_bytes.saturating_add(bytes);
        }
    }

    /// A request with this path has run.
    pub(crate) fn pass(&mut self, path: &[u32]) {
        path.iter().for_each(|&at| self.passed[at as usize] = true);
    }
}
