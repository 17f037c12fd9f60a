//! Policies to compare with those of the cache.
//!
//! | name | checkpoints it admits | what goes first |
//! |---|---|---|
//! | `page-lru` | every boundary | what was used longest ago |
//! | `align-lru` | the last boundary | what was used longest ago |
//! | `junction-lru` | the last boundary, and where the request leaves known pages | what was used longest ago |
//! | `marconi` | those of `junction-lru` | least recency plus efficiency: see [`Marconi`] |
//!
//! With these policies a request uses only the checkpoint that it resumes from. With the cache's `lru` it uses all
//! that it passes.

mod marconi;

use hybrid_pages::policy::{self, EntrySizes, Lru, Make, Placement, Policy, retaining};
use marconi::Marconi;

use crate::error::Result;

const COMPARED: [(&str, Make); 4] = [
    ("page-lru", |_| retaining(Lru::new(Placement::Every, false))),
    ("align-lru", |_| retaining(Lru::new(Placement::End, false))),
    ("junction-lru", |_| {
        retaining(Lru::new(Placement::Fork, false))
    }),
    ("marconi", |shape| retaining(Marconi::new(shape))),
];

/// Names of all policies, the cache's and the lab's. The first call makes the lab's available by name to all caches
/// of this process.
pub fn policies() -> &'static [&'static str] {
    policy::add(&COMPARED);
    &[
        "lru",
        "page-lru",
        "align-lru",
        "junction-lru",
        "marconi",
        "reuse",
    ]
}

/// The policy of an empty cache in which a page has size 1 and a checkpoint the ratio.
pub(crate) fn by_name(name: &str, ratio: u32) -> Result<Box<dyn Policy>> {
    policies();
    let sizes = EntrySizes {
        page: 1,
        window: 0,
        checkpoint: ratio,
    };
    Ok(policy::by_name(name, sizes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_cache_and_of_the_lab() {
        let added = COMPARED.iter().map(|&(name, _)| name);
        let mut names: Vec<&str> = policy::NAMES.iter().copied().chain(added).collect();
        let mut listed = policies().to_vec();
        names.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, names);
    }
}
