//! The part that all copy engines share: entries, completions, waiting and closing. The GIL is released wherever Rust
//! may wait.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hybrid_pages::error::Error;
use hybrid_pages::guarded::lock;
use hybrid_pages::transfer::{
    Completion, Direction, Engine, EntryCopy, LayerMap, Ticket, TransferLayout,
};
use pyo3::prelude::*;
use pyo3::types::{PyList, PySequence, PyString, PyTuple};

use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::layer::PyLayerMap;
use crate::number::{Whole, plain, slot};
use crate::tuple::{sized, sized_from};

/// Time between two checks for signals during a wait.
const SIGNALS: Duration = Duration::from_millis(100);

/// The outcome of a transfer.
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

/// The base class of all copy engines. They differ in how they are made, and in what a transfer waits for.
#[pyclass(frozen, subclass, name = "_Engine", module = "hybrid_pages._core")]
pub struct PyEngine {
    engine: Arc<dyn Engine>,
    /// The Python objects that own the memory of the engine's blocks. Released when no copy can touch the memory any
    /// more. Hidden from the garbage collector, which could clear them while a copy is in flight.
    owners: Mutex<Option<Py<PyAny>>>,
}

#[pymethods]
impl PyEngine {
    fn poll(&self) -> Vec<PyCompletion> {
        let completions = self.engine.poll().into_iter();
        completions.map(|inner| PyCompletion { inner }).collect()
    }

    #[pyo3(signature = (ticket, timeout = None))]
    fn wait(&self, py: Python<'_>, ticket: Whole, timeout: Option<f64>) -> PyResult<bool> {
        let ticket = Ticket(ticket.0 as u64);
        wait(py, timeout, |slice| self.engine.wait(ticket, Some(slice)))
    }

    #[getter]
    fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.engine.close());
        // Dropped outside the lock, since that may run Python code.
        let owners = lock(&self.owners).take();
        drop(owners);
    }
}

impl PyEngine {
    /// Wraps an engine, and keeps the owners of its memory alive.
    pub fn new(engine: Arc<dyn Engine>, owners: Option<Py<PyAny>>) -> Self {
        Self {
            engine,
            owners: Mutex::new(owners),
        }
    }

    /// Submits as [`Engine::submit`] does.
    pub fn submit(&self, py: Python<'_>, way: Direction, entries: Vec<EntryCopy>) -> PyResult<u64> {
        let ticket = py.detach(|| self.engine.submit(way, entries));
        Ok(ticket.map_err(to_py)?.0)
    }
}

impl Drop for PyEngine {
    fn drop(&mut self) {
        // At exit there is no interpreter to attach to, and no GIL to release.
        if Python::try_attach(|py| py.detach(|| self.engine.close())).is_none() {
            self.engine.close();
        }
    }
}

/// How many blocks the engine has: one number for all groups, or one per group.
pub enum NumBlocks {
    OfAll(Whole),
    PerGroup(Vec<Whole>),
}

impl<'py> FromPyObject<'_, 'py> for NumBlocks {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.cast::<PySequence>().is_ok() {
            object.extract().map(Self::PerGroup)
        } else {
            object.extract().map(Self::OfAll)
        }
    }
}

/// The layout of an engine's blocks in memory, checked against its geometry.
pub fn layout(
    geometry: &PyGeometry,
    rank: Whole,
    num_blocks: NumBlocks,
    layers: &[Bound<'_, PyLayerMap>],
) -> PyResult<TransferLayout> {
    let maps: Vec<LayerMap> = layers
        .iter()
        .map(|layer| layer.get().inner.clone())
        .collect();
    let geometry = Arc::clone(&geometry.inner);
    let num_blocks = match num_blocks {
        NumBlocks::OfAll(number) => vec![number.0; geometry.groups().len()],
        NumBlocks::PerGroup(numbers) => plain(numbers),
    };
    TransferLayout::new(geometry, rank.0, &num_blocks, &maps).map_err(to_py)
}

/// Reads entries to store, each a tuple (class, slots, blocks) or (class, slots, blocks, tokens).
pub fn to_store(entries: &[Bound<'_, PyTuple>]) -> PyResult<Vec<EntryCopy>> {
    let read = |given| {
        let given = sized_from("entry", given, 3..=4)?;
        let (class, slots, blocks) = given.get_slice(0, 3).extract()?;
        let tokens: Option<Whole> = match given.len() {
            3 => None,
            _ => given.get_item(3)?.extract()?,
        };
        let tokens = tokens.map(|Whole(tokens)| tokens);
        Ok(EntryCopy {
            tokens,
            ..entry(class, slots, blocks, None)?
        })
    };
    entries.iter().map(read).collect()
}

/// Reads entries to load, each a tuple (class, slots, blocks, checksum).
pub fn to_load(entries: &[Bound<'_, PyTuple>]) -> PyResult<Vec<EntryCopy>> {
    let read = |given| {
        let (class, slots, blocks, checksum) = sized("entry", given, 4)?.extract()?;
        entry(class, slots, blocks, checksum)
    };
    entries.iter().map(read).collect()
}

fn entry(
    class: Whole,
    slots: Vec<Whole>,
    blocks: Vec<Option<Whole>>,
    checksum: Option<Whole>,
) -> PyResult<EntryCopy> {
    let slots = slots.into_iter().map(slot).collect::<PyResult<_>>()?;
    let checksum = checksum.map(|Whole(checksum)| checksum as u64);
    Ok(EntryCopy {
        class: class.0,
        slots,
        blocks: blocks
            .into_iter()
            .map(|id| id.map(|Whole(id)| id))
            .collect(),
        checksum,
        tokens: None,
    })
}

/// Waits in slices and handles Python's signals in between. Returns whether the wait succeeded in time.
pub fn wait(
    py: Python<'_>,
    timeout: Option<f64>,
    slice: impl Fn(Duration) -> hybrid_pages::error::Result<bool> + Sync,
) -> PyResult<bool> {
    let timeout = timeout.map(seconds).transpose()?.flatten();
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let part = left.map_or(SIGNALS, |left| left.min(SIGNALS));
        let came = py.detach(|| slice(part)).map_err(to_py)?;
        py.check_signals()?;
        if came || left.is_some_and(|left| left <= part) {
            return Ok(came);
        }
    }
}

/// The timeout as a duration that the clock can hold; `None` for infinity.
fn seconds(timeout: f64) -> PyResult<Option<Duration>> {
    if timeout.is_nan() || timeout < 0.0 {
        return Err(to_py(Error::InvalidArgument(format!(
            "timeout: expected seconds of at least 0, found {timeout}"
        ))));
    }
    Ok(Duration::try_from_secs_f64(timeout).ok())
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    // The module does not export the base class: only its methods are public.
    m.add_class::<PyCompletion>()
}
