//! Restores, as Python objects.

use std::sync::{Mutex, MutexGuard};

use hybrid_pages::cache::{Restore, RestoreProgress};
use hybrid_pages::guarded::lock;
use pyo3::prelude::*;

use crate::lease::PyReadLease;

/// Brings a hit to the host wave by wave, until it is ended, dropped, or left as a context manager.
#[pyclass(frozen, name = "Restore", module = "hybrid_pages._core")]
pub struct PyRestore {
    inner: Mutex<Restore>,
}

impl PyRestore {
    pub const fn new(restore: Restore) -> Self {
        Self {
            inner: Mutex::new(restore),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Restore> {
        lock(&self.inner)
    }
}

#[pymethods]
impl PyRestore {
    #[getter]
    fn first(&self) -> usize {
        self.lock().first()
    }

    #[getter]
    fn blocks(&self) -> usize {
        self.lock().blocks()
    }

    #[getter]
    fn whole(&self) -> bool {
        self.lock().whole()
    }

    #[getter]
    fn slots(&self) -> u64 {
        self.lock().slots()
    }

    #[getter]
    fn depths(&self) -> Vec<(String, usize)> {
        self.lock().depths().to_vec()
    }

    fn progress(&self, py: Python<'_>) -> &'static str {
        py.detach(|| name_of(self.lock().progress()))
    }

    fn take(&self, py: Python<'_>) -> Option<PyReadLease> {
        py.detach(|| self.lock().take()).map(PyReadLease::new)
    }

    fn end(&self, py: Python<'_>) {
        py.detach(|| self.lock().end());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.end(py);
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyRestore>()
}

const fn name_of(progress: RestoreProgress) -> &'static str {
    match progress {
        RestoreProgress::Queued => "queued",
        RestoreProgress::Waiting => "waiting",
        RestoreProgress::Ready => "ready",
        RestoreProgress::Done => "done",
        RestoreProgress::Failed => "failed",
    }
}
