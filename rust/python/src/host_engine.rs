//! The copy engine for host memory, as a Python object.

use std::sync::Arc;

use hybrid_pages::transfer::{self, Direction, HostEngine};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::arena::PyArena;
use crate::copy_engine::{NumBlocks, PyEngine, layout, to_load};
use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::layer::PyLayerMap;
use crate::number::{Whole, whole};
use crate::store_entries::ToStore;

/// Copies entries between host memory and an arena, by threads of its own.
#[pyclass(frozen, extends = PyEngine, name = "HostEngine", module = "hybrid_pages._core")]
pub struct PyHostEngine;

#[pymethods]
impl PyHostEngine {
    #[new]
    #[pyo3(signature = (
        geometry, arena, *, rank, num_blocks, layers, threads = 2, checksums = true, owners = None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        geometry: &PyGeometry,
        arena: &PyArena,
        rank: Whole,
        num_blocks: NumBlocks,
        layers: Vec<Bound<'_, PyLayerMap>>,
        #[pyo3(from_py_with = whole)] threads: usize,
        checksums: bool,
        owners: Option<Py<PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let memory = arena.inner.memory(rank.0).map_err(to_py);
        let layout = layout(geometry, rank, num_blocks, &layers)?;
        let new = if checksums {
            HostEngine::new
        } else {
            HostEngine::without_checksums
        };
        let engine = new(layout, memory?, threads).map_err(to_py)?;
        let base = PyEngine::new(Arc::new(engine), owners);
        Ok(PyClassInitializer::from(base).add_subclass(Self))
    }

    fn store(this: &Bound<'_, Self>, entries: ToStore) -> PyResult<u64> {
        let engine = this.as_super().get();
        engine.submit(this.py(), Direction::Store, entries.0)
    }

    fn load(this: &Bound<'_, Self>, entries: Vec<Bound<'_, PyTuple>>) -> PyResult<u64> {
        let engine = this.as_super().get();
        engine.submit(this.py(), Direction::Load, to_load(&entries)?)
    }
}

/// The checksum of an entry's bytes.
#[pyfunction]
fn checksum(data: &Bound<'_, PyBytes>) -> u64 {
    transfer::checksum(data.as_bytes())
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyHostEngine>()?;
    m.add_function(wrap_pyfunction!(checksum, m)?)
}
