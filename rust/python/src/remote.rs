//! A store that machines share, below a cache, as a Python object.

use std::time::Duration;

use hybrid_pages_remote::{Admit, Remote, RemoteHandle, RemoteOptions, RemotePlace};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arena::PyArena;
use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::number::Whole;
use crate::tier::{Untaken, connect, counts, keys_of, policy_of, settle};

/// Entries in a store that machines share, for one cache.
#[pyclass(frozen, name = "Remote", module = "hybrid_pages._core")]
pub struct PyRemote {
    pub inner: Untaken<Remote>,
    handle: RemoteHandle,
    place: String,
}

#[pymethods]
impl PyRemote {
    #[new]
    #[pyo3(
        signature = (
            geometry, *, slot_bytes, url, deadline_ms = Whole(2000), admit = "auto",
            queue_bytes = Whole(1 << 30), policy = "lru",
            encrypt_key = ""
        ),
        text_signature = "(geometry, *, slot_bytes, url, deadline_ms=2000, admit='auto', queue_bytes=1073741824, policy='lru', encrypt_key='')"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        geometry: &PyGeometry,
        slot_bytes: Whole,
        url: &str,
        deadline_ms: Whole,
        admit: &str,
        queue_bytes: Whole,
        policy: &str,
        encrypt_key: &str,
    ) -> PyResult<Self> {
        let place = place_of(py, url)?;
        let shown = place.shown().to_owned();
        let mut options = RemoteOptions::new(place);
        options.deadline = Duration::from_millis(deadline_ms.0 as u64);
        options.admit = Admit::by_name(admit).map_err(to_py)?;
        options.queue_bytes = queue_bytes.0 as u64;
        options.keys = keys_of(encrypt_key)?;
        let geometry = &geometry.inner;
        let policy = policy_of(policy, geometry, slot_bytes.0)?;
        let remote = Remote::open(options, geometry, slot_bytes.0, policy).map_err(to_py)?;
        Ok(Self {
            handle: remote.handle(),
            inner: Untaken::new("remote", geometry, slot_bytes.0, remote),
            place: shown,
        })
    }

    #[staticmethod]
    fn check(py: Python<'_>, url: &str) -> PyResult<String> {
        let place = place_of(py, url)?;
        Ok(place.shown().to_owned())
    }

    #[getter]
    fn place(&self) -> &str {
        &self.place
    }

    fn connect(
        &self,
        py: Python<'_>,
        arena: &PyArena,
        identity: &Bound<'_, PyBytes>,
    ) -> PyResult<()> {
        connect(py, identity, |identity| {
            self.handle.connect(&arena.inner, identity)
        })
    }

    fn describe(&self, py: Python<'_>, about: &str) {
        py.detach(|| self.handle.describe(about));
    }

    fn settle(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        settle(py, seconds, |limit| self.handle.settle(limit))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.handle.close());
    }

    fn notes(&self) -> Vec<String> {
        self.handle.take_notes()
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counts(py, &self.handle.stats())
    }

    fn __repr__(&self) -> String {
        let stats = self.handle.stats();
        format!(
            "Remote(place='{}', entries={}, packs={})",
            self.place, stats.entries, stats.packs
        )
    }
}

/// The place of a URL. Clients read the environment, which other threads of Python may change only while this one does
/// not hold the interpreter. A directory may hang, and no environment is read for it.
fn place_of(py: Python<'_>, url: &str) -> PyResult<RemotePlace> {
    let is_directory = url.trim_start().to_ascii_lowercase().starts_with("file:");
    let place = if is_directory {
        py.detach(|| RemotePlace::of_url(url))
    } else {
        RemotePlace::of_url(url)
    };
    place.map_err(to_py)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyRemote>()
}
