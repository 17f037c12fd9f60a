//! The arena.

use std::sync::Arc;

use hybrid_pages::tier::Arena;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::number::{Whole, slot};

/// Slots in shared memory. Nothing is left behind when the processes that map it are gone.
#[pyclass(frozen, name = "Arena", module = "hybrid_pages._core")]
pub struct PyArena {
    pub inner: Arc<Arena>,
}

#[pymethods]
impl PyArena {
    #[staticmethod]
    #[pyo3(signature = (geometry, *, slot_bytes, slots))]
    fn create(geometry: &PyGeometry, slot_bytes: Whole, slots: Whole) -> PyResult<Self> {
        let inner = Arena::create(&geometry.inner, slot_bytes.0, slots.0).map_err(to_py)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    #[staticmethod]
    fn open(path: &str, geometry: &PyGeometry) -> PyResult<Self> {
        let inner = Arena::open(path, &geometry.inner).map_err(to_py)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    #[getter]
    fn path(&self) -> &str {
        self.inner.path()
    }

    #[getter]
    fn slots(&self) -> usize {
        self.inner.slots()
    }

    #[getter]
    fn slot_bytes(&self) -> usize {
        self.inner.slot_bytes()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.nbytes()
    }

    #[pyo3(name = "read")]
    fn read_slot<'py>(&self, py: Python<'py>, slot: Whole) -> PyResult<Bound<'py, PyBytes>> {
        let data = self.inner.read(self::slot(slot)?).map_err(to_py)?;
        Ok(PyBytes::new(py, &data))
    }

    #[pyo3(name = "write")]
    fn write_slot(&self, slot: Whole, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        self.inner
            .write(self::slot(slot)?, data.as_bytes())
            .map_err(to_py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let path = PyString::new(py, self.inner.path()).repr()?;
        let (slots, slot_bytes) = (self.inner.slots(), self.inner.slot_bytes());
        Ok(format!(
            "Arena(path={path}, slots={slots}, slot_bytes={slot_bytes})"
        ))
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyArena>()
}
