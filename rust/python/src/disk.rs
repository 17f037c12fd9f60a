//! A disk below a cache, as a Python object.

use std::time::Duration;

use hybrid_pages_disk::{Disk, DiskHandle, DiskOptions, LATENCY_LIMITS_US, Latencies};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arena::PyArena;
use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::number::{Whole, small};
use crate::tier::{Untaken, connect, counts, keys_of, policy_of, settle};

/// Entries on a local disk, for one cache.
#[pyclass(frozen, name = "Disk", module = "hybrid_pages._core")]
pub struct PyDisk {
    pub inner: Untaken<Disk>,
    handle: DiskHandle,
}

#[pymethods]
impl PyDisk {
    #[new]
    #[pyo3(
        signature = (
            geometry, *, slot_bytes, path, quota_bytes, lane = Whole(0), deadline_ms = Whole(2000),
            threads = Whole(4), queue_bytes = Whole(1 << 30), policy = "lru",
            encrypt_key = ""
        ),
        text_signature = "(geometry, *, slot_bytes, path, quota_bytes, lane=0, deadline_ms=2000, threads=4, queue_bytes=1073741824, policy='lru', encrypt_key='')"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        geometry: &PyGeometry,
        slot_bytes: Whole,
        path: std::path::PathBuf,
        quota_bytes: Whole,
        lane: Whole,
        deadline_ms: Whole,
        threads: Whole,
        queue_bytes: Whole,
        policy: &str,
        encrypt_key: &str,
    ) -> PyResult<Self> {
        let mut options = DiskOptions::new(path, quota_bytes.0 as u64);
        options.lane = small("lane", lane)?;
        options.deadline = Duration::from_millis(deadline_ms.0 as u64);
        options.threads = threads.0;
        options.queue_bytes = queue_bytes.0 as u64;
        options.keys = keys_of(encrypt_key)?;
        let geometry = &geometry.inner;
        let policy = policy_of(policy, geometry, slot_bytes.0)?;
        let disk = py
            .detach(|| Disk::open(options, geometry, slot_bytes.0, policy))
            .map_err(to_py)?;
        Ok(Self {
            handle: disk.handle(),
            inner: Untaken::new("disk", geometry, slot_bytes.0, disk),
        })
    }

    #[pyo3(signature = (arena, identity, *, meanwhile = false))]
    fn connect(
        &self,
        py: Python<'_>,
        arena: &PyArena,
        identity: &Bound<'_, PyBytes>,
        meanwhile: bool,
    ) -> PyResult<()> {
        connect(py, identity, |identity| {
            if meanwhile {
                self.handle.connect_meanwhile(&arena.inner, identity)
            } else {
                self.handle.connect(&arena.inner, identity)
            }
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
