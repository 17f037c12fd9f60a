//! The arena as a Python object.

use std::sync::Arc;

use hybrid_pages::error::Error;
use hybrid_pages_arena::{Arena, PlaneOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::number::{Whole, slot, small};

/// Slots in shared memory, a plane per rank. Nothing is left behind when the processes that map it are gone.
#[pyclass(frozen, name = "Arena", module = "hybrid_pages._core")]
pub struct PyArena {
    pub inner: Arc<Arena>,
}

#[pymethods]
impl PyArena {
    #[staticmethod]
    #[pyo3(signature = (geometry, *, slot_bytes, slots, rank = None, huge_pages = None, numa_node = None, private = false))]
    fn create(
        geometry: &PyGeometry,
        slot_bytes: Whole,
        slots: Whole,
        rank: Option<Whole>,
        huge_pages: Option<&str>,
        numa_node: Option<Whole>,
        private: bool,
    ) -> PyResult<Self> {
        let options = PlaneOptions {
            huge_pages: parse_huge_pages(huge_pages)?,
            numa_node: numa_node.map(|node| small("numa_node", node)).transpose()?,
            private,
        };
        let (geometry, slot_bytes, slots) = (&geometry.inner, slot_bytes.0, slots.0);
        let inner = match rank {
            None => Arena::create_with(geometry, slot_bytes, slots, options),
            Some(rank) => Arena::create_plane(geometry, rank.0, slot_bytes, slots, options),
        };
        Ok(Self {
            inner: Arc::new(inner.map_err(to_py)?),
        })
    }

    #[staticmethod]
    fn open(paths: Paths, geometry: &PyGeometry) -> PyResult<Self> {
        let paths = match paths {
            Paths::One(path) => vec![path],
            Paths::Several(paths) => paths,
        };
        let inner = Arena::open(&paths, &geometry.inner).map_err(to_py)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    #[getter]
    fn path(&self) -> PyResult<&str> {
        match self.inner.planes() {
            [plane] => plane.path().ok_or_else(|| {
                to_py(Error::arena(
                    "path: expected shared memory, found private memory, which has none",
                ))
            }),
            planes => Err(to_py(Error::arena(format!(
                "path: expected an arena of one plane, found {}: use paths",
                planes.len()
            )))),
        }
    }

    #[getter]
    fn paths(&self) -> Vec<&str> {
        self.inner
            .planes()
            .iter()
            .filter_map(|plane| plane.path())
            .collect()
    }

    #[getter]
    fn warnings(&self) -> Vec<&str> {
        let planes = self.inner.planes().iter();
        planes.filter_map(|plane| plane.warning()).collect()
    }

    #[getter]
    fn ranks(&self) -> Vec<usize> {
        self.inner
            .planes()
            .iter()
            .map(|plane| plane.rank())
            .collect()
    }

    #[getter]
    fn slots(&self) -> usize {
        self.inner.slots()
    }

    #[getter]
    fn slot_bytes(&self) -> usize {
        self.inner.slot_bytes()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.nbytes()
    }

    #[pyo3(name = "read")]
    fn read_slot<'py>(&self, py: Python<'py>, slot: Whole) -> PyResult<Bound<'py, PyBytes>> {
        let data = self.inner.read(self::slot(slot)?).map_err(to_py)?;
        Ok(PyBytes::new(py, &data))
    }

    #[pyo3(name = "write")]
    fn write_slot(&self, slot: Whole, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        self.inner
            .write(self::slot(slot)?, data.as_bytes())
            .map_err(to_py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let paths = PyList::new(py, self.paths())?.repr()?;
        let (slots, slot_bytes) = (self.inner.slots(), self.inner.slot_bytes());
        Ok(format!(
            "Arena(paths={paths}, slots={slots}, slot_bytes={slot_bytes})"
        ))
    }
}

/// The paths of an arena's planes: one, or a sequence.
#[derive(FromPyObject)]
enum Paths {
    One(String),
    Several(Vec<String>),
}

fn parse_huge_pages(size: Option<&str>) -> PyResult<bool> {
    match size {
        None => Ok(false),
        Some("2M") => Ok(true),
        Some(other) => Err(to_py(Error::InvalidArgument(format!(
            "huge_pages: expected '2M', found '{other}'"
        )))),
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyArena>()
}
