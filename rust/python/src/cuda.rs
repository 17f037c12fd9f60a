//! CUDA devices and their copy engine, as Python objects.

use std::sync::Arc;

use hybrid_pages::transfer::{Direction, EntryCopy};
use hybrid_pages_cuda::driver::{Description, Device, Driver, numa_node};
use hybrid_pages_cuda::engine::{CudaEngine, CudaFacts, CudaOptions};
use hybrid_pages_cuda::{Pinning, PinningOptions, Result};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::arena::PyArena;
use crate::copy_engine::{NumBlocks, PyEngine, layout, to_load, wait};
use crate::error::{cuda_to_py, to_py};
use crate::geometry::PyGeometry;
use crate::layer::PyLayerMap;
use crate::number::{Whole, whole};
use crate::store_entries::ToStore;

/// A CUDA device that this process can use.
#[pyclass(frozen, name = "CudaDevice", module = "hybrid_pages._core")]
pub struct PyCudaDevice {
    inner: Description,
}

#[pymethods]
impl PyCudaDevice {
    #[staticmethod]
    fn count(py: Python<'_>) -> PyResult<usize> {
        py.detach(|| Device::count(&*Driver::get()?))
            .map_err(cuda_to_py)
    }

    #[getter]
    fn ordinal(&self) -> usize {
        self.inner.ordinal
    }

    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }

    #[getter]
    fn uuid(&self) -> &str {
        &self.inner.uuid
    }

    #[getter]
    fn capability(&self) -> (u32, u32) {
        self.inner.capability
    }

    #[getter]
    fn multiprocessors(&self) -> u32 {
        self.inner.multiprocessors
    }

    fn __repr__(&self) -> String {
        let Description {
            ordinal,
            name,
            capability: (major, minor),
            multiprocessors,
            ..
        } = &self.inner;
        format!(
            "CudaDevice(ordinal={ordinal}, name={name:?}, capability=({major}, {minor}), \
             multiprocessors={multiprocessors})"
        )
    }
}

/// Pins the slots of an arena in the background, so that devices copy from and to them directly.
#[pyclass(frozen, name = "Pinning", module = "hybrid_pages._core")]
pub struct PyPinning {
    inner: Arc<Pinning>,
}

#[pymethods]
impl PyPinning {
    #[new]
    #[pyo3(signature = (arena, *, rank, device, piece_bytes = 67108864, start = true))]
    fn new(
        py: Python<'_>,
        arena: &PyArena,
        rank: Whole,
        #[pyo3(from_py_with = whole)] device: usize,
        #[pyo3(from_py_with = whole)] piece_bytes: usize,
        start: bool,
    ) -> PyResult<Self> {
        let memory = arena.inner.memory(rank.0).map_err(to_py)?;
        let options = PinningOptions {
            piece_bytes,
            ..PinningOptions::default()
        };
        let pinning = py.detach(|| {
            let pinning = Pinning::new(memory, device, &options)?;
            if start {
                pinning.start()?;
            }
            Ok(pinning)
        });
        Ok(Self {
            inner: Arc::new(pinning.map_err(cuda_to_py)?),
        })
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.start()).map_err(cuda_to_py)
    }

    #[getter]
    fn pinned_slots(&self) -> usize {
        self.inner.pinned_slots()
    }

    #[getter]
    fn unpinned_slots(&self) -> usize {
        self.inner.unpinned_slots()
    }

    #[getter]
    fn usable_slots(&self) -> usize {
        self.inner.usable_slots()
    }

    #[getter]
    fn slots(&self) -> usize {
        self.inner.slots()
    }

    #[getter]
    fn error(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.inner.error())
    }

    #[getter]
    fn seconds(&self, py: Python<'_>) -> f64 {
        py.detach(|| self.inner.seconds())
    }

    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        wait(py, timeout, |slice| Ok(self.inner.wait(Some(slice))))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.close()).map_err(cuda_to_py)
    }
}

/// Copies entries between a device's memory and an arena.
#[pyclass(frozen, extends = PyEngine, name = "CudaEngine", module = "hybrid_pages._core")]
pub struct PyCudaEngine {
    engine: Arc<CudaEngine>,
}

#[pymethods]
impl PyCudaEngine {
    #[new]
    #[pyo3(signature = (
        geometry, arena, *, rank, num_blocks, layers, device = 0, share = None,
        kernel_below = None, staging = None, batch_copies = true, pinning = None, owners = None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        geometry: &PyGeometry,
        arena: &PyArena,
        rank: Whole,
        num_blocks: NumBlocks,
        layers: Vec<Bound<'_, PyLayerMap>>,
        #[pyo3(from_py_with = whole)] device: usize,
        share: Option<f64>,
        kernel_below: Option<Whole>,
        staging: Option<Whole>,
        batch_copies: bool,
        pinning: Option<&PyPinning>,
        owners: Option<Py<PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let memory = arena.inner.memory(rank.0).map_err(to_py);
        let layout = layout(geometry, rank, num_blocks, &layers)?;
        let memory = memory?;
        let usual = CudaOptions::default();
        let options = CudaOptions {
            device,
            share: share.unwrap_or(usual.share),
            kernel_below: kernel_below.map_or(usual.kernel_below, |bytes| bytes.0),
            staging: staging.map_or(usual.staging, |bytes| bytes.0),
            batch_copies,
            pinning: pinning.map(|pinning| Arc::clone(&pinning.inner)),
        };
        let engine = py.detach(|| CudaEngine::new(layout, memory, &options));
        let engine = Arc::new(engine.map_err(cuda_to_py)?);
        let base = PyEngine::new(Arc::<CudaEngine>::clone(&engine), owners);
        Ok(PyClassInitializer::from(base).add_subclass(Self { engine }))
    }

    #[pyo3(signature = (entries, stream = 0, *, fenced = false))]
    fn store(
        &self,
        py: Python<'_>,
        entries: ToStore,
        #[pyo3(from_py_with = whole)] stream: usize,
        fenced: bool,
    ) -> PyResult<u64> {
        if fenced {
            let ticket = py.detach(|| self.engine.store_fenced(entries.0));
            return Ok(ticket.map_err(cuda_to_py)?.0);
        }
        self.submit(py, Direction::Store, entries.0, stream)
    }

    #[pyo3(signature = (entries, stream = 0))]
    fn load(
        &self,
        py: Python<'_>,
        entries: Vec<Bound<'_, PyTuple>>,
        #[pyo3(from_py_with = whole)] stream: usize,
    ) -> PyResult<u64> {
        self.submit(py, Direction::Load, to_load(&entries)?, stream)
    }

    #[pyo3(signature = (stream = 0))]
    fn fence(&self, py: Python<'_>, #[pyo3(from_py_with = whole)] stream: usize) -> PyResult<()> {
        // SAFETY: the stub demands this of the caller: a live stream of the engine's device.
        py.detach(|| unsafe { self.engine.fence(stream) })
            .map_err(cuda_to_py)
    }

    #[getter]
    fn device(&self) -> PyCudaDevice {
        PyCudaDevice {
            inner: self.engine.device().description().clone(),
        }
    }

    #[getter]
    fn pinned(&self) -> bool {
        self.facts().pinned
    }

    #[getter]
    fn warnings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.engine.warnings())
    }

    #[getter]
    fn refused_batch_copies(&self) -> usize {
        self.engine.refused_batch_copies()
    }

    #[getter]
    fn kernels(&self) -> bool {
        self.facts().kernels
    }
}

impl PyCudaEngine {
    fn facts(&self) -> &CudaFacts {
        self.engine.facts()
    }

    fn submit(
        &self,
        py: Python<'_>,
        way: Direction,
        entries: Vec<EntryCopy>,
        stream: usize,
    ) -> PyResult<u64> {
        // SAFETY: the stub demands this of the caller: a live stream of the engine's device.
        let ticket = py.detach(|| unsafe { self.engine.submit_on(way, entries, stream) });
        Ok(ticket.map_err(cuda_to_py)?.0)
    }
}

/// The devices that the driver shows to this process.
#[pyfunction]
fn cuda_devices(py: Python<'_>) -> PyResult<Vec<PyCudaDevice>> {
    let find = || -> Result<_> {
        let driver = Driver::get()?;
        let describe = |ordinal| {
            let inner = Description::of(&driver, ordinal)?;
            Ok(PyCudaDevice { inner })
        };
        (0..Device::count(&driver)?).map(describe).collect()
    };
    py.detach(find).map_err(cuda_to_py)
}

/// How many devices there are, if anybody in this process has started the driver.
#[pyfunction]
fn started_cuda_devices(py: Python<'_>) -> PyResult<Option<usize>> {
    py.detach(Driver::devices_if_started).map_err(cuda_to_py)
}

/// The NUMA node of the host that is nearest to a device; `None` if that is unknown.
#[pyfunction]
fn device_numa_node(
    py: Python<'_>,
    #[pyo3(from_py_with = whole)] device: usize,
) -> PyResult<Option<usize>> {
    py.detach(|| numa_node(&*Driver::get()?, device))
        .map_err(cuda_to_py)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyCudaDevice>()?;
    m.add_class::<PyCudaEngine>()?;
    m.add_class::<PyPinning>()?;
    m.add_function(wrap_pyfunction!(device_numa_node, m)?)?;
    m.add_function(wrap_pyfunction!(started_cuda_devices, m)?)?;
    m.add_function(wrap_pyfunction!(cuda_devices, m)?)
}
