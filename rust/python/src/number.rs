//! Integers from Python: a wrong type is a `TypeError`, a number out of range a typed error.

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

/// For `from_py_with`: an argument whose default value shows in its signature.
pub fn whole(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    object.extract::<Whole>().map(|Whole(number)| number)
}

/// The numbers themselves.
pub fn plain(numbers: Vec<Whole>) -> Vec<usize> {
    numbers.into_iter().map(|Whole(number)| number).collect()
}

/// The slot of that number; whether it exists is the arena's to say.
pub fn slot(Whole(number): Whole) -> PyResult<SlotId> {
    u32::try_from(number).map(SlotId).map_err(|_| {
        let most = u32::MAX;
        to_py(Error::InvalidArgument(format!(
            "slot: expected at most {most}, found {number}"
        )))
    })
}

/// The namespace of that number; whether the cache has it is the cache's to say.
pub fn namespace_id(Whole(number): Whole) -> PyResult<NamespaceId> {
    u32::try_from(number).map(NamespaceId).map_err(|_| {
        to_py(Error::InvalidArgument(format!(
            "namespace: expected a number that namespace() returned, found {number}"
        )))
    })
}
