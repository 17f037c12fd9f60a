//! Numbers from Python: a wrong type raises a `TypeError`, a number out of range a typed error.

use std::time::Duration;

use hybrid_pages::error::Error;
use hybrid_pages::ids::{NamespaceId, SlotId};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::error::to_py;

/// A non-negative integer that fits a machine word.
#[derive(Clone, Copy)]
pub struct Whole(pub usize);

impl<'py> FromPyObject<'_, 'py> for Whole {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        object.extract().map(Self).map_err(|error| {
            if !error.is_instance_of::<PyOverflowError>(object.py()) {
                return error;
            }
            // Python refuses to print integers of thousands of digits.
            let found = object
                .str()
                .map_or_else(|_| "a larger one".into(), |s| s.to_string());
            let most = usize::MAX;
            to_py(Error::InvalidArgument(format!(
                "expected an integer from 0 to {most}, found {found}"
            )))
        })
    }
}

/// Converts an argument with `from_py_with`, so that its signature shows a plain default value.
pub fn whole(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    object.extract::<Whole>().map(|Whole(number)| number)
}

/// Unwraps each number.
pub fn plain(numbers: Vec<Whole>) -> Vec<usize> {
    numbers.into_iter().map(|Whole(number)| number).collect()
}

/// A number of 32 bits. Errors name `argument`.
pub fn small(argument: &str, Whole(number): Whole) -> PyResult<u32> {
    u32::try_from(number).map_err(|_| {
        let most = u32::MAX;
        to_py(Error::InvalidArgument(format!(
            "{argument}: expected at most {most}, found {number}"
        )))
    })
}

/// A time in seconds. Errors name `argument`.
pub fn duration(argument: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        to_py(Error::InvalidArgument(format!(
            "{argument}: expected a number from 0 to 1e19, found {seconds}"
        )))
    })
}

/// The slot with this number. Whether it exists is for the arena to check.
pub fn slot(number: Whole) -> PyResult<SlotId> {
    small("slot", number).map(SlotId)
}

/// The namespace with this number. Whether it exists is for the cache to check.
pub fn namespace_id(Whole(number): Whole) -> PyResult<NamespaceId> {
    u32::try_from(number).map(NamespaceId).map_err(|_| {
        to_py(Error::InvalidArgument(format!(
            "namespace: expected a number that namespace() returned, found {number}"
        )))
    })
}
