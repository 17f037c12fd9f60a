//! What a store copies.

use hybrid_pages::ids::SlotId;
use hybrid_pages::transfer::EntryCopy;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList, PyTuple};

use crate::number::{Whole, slot};
use crate::running::to_store;
use crate::tables::engine_block;

/// Class, slots, engine blocks.
type Given = (Whole, Vec<Whole>, Vec<Whole>);

/// One entry.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreEntry {
    pub class: usize,
    pub slots: Vec<SlotId>,
    pub blocks: Vec<u32>,
}

impl StoreEntry {
    fn plain(&self) -> (usize, Vec<u32>, Vec<u32>) {
        let slots = self.slots.iter().map(|slot| slot.0).collect();
        (self.class, slots, self.blocks.clone())
    }

    fn to_copy(&self) -> EntryCopy {
        EntryCopy {
            class: self.class,
            slots: self.slots.clone(),
            blocks: self.blocks.iter().map(|&id| Some(id as usize)).collect(),
            checksum: None,
        }
    }
}

/// The entries of a store, which become Python objects only where somebody looks.
#[pyclass(frozen, eq, name = "StoreEntries", module = "hybrid_pages._core")]
#[derive(PartialEq, Eq)]
pub struct PyStoreEntries {
    pub entries: Vec<StoreEntry>,
}

#[pymethods]
impl PyStoreEntries {
    #[new]
    fn new(entries: Vec<Given>) -> PyResult<Self> {
        let entry = |(class, slots, blocks): Given| {
            Ok(StoreEntry {
                class: class.0,
                slots: slots.into_iter().map(slot).collect::<PyResult<_>>()?,
                blocks: blocks
                    .into_iter()
                    .map(engine_block)
                    .collect::<PyResult<_>>()?,
            })
        };
        let entries = entries.into_iter().map(entry).collect::<PyResult<_>>()?;
        Ok(Self { entries })
    }

    fn __len__(&self) -> usize {
        self.entries.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.listed(py)?.try_iter()
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>,)> {
        Ok((self.listed(py)?,))
    }

    fn by_class(&self, classes: Whole) -> Vec<usize> {
        let mut counts = vec![0; classes.0];
        for entry in &self.entries {
            if let Some(count) = counts.get_mut(entry.class) {
                *count += 1;
            }
        }
        counts
    }

    fn sources<'py>(&self, blocks: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
        let ids = self.entries.iter().flat_map(|entry| &entry.blocks);
        let items: Vec<_> = ids
            .map(|&id| blocks.get_item(id as usize))
            .collect::<PyResult<_>>()?;
        PyList::new(blocks.py(), items)
    }
}

impl PyStoreEntries {
    fn listed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let entries: Vec<_> = self.entries.iter().map(StoreEntry::plain).collect();
        PyList::new(py, entries)
    }
}

/// The entries that a caller of `store` gives: packed, or as tuples.
pub struct ToStore(pub Vec<EntryCopy>);

impl<'py> FromPyObject<'_, 'py> for ToStore {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(packed) = object.cast::<PyStoreEntries>() {
            let entries = packed.get().entries.iter();
            return Ok(Self(entries.map(StoreEntry::to_copy).collect()));
        }
        let given: Vec<Bound<'py, PyTuple>> = object.extract()?;
        to_store(&given).map(Self)
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyStoreEntries>()
}
