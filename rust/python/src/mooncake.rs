//! A Mooncake Store below a cache.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hybrid_pages::cache::CacheConfig;
use hybrid_pages::error::Error;
use hybrid_pages::policy;
use hybrid_pages::tier::{Below, Identity};
use hybrid_pages_mooncake::{Mooncake, MooncakeHandle, MooncakeOptions, Reason};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arena::PyArena;
use crate::cache::class_configs;
use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::number::Whole;

/// Entries in a Mooncake Store, for one cache.
#[pyclass(frozen, name = "Mooncake", module = "hybrid_pages._core")]
pub struct PyMooncake {
    /// Until a cache takes it.
    inner: Mutex<Option<Mooncake>>,
    handle: MooncakeHandle,
    slot_bytes: usize,
    master: String,
}

impl PyMooncake {
    /// The tier itself, which one cache may have.
    pub fn take(&self, slot_bytes: usize) -> PyResult<Box<dyn Below>> {
        if slot_bytes != self.slot_bytes {
            return Err(to_py(Error::InvalidArgument(format!(
                "remote: expected slots of {slot_bytes} bytes as in the cache, found {}",
                self.slot_bytes
            ))));
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.take() {
            Some(mooncake) => Ok(Box::new(mooncake)),
            None => Err(to_py(Error::InvalidArgument(
                "remote: expected one that no cache has, found one in use: make another".into(),
            ))),
        }
    }
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
        let config = CacheConfig {
            classes: class_configs(geometry, slot_bytes.0).map_err(to_py)?,
            ranks: geometry.ranks(),
            slots: 0,
            slot_bytes: slot_bytes.0,
            policy: policy.to_owned(),
            tenant_slots: None,
        };
        let policy = policy::by_name(policy, config.shape()).map_err(to_py)?;
        let mooncake = py
            .detach(|| Mooncake::open(options, geometry, slot_bytes.0, policy))
            .map_err(to_py)?;
        Ok(Self {
            handle: mooncake.handle(),
            inner: Mutex::new(Some(mooncake)),
            slot_bytes: slot_bytes.0,
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
        let bytes = identity.as_bytes();
        let identity = Identity::try_from(bytes).map_err(|_| {
            to_py(Error::InvalidArgument(format!(
                "identity: expected {} bytes, found {}",
                size_of::<Identity>(),
                bytes.len()
            )))
        })?;
        py.detach(|| self.handle.connect(&arena.inner, &identity))
            .map_err(to_py)
    }

    fn settle(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let limit = Duration::try_from_secs_f64(seconds).map_err(|_| {
            to_py(Error::InvalidArgument(format!(
                "seconds: expected a number from 0 on, found {seconds}"
            )))
        })?;
        Ok(py.detach(|| self.handle.settle(limit)))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.handle.close());
    }

    fn notes(&self) -> Vec<String> {
        self.handle.take_notes()
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.handle.stats();
        let dict = PyDict::new(py);
        for (name, value) in stats.fields() {
            dict.set_item(name, value)?;
        }
        for reason in Reason::ALL {
            let name = format!("failed_{}", reason.name());
            dict.set_item(name, stats.failed(reason))?;
        }
        Ok(dict)
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
