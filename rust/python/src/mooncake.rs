//! A Mooncake Store below a cache, as a Python object.

use std::ffi::OsString;
use std::time::Duration;

use hybrid_pages_mooncake::{Mooncake, MooncakeHandle, MooncakeOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arena::PyArena;
use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::number::Whole;
use crate::tier::{Untaken, connect, counts, policy_of, settle};

/// Entries in a Mooncake Store, for one cache.
#[pyclass(frozen, name = "Mooncake", module = "hybrid_pages._core")]
pub struct PyMooncake {
    pub inner: Untaken<Mooncake>,
    handle: MooncakeHandle,
    master: String,
}

#[pymethods]
impl PyMooncake {
    #[new]
    #[pyo3(
        signature = (
            geometry, *, slot_bytes, master, command, deadline_ms = Whole(2000), weighs = true,
            queue_bytes = Whole(1 << 30), staging_bytes = Whole(64 << 20), policy = "lru"
        ),
        text_signature = "(geometry, *, slot_bytes, master, command, deadline_ms=2000, weighs=True, queue_bytes=1073741824, staging_bytes=67108864, policy='lru')"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        geometry: &PyGeometry,
        slot_bytes: Whole,
        master: String,
        command: Vec<OsString>,
        deadline_ms: Whole,
        weighs: bool,
        queue_bytes: Whole,
        staging_bytes: Whole,
        policy: &str,
    ) -> PyResult<Self> {
        let mut options = MooncakeOptions::new(master.clone(), command);
        options.deadline = Duration::from_millis(deadline_ms.0 as u64);
        options.weighs = weighs;
        options.queue_bytes = queue_bytes.0 as u64;
        options.staging_bytes = staging_bytes.0;
        let geometry = &geometry.inner;
        let policy = policy_of(policy, geometry, slot_bytes.0)?;
        let mooncake = py
            .detach(|| Mooncake::open(options, geometry, slot_bytes.0, policy))
            .map_err(to_py)?;
        Ok(Self {
            handle: mooncake.handle(),
            inner: Untaken::new("remote", geometry, slot_bytes.0, mooncake),
            master,
        })
    }

    #[getter]
    fn place(&self) -> String {
        format!("mooncake://{}", self.master)
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
            "Mooncake(master={:?}, reads={}, writes={}, out={})",
            self.master, stats.reads, stats.writes, stats.out
        )
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyMooncake>()
}
