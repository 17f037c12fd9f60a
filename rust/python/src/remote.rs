//! A store that machines share, below a cache.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hybrid_pages::cache::CacheConfig;
use hybrid_pages::error::Error;
use hybrid_pages::policy;
use hybrid_pages::tier::{Below, Identity};
use hybrid_pages_remote::{Admit, Place, Reason, Remote, RemoteHandle, RemoteOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arena::PyArena;
use crate::cache::class_configs;
use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::number::Whole;

/// Entries in a store that machines share, for one cache.
#[pyclass(frozen, name = "Remote", module = "hybrid_pages._core")]
pub struct PyRemote {
    /// Until a cache takes it.
    inner: Mutex<Option<Remote>>,
    handle: RemoteHandle,
    slot_bytes: usize,
    place: String,
}

impl PyRemote {
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
            Some(remote) => Ok(Box::new(remote)),
            None => Err(to_py(Error::InvalidArgument(
                "remote: expected one that no cache has, found one in use: make another".into(),
            ))),
        }
    }
}

#[pymethods]
impl PyRemote {
    #[new]
    #[pyo3(
        signature = (
            geometry, *, slot_bytes, url, deadline_ms = Whole(2000), admit = "auto",
            queue_bytes = Whole(1 << 30), policy = "lru"
        ),
        text_signature = "(geometry, *, slot_bytes, url, deadline_ms=2000, admit='auto', queue_bytes=1073741824, policy='lru')"
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
    ) -> PyResult<Self> {
        let place = py.detach(|| Place::of_url(url)).map_err(to_py)?;
        let shown = place.shown().to_owned();
        let mut options = RemoteOptions::new(place);
        options.deadline = Duration::from_millis(deadline_ms.0 as u64);
        options.admit = Admit::by_name(admit).map_err(to_py)?;
        options.queue_bytes = queue_bytes.0 as u64;
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
        let remote = Remote::open(options, geometry, slot_bytes.0, policy).map_err(to_py)?;
        Ok(Self {
            handle: remote.handle(),
            inner: Mutex::new(Some(remote)),
            slot_bytes: slot_bytes.0,
            place: shown,
        })
    }

    #[staticmethod]
    fn check(py: Python<'_>, url: &str) -> PyResult<String> {
        let place = py.detach(|| Place::of_url(url)).map_err(to_py)?;
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

    fn describe(&self, py: Python<'_>, about: &str) {
        py.detach(|| self.handle.describe(about));
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
            "Remote(place='{}', entries={}, packs={})",
            self.place, stats.entries, stats.packs
        )
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyRemote>()
}
