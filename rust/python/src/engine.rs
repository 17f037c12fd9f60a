//! The host engine.

use hybrid_pages::transfer::{self, Direction, Engine, EntryCopy, HostEngine};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::arena::PyArena;
use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::layer::PyLayerMap;
use crate::number::{Whole, whole};
use crate::running::{PyCompletion, Running, layout, to_load, to_store};

/// Copies between host memory and an arena by threads of its own.
#[pyclass(frozen, name = "HostEngine", module = "hybrid_pages._core")]
pub struct PyHostEngine {
    running: Running<HostEngine>,
}

#[pymethods]
impl PyHostEngine {
    #[new]
    #[pyo3(signature = (
        geometry, arena, *, rank, num_blocks, layers, threads = 2, owners = None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        geometry: &PyGeometry,
        arena: &PyArena,
        rank: Whole,
        num_blocks: Whole,
        layers: Vec<Bound<'_, PyLayerMap>>,
        #[pyo3(from_py_with = whole)] threads: usize,
        owners: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let layout = layout(geometry, rank, num_blocks, &layers)?;
        let engine = HostEngine::new(layout, arena.inner.memory(), threads).map_err(to_py)?;
        Ok(Self {
            running: Running::new(engine, owners),
        })
    }

    fn store(&self, py: Python<'_>, entries: Vec<Bound<'_, PyTuple>>) -> PyResult<u64> {
        self.submit(py, Direction::Store, to_store(&entries)?)
    }

    fn load(&self, py: Python<'_>, entries: Vec<Bound<'_, PyTuple>>) -> PyResult<u64> {
        self.submit(py, Direction::Load, to_load(&entries)?)
    }

    fn poll(&self) -> Vec<PyCompletion> {
        self.running.poll()
    }

    #[pyo3(signature = (ticket, timeout = None))]
    fn wait(&self, py: Python<'_>, ticket: Whole, timeout: Option<f64>) -> PyResult<bool> {
        self.running.wait(py, ticket, timeout)
    }

    #[getter]
    fn in_flight(&self) -> usize {
        self.running.in_flight()
    }

    fn close(&self, py: Python<'_>) {
        self.running.close(py);
    }
}

impl PyHostEngine {
    fn submit(&self, py: Python<'_>, way: Direction, entries: Vec<EntryCopy>) -> PyResult<u64> {
        let ticket = py
            .detach(|| self.running.engine().submit(way, entries))
            .map_err(to_py)?;
        Ok(ticket.0)
    }
}

/// What entries are checked by.
#[pyfunction]
fn checksum(data: &Bound<'_, PyBytes>) -> u64 {
    transfer::checksum(data.as_bytes())
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyHostEngine>()?;
    m.add_function(wrap_pyfunction!(checksum, m)?)
}
