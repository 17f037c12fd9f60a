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

/// One entry: its class, and where its slots and its engine blocks end among those of all.
#[derive(PartialEq, Eq)]
struct StoreEntry {
    class: usize,
    slots: usize,
    blocks: usize,
}

/// The entries of a store, which become Python objects only where somebody looks.
#[pyclass(frozen, eq, name = "StoreEntries", module = "hybrid_pages._core")]
#[derive(Default, PartialEq, Eq)]
pub struct PyStoreEntries {
    entries: Vec<StoreEntry>,
    slots: Vec<SlotId>,
    blocks: Vec<u32>,
}

#[pymethods]
impl PyStoreEntries {
    #[new]
    fn new(entries: Vec<Given>) -> PyResult<Self> {
        let mut made = Self::default();
        for (class, slots, blocks) in entries {
            let slots: Vec<_> = slots.into_iter().map(slot).collect::<PyResult<_>>()?;
            let blocks: Vec<_> = blocks
                .into_iter()
                .map(engine_block)
                .collect::<PyResult<_>>()?;
            made.push(class.0, &slots, &blocks);
        }
        Ok(made)
    }

    #[pyo3(name = "__len__")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.listed(py)?.try_iter()
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>,)> {
        Ok((self.listed(py)?,))
    }

    pub fn sources<'py>(&self, blocks: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut sources = Vec::with_capacity(self.blocks.len());
        for &id in &self.blocks {
            sources.push(blocks.get_item(id as usize)?);
        }
        Ok(sources)
    }
}

impl PyStoreEntries {
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Nothing yet, with room for so many entries and engine blocks.
    pub fn with_capacity(entries: usize, blocks: usize) -> Self {
        Self {
            entries: Vec::with_capacity(entries),
            slots: Vec::new(),
            blocks: Vec::with_capacity(blocks),
        }
    }

    pub fn push(&mut self, class: usize, slots: &[SlotId], blocks: &[u32]) {
        if self.entries.is_empty() {
            // Most often nearly all of them are pages, which are alike.
            self.slots.reserve(slots.len() * self.entries.capacity());
        }
        self.slots.extend_from_slice(slots);
        self.blocks.extend_from_slice(blocks);
        self.entries.push(StoreEntry {
            class,
            slots: self.slots.len(),
            blocks: self.blocks.len(),
        });
    }

    /// Class, slots and engine blocks of each.
    fn iter(&self) -> impl Iterator<Item = (usize, &[SlotId], &[u32])> {
        let mut from = (0, 0);
        self.entries.iter().map(move |entry| {
            let (slots, blocks) = std::mem::replace(&mut from, (entry.slots, entry.blocks));
            let (slots, blocks) = (slots..entry.slots, blocks..entry.blocks);
            (entry.class, &self.slots[slots], &self.blocks[blocks])
        })
    }

    fn listed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let plain = |(class, slots, blocks): (usize, &[SlotId], &[u32])| {
            let slots: Vec<u32> = slots.iter().map(|slot| slot.0).collect();
            (class, slots, blocks.to_vec())
        };
        let entries: Vec<_> = self.iter().map(plain).collect();
        PyList::new(py, entries)
    }
}

/// The entries that a caller of `store` gives: packed, or as tuples.
pub struct ToStore(pub Vec<EntryCopy>);

impl<'py> FromPyObject<'_, 'py> for ToStore {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(packed) = object.cast::<PyStoreEntries>() {
            let copy = |(class, slots, blocks): (usize, &[SlotId], &[u32])| EntryCopy {
                class,
                slots: slots.to_vec(),
                blocks: blocks.iter().map(|&id| Some(id as usize)).collect(),
                checksum: None,
            };
            return Ok(Self(packed.get().iter().map(copy).collect()));
        }
        let given: Vec<Bound<'py, PyTuple>> = object.extract()?;
        to_store(&given).map(Self)
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyStoreEntries>()
}
