//! Policies by name: those of this crate, and those that other crates add.

use std::sync::Mutex;

use super::lru::{Lru, Placement};
use super::retain::Retaining;
use super::reuse::Reuse;
use super::{EntrySizes, Policy};
use crate::error::{Error, Result};
use crate::guarded::lock;

/// Names of the policies of this crate, as [`by_name`] takes them.
pub const NAMES: &[&str] = &["lru", "reuse"];

/// Makes the policy of an empty cache whose entries have these sizes.
pub type Make = fn(EntrySizes) -> Box<dyn Policy>;

/// Policies that other crates have added.
static ADDED: Mutex<Vec<(&str, Make)>> = Mutex::new(Vec::new());

/// Adds policies, in this process, to those that [`by_name`] knows. A name that it knows already is left as it is.
pub fn add(policies: &[(&'static str, Make)]) {
    let mut added = lock(&ADDED);
    for &(name, make) in policies {
        if !NAMES.contains(&name) && added.iter().all(|&(known, _)| known != name) {
            added.push((name, make));
        }
    }
}

/// A policy that keeps what requests ask to retain until their time is over, and otherwise does as the given one.
/// [`by_name`] returns only such policies.
pub fn retaining(policy: impl Policy + 'static) -> Box<dyn Policy> {
    Box::new(Retaining::new(policy))
}

/// Makes the policy of an empty cache. `reuse` weighs checkpoints with the pages above them. Where there are no
/// checkpoints, or window pages without attention pages, `reuse` evicts what was used longest ago, and admits
/// checkpoints at the end of a request and where the request leaves known pages.
///
/// # Errors
/// [`Error::InvalidArgument`] for a name that is neither in [`NAMES`] nor [added](add).
pub fn by_name(name: &str, shape: EntrySizes) -> Result<Box<dyn Policy>> {
    match name {
        "lru" => return Ok(retaining(Lru::new(Placement::Every, true))),
        "reuse" if shape.checkpoint > 0 && (shape.page > 0 || shape.window == 0) => {
            return Ok(retaining(Reuse::new(shape)));
        }
        "reuse" => return Ok(retaining(Lru::new(Placement::Fork, false))),
        _ => {}
    }
    let added = lock(&ADDED).clone();
    let found = added.iter().find(|&&(known, _)| known == name);
    found.map(|&(_, make)| make(shape)).ok_or_else(|| {
        let added = added.iter().map(|&(known, _)| known);
        let mut names: Vec<&str> = NAMES.iter().copied().chain(added).collect();
        names.sort_by_key(|&known| known == "reuse");
        Error::InvalidArgument(format!(
            "policy: expected one of {}, found '{name}'",
            names.join(", ")
        ))
    })
}
