//! The entries of a store, as a Python object.

use hybrid_pages::ids::SlotId;
use hybrid_pages::transfer::EntryCopy;
use hybrid_pages_vllm::entries::StoreEntries;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList, PyTuple};

use crate::block_tables::engine_block;
use crate::copy_engine::to_store;
use crate::number::{Whole, slot};

/// An entry to store: class, slots, engine blocks.
type GivenEntry = (Whole, Vec<Whole>, Vec<Whole>);

/// The entries of a store. They become Python objects only when they are looked at.
#[pyclass(frozen, eq, name = "StoreEntries", module = "hybrid_pages._core")]
#[derive(PartialEq, Eq)]
pub struct PyStoreEntries {
    pub inner: StoreEntries,
}

#[pymethods]
impl PyStoreEntries {
    #[new]
    fn new(entries: Vec<GivenEntry>) -> PyResult<Self> {
        let mut inner = StoreEntries::default();
        for (class, slots, blocks) in entries {
            let slots: Vec<_> = slots.into_iter().map(slot).collect::<PyResult<_>>()?;
            let blocks: Vec<_> = blocks
                .into_iter()
                .map(engine_block)
                .collect::<PyResult<_>>()?;
            inner.push(class.0, &slots, &blocks);
        }
        Ok(Self { inner })
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.listed(py)?.try_iter()
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>,)> {
        Ok((self.listed(py)?,))
    }

    fn sources<'py>(&self, blocks: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let ids = self.inner.blocks().iter();
        ids.map(|&id| blocks.get_item(id as usize)).collect()
    }
}

impl PyStoreEntries {
    fn listed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let plain = |(class, slots, blocks): (usize, &[SlotId], &[u32])| {
            let slots: Vec<u32> = slots.iter().map(|slot| slot.0).collect();
            (class, slots, blocks.to_vec())
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
