//! Tuples of a known length.

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
    let found = tuple.len();
    if found != expected {
        return Err(to_py(Error::InvalidArgument(format!(
            "{what}: expected a tuple of {expected}, found one of {found}"
        ))));
    }
    Ok(tuple)
}
