//! The one error table: a variant of the core's error, a Python exception.

use hybrid_pages::error::Error;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

struct Table {
    base: Py<PyType>,
    geometry: Py<PyType>,
    invalid_argument: Py<PyType>,
    foreign: Py<PyType>,
    arena: Py<PyType>,
    budget: Py<PyType>,
    lease: Py<PyType>,
    transfer: Py<PyType>,
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
            "Every error that hybrid-pages raises.",
            &[&root],
        )?;
        let parent = base.bind(py);
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
            transfer: exception(
                "TransferError",
                "A copy that did not happen, or whose bytes were not those that left the engine.",
                &[parent],
            )?,
            trace: exception(
                "TraceError",
                "A trace that can't be read, with the file and the line.",
                &[parent, &value],
            )?,
            base,
        })
    }

    fn all(&self) -> [&Py<PyType>; 9] {
        [
            &self.base,
            &self.geometry,
            &self.invalid_argument,
            &self.foreign,
            &self.arena,
            &self.budget,
            &self.lease,
            &self.transfer,
            &self.trace,
        ]
    }
}

/// The exception for a core error, its message unchanged.
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
            Error::Trace(_) => &table.trace,
            _ => &table.base,
        };
        PyErr::from_type(exception.bind(py).clone(), error.to_string())
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
