//! Descriptions of arrays by other libraries, and checks of them.

use hybrid_pages::error::Error;
use pyo3::{PyErr, PyResult};

use crate::error::to_py;

/// The most dimensions of an array: more than any library allows.
const MAX_DIMS: usize = 64;

/// An array as another library describes it.
pub struct Facts {
    pub address: usize,
    pub shape: Vec<usize>,
    /// Strides in bytes; `None` for C order.
    pub strides: Option<Vec<isize>>,
    pub itemsize: usize,
    pub device_type: &'static str,
    pub device_id: Option<i32>,
    /// The CUDA stream whose work makes the array's contents.
    pub stream: Option<usize>,
    pub read_only: bool,
}

impl Facts {
    /// Strides in bytes, checked against shape and address space.
    pub fn strides(&self) -> PyResult<Vec<isize>> {
        let Self {
            shape, itemsize, ..
        } = self;
        if shape.len() > MAX_DIMS {
            return Err(rejected(format!(
                "expected at most {MAX_DIMS} dimensions, found {}",
                shape.len()
            )));
        }
        let too_large = || {
            rejected(format!(
                "expected one that fits the address space, found {shape:?}"
            ))
        };
        let mut dense = vec![0; shape.len()];
        let mut bytes = isize::try_from(*itemsize).map_err(|_| too_large())?;
        for (stride, &size) in dense.iter_mut().zip(shape).rev() {
            *stride = bytes;
            let size = isize::try_from(size.max(1)).map_err(|_| too_large())?;
            bytes = bytes.checked_mul(size).ok_or_else(too_large)?;
        }
        let strides = self.strides.clone().unwrap_or(dense);
        if strides.len() != shape.len() {
            return Err(rejected(format!(
                "expected a stride for each of {} dimensions, found {}",
                shape.len(),
                strides.len()
            )));
        }
        if !shape.contains(&0) {
            if self.address == 0 {
                return Err(rejected("expected an address, found none".into()));
            }
            let mut ends = (
                self.address as i128,
                self.address as i128 + *itemsize as i128,
            );
            for (&size, &stride) in shape.iter().zip(&strides) {
                let reach = (size as i128 - 1) * stride as i128;
                if reach < 0 {
                    ends.0 += reach;
                } else {
                    ends.1 += reach;
                }
            }
            if ends.0 < 0 || ends.1 > isize::MAX as i128 {
                return Err(too_large());
            }
        }
        Ok(strides)
    }
}

/// The error for an array that can't be used.
pub fn rejected(what: String) -> PyErr {
    to_py(Error::InvalidArgument(format!("array: {what}")))
}
