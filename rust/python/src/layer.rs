//! The place of a layer's blocks in an engine's memory.

use hybrid_pages::transfer::{ByteRun, LayerMap, Region};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::to_py;
use crate::number::Whole;
use crate::tuple::sized;

/// The place of one layer's blocks in the engine's memory, `address` to `address + nbytes`.
#[pyclass(frozen, name = "LayerMap", module = "hybrid_pages._core")]
pub struct PyLayerMap {
    pub inner: LayerMap,
}

#[pymethods]
impl PyLayerMap {
    #[new]
    #[pyo3(signature = (*, group, layer, address, nbytes, block_stride, runs))]
    fn new(
        group: Whole,
        layer: Whole,
        address: Whole,
        nbytes: Whole,
        block_stride: Whole,
        runs: Vec<Bound<'_, PyTuple>>,
    ) -> PyResult<Self> {
        let address = std::ptr::with_exposed_provenance_mut(address.0);
        // SAFETY: the stub demands this of the caller: the memory is the engine's, `owners` keeps it alive, and
        // nobody else touches a block while a transfer uses it.
        let region = unsafe { Region::new(address, nbytes.0) }.map_err(to_py)?;
        let run = |run: &Bound<'_, PyTuple>| {
            let (offset, length): (Whole, Whole) = sized("run", run, 2)?.extract()?;
            Ok(ByteRun {
                offset: offset.0,
                length: length.0,
            })
        };
        let runs = runs.iter().map(run).collect::<PyResult<_>>()?;
        let (group, layer, block_stride) = (group.0, layer.0, block_stride.0);
        Ok(Self {
            inner: LayerMap {
                group,
                layer,
                region,
                block_stride,
                runs,
            },
        })
    }

    #[getter]
    fn group(&self) -> usize {
        self.inner.group
    }

    #[getter]
    fn layer(&self) -> usize {
        self.inner.layer
    }

    #[getter]
    fn address(&self) -> usize {
        self.inner.region.address().addr().get()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.region.nbytes()
    }

    #[getter]
    fn block_stride(&self) -> usize {
        self.inner.block_stride
    }

    #[getter]
    fn runs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let runs = self.inner.runs.iter().map(|run| (run.offset, run.length));
        PyTuple::new(py, runs.collect::<Vec<_>>())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "LayerMap(group={}, layer={}, address={:#x}, nbytes={}, block_stride={}, runs={})",
            self.group(),
            self.layer(),
            self.address(),
            self.nbytes(),
            self.block_stride(),
            self.runs(py)?.repr()?
        ))
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyLayerMap>()
}
