//! What other libraries say about their arrays.

use hybrid_pages::error::Error;
use pyo3::PyErr;

use crate::error::to_py;

/// What another library says about an array.
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
pub fn refused(what: String) -> PyErr {
    to_py(Error::InvalidArgument(format!("array: {what}")))
}
