//! The table of errors: which Python exception stands for which error of a crate.

use hybrid_pages::error::Error;
use hybrid_pages_cuda::CudaError;
use hybrid_pages_lab::LabError;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// Attributes of the exception for a failed driver function: its name, and the result's number and name.
const DETAILS: [&str; 3] = ["call", "code", "name"];

struct Table {
    base: Py<PyType>,
    geometry: Py<PyType>,
    invalid_argument: Py<PyType>,
    foreign: Py<PyType>,
    arena: Py<PyType>,
    budget: Py<PyType>,
    lease: Py<PyType>,
    transfer: Py<PyType>,
    disk: Py<PyType>,
    remote: Py<PyType>,
    cuda: Py<PyType>,
    trace: Py<PyType>,
}

static TABLE: PyOnceLock<Table> = PyOnceLock::new();

impl Table {
    fn of(py: Python<'_>) -> PyResult<&Self> {
        TABLE.get_or_try_init(py, || Self::new(py))
    }

    fn new(py: Python<'_>) -> PyResult<Self> {
        let exception = |name: &str, doc: &str, bases: &[&Bound<'_, PyType>]| {
            let body = PyDict::new(py);
            body.set_item("__module__", "hybrid_pages._core")?;
            body.set_item("__doc__", doc)?;
            let made = py
                .get_type::<PyType>()
                .call1((name, PyTuple::new(py, bases)?, body))?;
            PyResult::Ok(made.cast_into::<PyType>()?.unbind())
        };
        let root = py.get_type::<PyException>();
        let value = py.get_type::<PyValueError>();
        let base = exception(
            "HybridPagesError",
            "Every error that hybrid-pages raises. Arguments of a wrong type are Python's TypeError.",
            &[&root],
        )?;
        let parent = base.bind(py);
        let transfer = exception(
            "TransferError",
            "A copy that did not happen, or whose bytes were not those that left the engine.",
            &[parent],
        )?;
        let cuda = exception(
            "CudaError",
            "No CUDA here, or a function of its driver that failed.",
            &[transfer.bind(py)],
        )?;
        for detail in DETAILS {
            cuda.setattr(py, detail, py.None())?;
        }
        Ok(Self {
            geometry: exception(
                "GeometryError",
                "A geometry that contradicts itself or the memory it is laid over.",
                &[parent, &value],
            )?,
            invalid_argument: exception(
                "InvalidArgumentError",
                "An argument out of range or of the wrong length.",
                &[parent, &value],
            )?,
            foreign: exception(
                "ForeignError",
                "Bytes that belong to another geometry, format or engine.",
                &[parent],
            )?,
            arena: exception(
                "ArenaError",
                "The shared mapping could not be made, opened or used.",
                &[parent],
            )?,
            budget: exception(
                "BudgetError",
                "A budget that cannot hold what was asked of it.",
                &[parent],
            )?,
            lease: exception(
                "LeaseError",
                "A lease used after its end or against another cache.",
                &[parent],
            )?,
            transfer,
            disk: exception(
                "DiskError",
                "A disk's directory that cannot be used, or a copy from or to a disk that did not happen.",
                &[parent],
            )?,
            remote: exception(
                "RemoteError",
                "A store that machines share and that cannot be used, or a copy from or to it that did not happen.",
                &[parent],
            )?,
            cuda,
            trace: exception(
                "TraceError",
                "A trace that can't be read, with the file and the line.",
                &[parent, &value],
            )?,
            base,
        })
    }

    fn all(&self) -> [&Py<PyType>; 12] {
        [
            &self.base,
            &self.geometry,
            &self.invalid_argument,
            &self.foreign,
            &self.arena,
            &self.budget,
            &self.lease,
            &self.transfer,
            &self.disk,
            &self.remote,
            &self.cuda,
            &self.trace,
        ]
    }
}

/// A Python exception: one that was raised, or one that stands for an error of the core.
pub struct Raised(pub PyErr);

impl From<Error> for Raised {
    fn from(error: Error) -> Self {
        Self(to_py(error))
    }
}

impl From<PyErr> for Raised {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}

impl From<Raised> for PyErr {
    fn from(raised: Raised) -> Self {
        raised.0
    }
}

/// The exception for an error of the core, with the same message.
#[cold]
pub fn to_py(error: Error) -> PyErr {
    Python::attach(|py| {
        let table = match Table::of(py) {
            Ok(table) => table,
            Err(failure) => return failure,
        };
        let exception = match &error {
            Error::Geometry(_) => &table.geometry,
            Error::InvalidArgument(_) => &table.invalid_argument,
            Error::Foreign(_) => &table.foreign,
            Error::Arena(_) => &table.arena,
            Error::Budget(_) => &table.budget,
            Error::Lease(_) => &table.lease,
            Error::Transfer(_) => &table.transfer,
            Error::Disk(_) => &table.disk,
            Error::Remote(_) => &table.remote,
            _ => &table.base,
        };
        PyErr::from_type(exception.bind(py).clone(), error.to_string())
    })
}

/// The exception for an error of the CUDA crate.
pub fn cuda_to_py(error: CudaError) -> PyErr {
    let (call, code, name) = match &error {
        CudaError::Core(error) => return to_py(error.clone()),
        CudaError::Driver {
            call, code, name, ..
        } => (*call, *code, name.as_str()),
        other => return plain_cuda(other),
    };
    Python::attach(|py| {
        let raised = plain_cuda(&error);
        let value = raised.value(py);
        let set = value
            .setattr(DETAILS[0], call)
            .and_then(|()| value.setattr(DETAILS[1], code))
            .and_then(|()| value.setattr(DETAILS[2], name));
        set.map_or_else(|failure| failure, |()| raised)
    })
}

/// The exception for an error of the lab.
pub fn lab_to_py(error: LabError) -> PyErr {
    match error {
        LabError::Core(error) => to_py(error),
        LabError::Trace(_) => plain(|table| &table.trace, error.to_string()),
        _ => plain(|table| &table.base, error.to_string()),
    }
}

fn plain_cuda(error: &CudaError) -> PyErr {
    plain(|table| &table.cuda, error.to_string())
}

fn plain(exception: impl FnOnce(&Table) -> &Py<PyType>, message: String) -> PyErr {
    Python::attach(|py| match Table::of(py) {
        Ok(table) => PyErr::from_type(exception(table).bind(py).clone(), message),
        Err(failure) => failure,
    })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    for exception in Table::of(py)?.all() {
        let exception = exception.bind(py);
        m.add(exception.name()?, exception)?;
    }
    Ok(())
}
