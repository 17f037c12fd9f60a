//! CUDA devices and their engine.

use std::path::PathBuf;
use std::sync::Arc;

use hybrid_pages::transfer::{Direction, EntryCopy};
use hybrid_pages_cuda::Result;
use hybrid_pages_cuda::driver::{Description, Device, Driver};
use hybrid_pages_cuda::engine::{Costs, CudaEngine, Facts, Method, Options};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::arena::PyArena;
use crate::error::cuda_to_py;
use crate::geometry::PyGeometry;
use crate::layer::PyLayerMap;
use crate::number::{Whole, whole};
use crate::running::{NumBlocks, PyEngine, layout, to_load, to_store};

/// A device of this process.
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

/// Copies between a device's memory and an arena.
#[pyclass(frozen, extends = PyEngine, name = "CudaEngine", module = "hybrid_pages._core")]
pub struct PyCudaEngine {
    engine: Arc<CudaEngine>,
}

#[pymethods]
impl PyCudaEngine {
    #[new]
    #[pyo3(signature = (
        geometry, arena, *, rank, num_blocks, layers, device = 0, share = None,
        staging_bytes = None, method = "auto", owners = None
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
        staging_bytes: Option<Whole>,
        method: &str,
        owners: Option<Py<PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let memory = arena.inner.memory(rank.0).map_err(crate::error::to_py);
        let layout = layout(geometry, rank, num_blocks, &layers)?;
        let memory = memory?;
        let usual = Options::default();
        let options = Options {
            device,
            share: share.unwrap_or(usual.share),
            staging_bytes: staging_bytes.map_or(usual.staging_bytes, |bytes| bytes.0),
            method: Method::parse(method).map_err(cuda_to_py)?,
            nvrtc: nvrtc(py)?,
            ..usual
        };
        let engine = py.detach(|| CudaEngine::new(layout, memory, &options));
        let engine = Arc::new(engine.map_err(cuda_to_py)?);
        let base = PyEngine::new(Arc::<CudaEngine>::clone(&engine), owners);
        Ok(PyClassInitializer::from(base).add_subclass(Self { engine }))
    }

    #[pyo3(signature = (entries, stream = 0))]
    fn store(
        &self,
        py: Python<'_>,
        entries: Vec<Bound<'_, PyTuple>>,
        #[pyo3(from_py_with = whole)] stream: usize,
    ) -> PyResult<u64> {
        self.submit(py, Direction::Store, to_store(&entries)?, stream)
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
        // SAFETY: what the stub demands of the caller: a live stream of the engine's device.
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
        PyList::new(py, &self.facts().warnings)
    }

    #[getter]
    fn methods<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.facts().methods.iter().map(|method| method.name()))
    }

    #[getter]
    fn calibration<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(calibration) = &self.facts().calibration else {
            return Ok(None);
        };
        let ways = PyDict::new(py);
        for (name, way) in [("store", Direction::Store), ("load", Direction::Load)] {
            let methods = PyDict::new(py);
            for method in Method::ALL {
                if let Some(costs) = calibration.costs(way, method) {
                    methods.set_item(method.name(), shown(py, costs)?)?;
                }
            }
            ways.set_item(name, methods)?;
        }
        Ok(Some(ways))
    }
}

impl PyCudaEngine {
    fn facts(&self) -> &Facts {
        self.engine.facts()
    }

    fn submit(
        &self,
        py: Python<'_>,
        way: Direction,
        entries: Vec<EntryCopy>,
        stream: usize,
    ) -> PyResult<u64> {
        // SAFETY: what the stub demands of the caller: a live stream of the engine's device.
        let ticket = py.detach(|| unsafe { self.engine.submit_on(way, entries, stream) });
        Ok(ticket.map_err(cuda_to_py)?.0)
    }
}

fn shown(py: Python<'_>, costs: Costs) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("fixed", costs.fixed)?;
    dict.set_item("per_copy", costs.per_copy)?;
    dict.set_item("per_byte", costs.per_byte)?;
    Ok(dict)
}

/// The compilers that packages of this Python bring, by NVIDIA's layout of its wheels:
/// `nvidia/<part>/lib/libnvrtc.so.<version>`.
fn nvrtc(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    let path: Vec<PathBuf> = py.import("sys")?.getattr("path")?.extract()?;
    let entries = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let parts = path
        .into_iter()
        .flat_map(|site| entries(site.join("nvidia")));
    let libraries = parts.flat_map(|part| entries(part.path().join("lib")));
    let compilers = libraries.filter(|file| {
        let name = file.file_name();
        name.to_string_lossy().starts_with("libnvrtc.so.")
    });
    Ok(compilers.map(|file| file.path()).collect())
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

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyCudaDevice>()?;
    m.add_class::<PyCudaEngine>()?;
    m.add_function(wrap_pyfunction!(cuda_devices, m)?)
}
