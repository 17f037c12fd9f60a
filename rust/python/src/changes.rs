//! Changes of a cache's content, for somebody who follows it.

use hybrid_pages::cache::{Changes, RemovedBlock, StoredBlocks};
use hybrid_pages::ids::PrefixKey;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// A block that was announced before and has left the cache.
#[pyclass(frozen, get_all, name = "Removed", module = "hybrid_pages._core")]
pub struct PyRemoved {
    namespace: u32,
    block_index: usize,
    key: Py<PyBytes>,
    note: Py<PyBytes>,
}

/// Consecutive blocks of one prefix that are announced now.
#[pyclass(frozen, get_all, name = "Span", module = "hybrid_pages._core")]
pub struct PySpan {
    namespace: u32,
    block_index: usize,
    keys: Py<PyList>,
    notes: Py<PyList>,
}

/// Changes since the last call. A follower applies the removals first, then the spans.
#[pyclass(frozen, get_all, name = "Changes", module = "hybrid_pages._core")]
pub struct PyChanges {
    removed: Py<PyList>,
    stored: Py<PyList>,
}

fn key_bytes(py: Python<'_>, key: &PrefixKey) -> Py<PyBytes> {
    PyBytes::new(py, key.as_bytes()).unbind()
}

fn removal(py: Python<'_>, removed: &RemovedBlock) -> PyRemoved {
    PyRemoved {
        namespace: removed.namespace.0,
        block_index: removed.block_index,
        key: key_bytes(py, &removed.key),
        note: PyBytes::new(py, &removed.note).unbind(),
    }
}

fn span(py: Python<'_>, span: &StoredBlocks) -> PyResult<PySpan> {
    let keys = span.blocks.iter().map(|(key, _)| key_bytes(py, key));
    let notes = span.blocks.iter().map(|(_, note)| PyBytes::new(py, note));
    Ok(PySpan {
        namespace: span.namespace.0,
        block_index: span.block_index,
        keys: PyList::new(py, keys.collect::<Vec<_>>())?.unbind(),
        notes: PyList::new(py, notes.collect::<Vec<_>>())?.unbind(),
    })
}

impl PyChanges {
    pub fn new(py: Python<'_>, changes: &Changes) -> PyResult<Self> {
        let removed = changes.removed.iter();
        let removed = removed.map(|it| Py::new(py, removal(py, it)));
        let stored = changes.stored.iter();
        let stored = stored.map(|it| Py::new(py, span(py, it)?));
        Ok(Self {
            removed: PyList::new(py, removed.collect::<PyResult<Vec<_>>>()?)?.unbind(),
            stored: PyList::new(py, stored.collect::<PyResult<Vec<_>>>()?)?.unbind(),
        })
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyRemoved>()?;
    m.add_class::<PySpan>()?;
    m.add_class::<PyChanges>()
}
