//! The memory of another library's array, found by DLPack (<https://dmlc.github.io/dlpack>) or
//! `__cuda_array_interface__`
//! (<https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html>).

use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::dlpack;
use crate::facts::{Facts, rejected};
use crate::number::Whole;

/// The device type and number of the first CPU in DLPack.
const HOST: (i32, i32) = (dlpack::CPU, 0);
const LEGACY_STREAM: usize = 1;

/// Address, shape and strides of an array in memory, in bytes. Keeps alive the object that the array's library handed
/// out.
#[pyclass(frozen, name = "ArrayView", module = "hybrid_pages._core")]
pub struct PyArrayView {
    facts: Facts,
    strides: Vec<isize>,
    _source: Py<PyAny>,
}

#[pymethods]
impl PyArrayView {
    #[new]
    #[pyo3(signature = (array, *, stream = None, writable = true))]
    fn new(array: &Bound<'_, PyAny>, stream: Option<Whole>, writable: bool) -> PyResult<Self> {
        let stream = stream.map_or(0, |stream| stream.0);
        let (facts, source) = if let Some(device) = attribute(array, "__dlpack_device__")? {
            let source = exported(array, &device, stream)?;
            (dlpack::read(&source)?, source)
        } else if let Some(interface) = attribute(array, "__cuda_array_interface__")? {
            (interface_facts(&interface)?, array.clone())
        } else {
            let found = array.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "array: expected __dlpack__ or __cuda_array_interface__, found a {found}"
            )));
        };
        if writable && facts.read_only {
            return Err(rejected(
                "expected one that may be written, found a read-only one".into(),
            ));
        }
        let strides = facts.strides()?;
        Ok(Self {
            facts,
            strides,
            _source: source.unbind(),
        })
    }

    #[getter]
    fn address(&self) -> usize {
        self.facts.address
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.facts.shape)
    }

    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.strides)
    }

    #[getter]
    fn itemsize(&self) -> usize {
        self.facts.itemsize
    }

    #[getter]
    fn device_type(&self) -> &'static str {
        self.facts.device_type
    }

    #[getter]
    fn device_id(&self) -> Option<i32> {
        self.facts.device_id
    }

    #[getter]
    fn stream(&self) -> Option<usize> {
        self.facts.stream
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "ArrayView(address={:#x}, shape={}, strides={}, itemsize={}, device_type='{}', \
             device_id={})",
            self.facts.address,
            self.shape(py)?.repr()?,
            self.strides(py)?.repr()?,
            self.facts.itemsize,
            self.facts.device_type,
            self.facts
                .device_id
                .map_or("None".into(), |id| id.to_string()),
        ))
    }
}

/// The attribute of this name, or `None` if the object lacks it. Any other error goes to the caller.
fn attribute<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    match object.getattr(name) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_instance_of::<PyAttributeError>(object.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The capsule of an array, in the newest version that its library knows.
fn exported<'py>(
    array: &Bound<'py, PyAny>,
    device: &Bound<'py, PyAny>,
    stream: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let (device_type, _): (i32, i32) = device.call0()?.extract()?;
    let arguments = PyDict::new(array.py());
    if device_type == dlpack::CUDA || device_type == dlpack::CUDA_MANAGED {
        // DLPack forbids stream 0, since it could mean two things.
        let stream = if stream == 0 { LEGACY_STREAM } else { stream };
        arguments.set_item("stream", stream)?;
    }
    if device_type == dlpack::METAL {
        // Without this the pointer would be to a Metal object. The memory is the host's as well.
        arguments.set_item("dl_device", HOST)?;
    }
    let method = array.getattr("__dlpack__")?;
    let versioned = arguments.copy()?;
    versioned.set_item("max_version", (1, 0))?;
    match method.call((), Some(&versioned)) {
        // The library is older than DLPack's versions: "unexpected keyword argument".
        Err(error) if error.is_instance_of::<PyTypeError>(array.py()) => {
            method.call((), Some(&arguments))
        }
        result => result,
    }
}

fn interface_facts(interface: &Bound<'_, PyAny>) -> PyResult<Facts> {
    let interface = interface.cast::<PyDict>().map_err(|_| {
        rejected(format!(
            "__cuda_array_interface__: expected a dict, found {}",
            interface.get_type()
        ))
    })?;
    let optional = |key: &str| {
        let value = interface.get_item(key)?;
        PyResult::Ok(value.filter(|value| !value.is_none()))
    };
    let required = |key: &str, what: &str| {
        optional(key)?.ok_or_else(|| malformed(key, what, "nothing".into()))
    };
    let wrong = |key: &'static str, what: &'static str| {
        move |value: Bound<'_, PyAny>| malformed(key, what, format!("{value:?}"))
    };

    let what = "2 or 3";
    let version = required("version", what)?;
    match version.extract::<usize>() {
        Ok(2 | 3) => {}
        _ => return Err(wrong("version", what)(version)),
    }
    if let Some(mask) = optional("mask")? {
        return Err(wrong("mask", "none")(mask));
    }
    let what = "a tuple of sizes";
    let shape = required("shape", what)?;
    let Ok(shape) = shape.extract::<Vec<usize>>() else {
        return Err(wrong("shape", what)(shape));
    };
    let what = "an integer a dimension";
    let strides = match optional("strides")? {
        None => None,
        Some(strides) => match strides.extract::<Vec<isize>>() {
            Ok(strides) => Some(strides),
            Err(_) => return Err(wrong("strides", what)(strides)),
        },
    };
    let what = "an address and whether it is read-only";
    let data = required("data", what)?;
    let Ok((address, read_only)) = data.extract::<(usize, bool)>() else {
        return Err(wrong("data", what)(data));
    };
    let what = "a type of whole bytes, such as '<f4'";
    let typestr = required("typestr", what)?;
    let Some(itemsize) = typestr.extract::<String>().ok().and_then(|t| itemsize(&t)) else {
        return Err(wrong("typestr", what)(typestr));
    };
    let what = "none or a stream other than 0";
    let stream = match optional("stream")? {
        None => None,
        Some(stream) => match stream.extract::<usize>() {
            Ok(stream) if stream != 0 => Some(stream),
            _ => return Err(wrong("stream", what)(stream)),
        },
    };
    Ok(Facts {
        address,
        shape,
        strides,
        itemsize,
        device_type: "cuda",
        device_id: None,
        stream,
        read_only,
    })
}

fn malformed(key: &str, expected: &str, found: String) -> PyErr {
    rejected(format!(
        "__cuda_array_interface__['{key}']: expected {expected}, found {found}"
    ))
}

/// Bytes of one element, from numpy's notation of a type: byte order, kind, bytes.
fn itemsize(typestr: &str) -> Option<usize> {
    let rest = typestr.strip_prefix(['<', '>', '|', '='])?;
    // 't' counts bits.
    let bytes = rest.strip_prefix(|kind| "biufcmMOSUV".contains(kind))?;
    bytes.parse().ok().filter(|bytes| *bytes > 0)
}

/// Bytes that identify these arrays: they are equal for the same memory in the same order, dtype and shape, with the
/// same values in `samples` elements of each.
#[pyfunction]
#[pyo3(signature = (arrays, *, samples = Whole(0)), text_signature = "(arrays, *, samples=0)")]
fn array_marks<'py>(
    py: Python<'py>,
    arrays: Vec<Bound<'py, PyAny>>,
    samples: Whole,
) -> PyResult<Bound<'py, PyBytes>> {
    let arguments = PyDict::new(py);
    arguments.set_item("dl_device", HOST)?;
    let mut marks = Vec::new();
    for array in &arrays {
        let capsule = array.call_method("__dlpack__", (), Some(&arguments))?;
        dlpack::mark(&capsule, samples.0, &mut marks)?;
    }
    Ok(PyBytes::new(py, &marks))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyArrayView>()?;
    m.add_function(wrap_pyfunction!(array_marks, m)?)
}
