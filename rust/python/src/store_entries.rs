//! The entries of a store, as a Python object.

use hybrid_pages::error::Error;
use hybrid_pages::transfer::EntryCopy;
use hybrid_pages_vllm::entries::{StateCopy, StoreEntries, StoreEntry};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList, PyTuple};

use crate::block_tables::engine_block;
use crate::copy_engine::to_store;
use crate::error::to_py;
use crate::number::Whole;

/// A copy of a state within the engine's memory: its group, and the engine blocks that it is copied from and to.
type PyStateCopy = (usize, u32, u32);

/// The entries of a store. They become Python objects only when they are looked at.
#[pyclass(frozen, eq, name = "StoreEntries", module = "hybrid_pages._core")]
#[derive(PartialEq, Eq)]
pub struct PyStoreEntries {
    pub inner: StoreEntries,
}

#[pymethods]
impl PyStoreEntries {
    #[new]
    #[pyo3(signature = (entries, state_copies = Vec::new()), text_signature = "(entries, state_copies=())")]
    fn new(
        entries: Vec<Bound<'_, PyTuple>>,
        state_copies: Vec<(Whole, Whole, Whole)>,
    ) -> PyResult<Self> {
        let mut inner = StoreEntries::default();
        for entry in to_store(&entries)? {
            let id = |block: Option<usize>| match block {
                Some(id) => engine_block(Whole(id)),
                None if entry.tokens.is_some() => Ok(0),
                None => Err(to_py(Error::InvalidArgument(
                    "engine block: expected an id, found None in an entry that has all its tokens"
                        .into(),
                ))),
            };
            let blocks: Vec<_> = entry.blocks.into_iter().map(id).collect::<PyResult<_>>()?;
            inner.push(StoreEntry {
                class: entry.class,
                slots: &entry.slots,
                blocks: &blocks,
                tokens: entry.tokens,
            });
        }
        for (group, from, to) in state_copies {
            let (group, from, to) = (group.0, engine_block(from)?, engine_block(to)?);
            inner.push_state_copy(StateCopy { group, from, to });
        }
        Ok(Self { inner })
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.listed(py)?.try_iter()
    }

    fn __getnewargs__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyList>, Vec<PyStateCopy>)> {
        Ok((self.listed(py)?, self.state_copies()))
    }

    #[getter]
    fn state_copies(&self) -> Vec<PyStateCopy> {
        let copies = self.inner.state_copies().iter();
        copies
            .map(|each| (each.group, each.from, each.to))
            .collect()
    }

    fn sources<'py>(&self, blocks: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let ids = self.inner.sources().into_iter();
        ids.map(|id| blocks.get_item(id as usize)).collect()
    }
}

impl PyStoreEntries {
    fn listed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let plain = |entry: StoreEntry<'_>| {
            let slots: Vec<u32> = entry.slots.iter().map(|slot| slot.0).collect();
            let blocks: Vec<_> = entry.sources().collect();
            (entry.class, slots, blocks, entry.tokens)
        };
        let entries: Vec<_> = self.inner.iter().map(plain).collect();
        PyList::new(py, entries)
    }
}

/// The argument of `store`: `StoreEntries`, or a sequence of tuples.
pub struct ToStore(pub Vec<EntryCopy>);

impl<'py> FromPyObject<'_, 'py> for ToStore {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(packed) = object.cast::<PyStoreEntries>() {
            return Ok(Self(packed.get().inner.copies()));
        }
        let given: Vec<Bound<'py, PyTuple>> = object.extract()?;
        to_store(&given).map(Self)
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyStoreEntries>()
}
