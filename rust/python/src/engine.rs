//! The host engine. The GIL is released wherever Rust may wait.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hybrid_pages::error::Error;
use hybrid_pages::transfer::{
    self, Completion, Direction, Engine, Entry, HostEngine, LayerMap, Layout, Region, Run, Ticket,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::arena::PyArena;
use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::number::{Whole, plain, slot, whole};

/// How often a wait looks for signals.
const SIGNALS: Duration = Duration::from_millis(100);

/// Where one layer's blocks lie in the engine's memory [address, address + nbytes).
#[pyclass(frozen, name = "LayerMap", module = "hybrid_pages._core")]
pub struct PyLayerMap {
    inner: LayerMap,
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
        // SAFETY: what the stub demands of the caller: the memory is the engine's, `owners` keeps
        // it alive, and nobody else touches a block while a transfer uses it.
        let region = unsafe { Region::new(address, nbytes.0) }.map_err(to_py)?;
        let run = |run: &Bound<'_, PyTuple>| {
            let (offset, length): (Whole, Whole) = sized("run", run, 2)?.extract()?;
            Ok(Run {
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

/// How a transfer ended.
#[pyclass(frozen, name = "Completion", module = "hybrid_pages._core")]
pub struct PyCompletion {
    inner: Completion,
}

#[pymethods]
impl PyCompletion {
    #[getter]
    fn ticket(&self) -> u64 {
        self.inner.ticket.0
    }

    #[getter]
    fn ok(&self) -> bool {
        self.inner.error.is_none()
    }

    #[getter]
    fn error(&self) -> Option<&str> {
        self.inner.error.as_deref()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.inner.bytes
    }

    #[getter]
    fn seconds(&self) -> f64 {
        self.inner.seconds
    }

    #[getter]
    fn checksums<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.inner.checksums)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let error = match self.error() {
            Some(error) => PyString::new(py, error).repr()?.to_string(),
            None => "None".to_owned(),
        };
        Ok(format!(
            "Completion(ticket={}, error={error}, bytes={}, seconds={:.6})",
            self.inner.ticket.0, self.inner.bytes, self.inner.seconds
        ))
    }
}

/// Copies between host memory and an arena by threads of its own.
#[pyclass(frozen, name = "HostEngine", module = "hybrid_pages._core")]
pub struct PyHostEngine {
    engine: HostEngine,
    /// Let go when no copy can touch their memory any more. Unseen by the garbage collector,
    /// which could otherwise clear them while a copy is in flight.
    owners: Mutex<Option<Py<PyAny>>>,
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
        let maps: Vec<_> = layers
            .iter()
            .map(|layer| layer.get().inner.clone())
            .collect();
        let layout = Layout::new(Arc::clone(&geometry.inner), rank.0, num_blocks.0, &maps);
        let memory = arena.inner.memory();
        let engine = layout.and_then(|layout| HostEngine::new(layout, memory, threads));
        Ok(Self {
            engine: engine.map_err(to_py)?,
            owners: Mutex::new(owners),
        })
    }

    fn store(&self, py: Python<'_>, entries: Vec<Bound<'_, PyTuple>>) -> PyResult<u64> {
        let entries = entries.iter().map(|given| {
            let (class, slots, blocks) = sized("entry", given, 3)?.extract()?;
            entry(class, slots, blocks, None)
        });
        self.submit(py, Direction::Store, entries.collect::<PyResult<_>>()?)
    }

    fn load(&self, py: Python<'_>, entries: Vec<Bound<'_, PyTuple>>) -> PyResult<u64> {
        let entries = entries.iter().map(|given| {
            let (class, slots, blocks, checksum) = sized("entry", given, 4)?.extract()?;
            entry(class, slots, blocks, checksum)
        });
        self.submit(py, Direction::Load, entries.collect::<PyResult<_>>()?)
    }

    fn poll(&self) -> Vec<PyCompletion> {
        self.engine
            .poll()
            .into_iter()
            .map(|inner| PyCompletion { inner })
            .collect()
    }

    #[pyo3(signature = (ticket, timeout = None))]
    fn wait(&self, py: Python<'_>, ticket: Whole, timeout: Option<f64>) -> PyResult<bool> {
        let ticket = Ticket(ticket.0 as u64);
        let timeout = timeout.map(seconds).transpose()?.flatten();
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let slice = left.map_or(SIGNALS, |left| left.min(SIGNALS));
            let ended = py
                .detach(|| self.engine.wait(ticket, Some(slice)))
                .map_err(to_py)?;
            py.check_signals()?;
            if ended || left.is_some_and(|left| left <= slice) {
                return Ok(ended);
            }
        }
    }

    #[getter]
    fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.engine.close());
        // Dropped outside the lock: that may run Python.
        let owners = self
            .owners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(owners);
    }
}

impl PyHostEngine {
    fn submit(&self, py: Python<'_>, way: Direction, entries: Vec<Entry>) -> PyResult<u64> {
        let ticket = py
            .detach(|| self.engine.submit(way, entries))
            .map_err(to_py)?;
        Ok(ticket.0)
    }
}

impl Drop for PyHostEngine {
    fn drop(&mut self) {
        // No interpreter to attach to at exit: nothing to release, either.
        if Python::try_attach(|py| py.detach(|| self.engine.close())).is_none() {
            self.engine.close();
        }
    }
}

fn entry(
    class: Whole,
    slots: Vec<Whole>,
    blocks: Vec<Whole>,
    checksum: Option<Whole>,
) -> PyResult<Entry> {
    let slots = slots.into_iter().map(slot).collect::<PyResult<_>>()?;
    let checksum = checksum.map(|Whole(checksum)| checksum as u64);
    Ok(Entry {
        class: class.0,
        slots,
        blocks: plain(blocks),
        checksum,
    })
}

fn sized<'a, 'py>(
    what: &str,
    tuple: &'a Bound<'py, PyTuple>,
    expected: usize,
) -> PyResult<&'a Bound<'py, PyTuple>> {
    let found = tuple.len();
    if found != expected {
        return Err(to_py(Error::InvalidArgument(format!(
            "{what}: expected a tuple of {expected}, found one of {found}"
        ))));
    }
    Ok(tuple)
}

/// A timeout that the clock can hold; infinity is no timeout.
fn seconds(timeout: f64) -> PyResult<Option<Duration>> {
    if timeout.is_nan() || timeout < 0.0 {
        return Err(to_py(Error::InvalidArgument(format!(
            "timeout: expected seconds of at least 0, found {timeout}"
        ))));
    }
    Ok(Duration::try_from_secs_f64(timeout).ok())
}

/// What entries are checked by.
#[pyfunction]
fn checksum(data: &Bound<'_, PyBytes>) -> u64 {
    transfer::checksum(data.as_bytes())
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyLayerMap>()?;
    m.add_class::<PyCompletion>()?;
    m.add_class::<PyHostEngine>()?;
    m.add_function(wrap_pyfunction!(checksum, m)?)
}
