//! Tuples of a known length.

use std::ops::RangeInclusive;

use hybrid_pages::error::Error;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::to_py;

/// Checks that a tuple has the expected number of items.
pub fn sized<'a, 'py>(
    what: &str,
    tuple: &'a Bound<'py, PyTuple>,
    expected: usize,
) -> PyResult<&'a Bound<'py, PyTuple>> {
    sized_from(what, tuple, expected..=expected)
}

/// Checks that a tuple has as many items as it may have.
pub fn sized_from<'a, 'py>(
    what: &str,
    tuple: &'a Bound<'py, PyTuple>,
    expected: RangeInclusive<usize>,
) -> PyResult<&'a Bound<'py, PyTuple>> {
    let found = tuple.len();
    if !expected.contains(&found) {
        let (least, most) = (expected.start(), expected.end());
        let several = if least == most {
            String::new()
        } else {
            format!(" to {most}")
        };
        return Err(to_py(Error::InvalidArgument(format!(
            "{what}: expected a tuple of {least}{several}, found one of {found}"
        ))));
    }
    Ok(tuple)
}
