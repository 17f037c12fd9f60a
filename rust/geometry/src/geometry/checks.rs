//! Checks that several parts of a geometry have in common.

use std::collections::HashSet;

use crate::error::{Error, Result};

pub(super) fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::geometry(format!(
            "{what}: expected a name, found an empty one"
        )));
    }
    Ok(())
}

pub(super) fn check_count(of: &str, what: &str, found: usize, most: usize) -> Result<()> {
    if !(1..=most).contains(&found) {
        return Err(Error::geometry(format!(
            "{of}: expected 1 to {most} {what}, found {found}"
        )));
    }
    Ok(())
}

pub(super) fn check_unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::geometry(format!(
                "{what} {name:?}: expected once, found twice"
            )));
        }
    }
    Ok(())
}
