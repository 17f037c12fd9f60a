//! Read and write leases, as Python objects.

use std::sync::{Mutex, MutexGuard};

use hybrid_pages::cache::{LeaseEntry, ReadLease, WriteLease};
use hybrid_pages::guarded::lock;
use hybrid_pages_vllm::stores::left_out;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::block_tables::{PyTableColumns, PyTables};
use crate::error::to_py;
use crate::number::Whole;

/// One page or checkpoint under a lease, all ranks together.
#[pyclass(
    frozen,
    eq,
    hash,
    get_all,
    name = "LeaseEntry",
    module = "hybrid_pages._core"
)]
#[derive(PartialEq, Eq, Hash)]
pub struct PyLeaseEntry {
    class_index: usize,
    block_index: usize,
    slots: Vec<u32>,
    checksums: Vec<u64>,
}

#[pymethods]
impl PyLeaseEntry {
    fn __repr__(&self) -> String {
        format!(
            "LeaseEntry(class_index={}, block_index={}, slots={:?}, checksums={:?})",
            self.class_index, self.block_index, self.slots, self.checksums
        )
    }
}

fn entry_list(entries: &[LeaseEntry]) -> Vec<PyLeaseEntry> {
    let entry = |entry: &LeaseEntry| PyLeaseEntry {
        class_index: entry.class_index,
        block_index: entry.block_index,
        slots: entry.slots.iter().map(|slot| slot.0).collect(),
        checksums: entry.checksums.clone(),
    };
    entries.iter().map(entry).collect()
}

/// An entry to load: class, slots, engine blocks, checksums.
type LoadEntry = (usize, Vec<u32>, Vec<Option<u32>>, Vec<u64>);

/// Keeps the entries of a load in the host until it is released, dropped, or left as a context manager.
#[pyclass(frozen, name = "ReadLease", module = "hybrid_pages._core")]
pub struct PyReadLease {
    inner: Mutex<ReadLease>,
}

impl PyReadLease {
    pub const fn new(lease: ReadLease) -> Self {
        Self {
            inner: Mutex::new(lease),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, ReadLease> {
        lock(&self.inner)
    }
}

#[pymethods]
impl PyReadLease {
    #[getter]
    fn first(&self) -> usize {
        self.lock().first()
    }

    #[getter]
    fn blocks(&self) -> usize {
        self.lock().blocks()
    }

    #[getter]
    fn entries(&self) -> Vec<PyLeaseEntry> {
        entry_list(self.lock().entries())
    }

    fn targets(
        &self,
        columns: &PyTableColumns,
        tables: &Bound<'_, PyAny>,
        resumes: Whole,
    ) -> PyResult<Vec<LoadEntry>> {
        // Reading the tables may run Python code, which may use this lease.
        let (blocks, held) = {
            let lease = self.lock();
            (lease.first()..lease.blocks(), lease.entries().to_vec())
        };
        let targets = columns
            .inner
            .loads(&PyTables::of(tables)?, blocks, resumes.0)?;
        let mut entries = Vec::with_capacity(held.len());
        for entry in held {
            let blocks = targets
                .of(entry.class_index, entry.block_index)
                .map_err(to_py)?;
            if blocks.iter().any(Option::is_some) {
                let slots = entry.slots.iter().map(|slot| slot.0).collect();
                entries.push((entry.class_index, slots, blocks, entry.checksums.clone()));
            }
        }
        Ok(entries)
    }

    #[getter]
    fn released(&self) -> bool {
        self.lock().released()
    }

    fn release(&self) {
        self.lock().release();
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.release();
    }
}

/// Slots for new entries, which nobody sees until they are committed.
#[pyclass(frozen, name = "WriteLease", module = "hybrid_pages._core")]
pub struct PyWriteLease {
    inner: Mutex<WriteLease>,
    /// Wanted entries that were there already, besides those that the lease counts.
    resident: usize,
}

impl PyWriteLease {
    pub const fn new(lease: WriteLease, resident: usize) -> Self {
        Self {
            resident,
            inner: Mutex::new(lease),
        }
    }

    fn lock(&self) -> MutexGuard<'_, WriteLease> {
        lock(&self.inner)
    }
}

#[pymethods]
impl PyWriteLease {
    #[getter]
    fn entries(&self) -> Vec<PyLeaseEntry> {
        entry_list(self.lock().entries())
    }

    #[getter]
    fn skipped<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let skipped = self.lock().skipped();
        let dict = PyDict::new(py);
        let resident = self.resident + skipped.resident;
        if resident > 0 {
            dict.set_item("resident", resident)?;
        }
        for (reason, count) in left_out(skipped) {
            dict.set_item(reason, count)?;
        }
        Ok(dict)
    }

    #[getter]
    fn ended(&self) -> bool {
        self.lock().ended()
    }

    fn commit(&self, checksums: Option<Vec<Vec<Whole>>>) -> PyResult<()> {
        let Some(checksums) = checksums else {
            let published = self.lock().commit_without_checksums();
            return published.map(|_| ()).map_err(to_py);
        };
        let sums = |sums: Vec<Whole>| sums.into_iter().map(|Whole(sum)| sum as u64).collect();
        let checksums: Vec<Vec<u64>> = checksums.into_iter().map(sums).collect();
        self.lock().commit(&checksums).map(|_| ()).map_err(to_py)
    }

    fn abort(&self) {
        self.lock().abort();
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.abort();
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyLeaseEntry>()?;
    m.add_class::<PyReadLease>()?;
    m.add_class::<PyWriteLease>()
}
