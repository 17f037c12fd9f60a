//! A disk below a cache.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hybrid_pages::cache::CacheConfig;
use hybrid_pages::error::Error;
use hybrid_pages::policy;
use hybrid_pages::tier::disk::{
    Disk, DiskHandle, DiskOptions, LATENCY_LIMITS_US, Latencies, Reason,
};
use hybrid_pages::tier::{Below, Identity};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arena::PyArena;
use crate::cache::class_configs;
use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::number::Whole;

/// Entries on a local disk, for one cache.
#[pyclass(frozen, name = "Disk", module = "hybrid_pages._core")]
pub struct PyDisk {
    /// Until a cache takes it.
    inner: Mutex<Option<Disk>>,
    handle: DiskHandle,
    slot_bytes: usize,
}

impl PyDisk {
    /// The tier itself, which one cache may have.
    pub fn take(&self, slot_bytes: usize) -> PyResult<Box<dyn Below>> {
        if slot_bytes != self.slot_bytes {
            return Err(to_py(Error::InvalidArgument(format!(
                "disk: expected slots of {slot_bytes} bytes as in the cache, found {}",
                self.slot_bytes
            ))));
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.take() {
            Some(disk) => Ok(Box::new(disk)),
            None => Err(to_py(Error::InvalidArgument(
                "disk: expected one that no cache has, found one in use: make another".into(),
            ))),
        }
    }
}

#[pymethods]
impl PyDisk {
    #[new]
    #[pyo3(
        signature = (
            geometry, *, slot_bytes, path, quota_bytes, lane = 0, deadline_ms = Whole(2000),
            threads = Whole(4), queue_bytes = Whole(1 << 30), policy = "lru"
        ),
        text_signature = "(geometry, *, slot_bytes, path, quota_bytes, lane=0, deadline_ms=2000, threads=4, queue_bytes=1073741824, policy='lru')"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        geometry: &PyGeometry,
        slot_bytes: Whole,
        path: std::path::PathBuf,
        quota_bytes: Whole,
        lane: u32,
        deadline_ms: Whole,
        threads: Whole,
        queue_bytes: Whole,
        policy: &str,
    ) -> PyResult<Self> {
        let mut options = DiskOptions::new(path, quota_bytes.0 as u64);
        options.lane = lane;
        options.deadline = Duration::from_millis(deadline_ms.0 as u64);
        options.threads = threads.0;
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
        let disk = py
            .detach(|| Disk::open(options, geometry, slot_bytes.0, policy))
            .map_err(to_py)?;
        Ok(Self {
            handle: disk.handle(),
            inner: Mutex::new(Some(disk)),
            slot_bytes: slot_bytes.0,
        })
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

    fn latencies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.handle.stats();
        let dict = PyDict::new(py);
        let taken = |latencies: Latencies| (latencies.buckets.to_vec(), latencies.sum_us);
        dict.set_item("read", taken(stats.read_latencies))?;
        dict.set_item("write", taken(stats.write_latencies))?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let stats = self.handle.stats();
        format!(
            "Disk(entries={}, live_bytes={}, quota_bytes={})",
            stats.entries, stats.live_bytes, stats.quota_bytes
        )
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("DISK_LATENCY_LIMITS_US", LATENCY_LIMITS_US.to_vec())?;
    m.add_class::<PyDisk>()
}
