//! Facts that other libraries tell about their arrays.

use hybrid_pages::error::Error;
use pyo3::PyErr;

use crate::error::to_py;

/// An array as another library describes it.
pub struct Facts {
    pub address: usize,
    pub shape: Vec<usize>,
    /// In bytes; none for C order.
    pub strides: Option<Vec<isize>>,
    pub itemsize: usize,
    pub device_type: &'static str,
    pub device_id: Option<i32>,
    /// The stream that the array's contents wait for.
    pub stream: Option<usize>,
    pub read_only: bool,
}

/// An error about the array.
pub fn rejected(what: String) -> PyErr {
    to_py(Error::InvalidArgument(format!("array: {what}")))
}
