//! A geometry and its parts as Python objects: frozen, and compared by value.

use std::collections::BTreeMap;
use std::sync::Arc;

use hybrid_pages::cache::ClassConfig;
use hybrid_pages::error::Error;
use hybrid_pages::geometry::{self, Dtype, Geometry, Group, Layer, PageClass, Segment};
use pyo3::exceptions::PyUnicodeEncodeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyString, PyTuple};

use crate::error::to_py;
use crate::number::{Whole, plain, whole};

/// The classes of a geometry, as a cache with slots of this size needs them.
pub fn class_configs(geometry: &Geometry, slot_bytes: usize) -> Result<Vec<ClassConfig>, Error> {
    let class = |class: &PageClass| {
        Ok(ClassConfig {
            kind: class.kind,
            window_blocks: class.window_blocks.unwrap_or_default(),
            slots_per_entry: geometry.slots_per_entry(class.index, slot_bytes)?,
        })
    };
    geometry.classes().iter().map(class).collect()
}

/// A string of Python's, which may hold halves of characters that no text has.
fn text(object: &Bound<'_, PyAny>) -> PyResult<String> {
    object.extract().map_err(|error: PyErr| {
        if !error.is_instance_of::<PyUnicodeEncodeError>(object.py()) {
            return error;
        }
        to_py(Error::InvalidArgument(format!(
            "expected a text that UTF-8 can write, found {}",
            object
                .repr()
                .map_or_else(|_| "another".into(), |repr| repr.to_string())
        )))
    })
}

/// A dense, typed piece of one layer's page or checkpoint on one rank.
#[pyclass(frozen, eq, hash, name = "Segment", module = "hybrid_pages._core")]
#[derive(PartialEq, Eq, Hash)]
pub struct PySegment {
    inner: Segment,
}

#[pymethods]
impl PySegment {
    #[new]
    fn new(
        #[pyo3(from_py_with = text)] name: String,
        dtype: &str,
        shape: Vec<Whole>,
    ) -> PyResult<Self> {
        let dtype = Dtype::parse(dtype).map_err(to_py)?;
        let inner = Segment::new(name, dtype, plain(shape)).map_err(to_py)?;
        Ok(Self { inner })
    }

    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.inner.dtype().name()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.shape())
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.inner.bytes()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let name = PyString::new(py, self.inner.name()).repr()?;
        let shape = self.shape(py)?.repr()?;
        Ok(format!("Segment({name}, '{}', {shape})", self.dtype()))
    }
}

/// One layer's share of one of the engine's blocks on one rank: its segments, densely in order.
#[pyclass(frozen, eq, hash, name = "Layer", module = "hybrid_pages._core")]
#[derive(PartialEq, Eq, Hash)]
pub struct PyLayer {
    inner: Layer,
}

#[pymethods]
impl PyLayer {
    #[new]
    fn new(
        #[pyo3(from_py_with = text)] name: String,
        segments: Vec<Bound<'_, PySegment>>,
    ) -> PyResult<Self> {
        let segments = segments
            .iter()
            .map(|segment| segment.get().inner.clone())
            .collect();
        Ok(Self {
            inner: Layer::new(name, segments).map_err(to_py)?,
        })
    }

    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    #[getter]
    fn segments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let segments = self
            .inner
            .segments()
            .iter()
            .cloned()
            .map(|inner| PySegment { inner });
        PyTuple::new(py, segments.collect::<Vec<_>>())
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.inner.bytes()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let name = PyString::new(py, self.inner.name()).repr()?;
        Ok(format!("Layer({name}, {})", self.segments(py)?.repr()?))
    }
}

/// Layers that share a block table. kind: attention, window or recurrent.
#[pyclass(frozen, eq, hash, name = "Group", module = "hybrid_pages._core")]
#[derive(PartialEq, Eq, Hash)]
pub struct PyGroup {
    inner: Group,
}

#[pymethods]
impl PyGroup {
    #[new]
    #[pyo3(signature = (kind, layers, *, window_tokens = None, blocks_per_entry = 1))]
    fn new(
        kind: &str,
        layers: Vec<Bound<'_, PyLayer>>,
        window_tokens: Option<Whole>,
        #[pyo3(from_py_with = whole)] blocks_per_entry: usize,
    ) -> PyResult<Self> {
        let kind = geometry::parse_kind(kind).map_err(to_py)?;
        let layers = layers
            .iter()
            .map(|layer| layer.get().inner.clone())
            .collect();
        let inner = Group::new(kind, layers, window_tokens.map(|Whole(n)| n))
            .and_then(|group| group.with_blocks_per_entry(blocks_per_entry))
            .map_err(to_py)?;
        Ok(Self { inner })
    }

    #[getter]
    fn kind(&self) -> &'static str {
        geometry::kind_name(self.inner.kind())
    }

    #[getter]
    fn layers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let layers = self
            .inner
            .layers()
            .iter()
            .cloned()
            .map(|inner| PyLayer { inner });
        PyTuple::new(py, layers.collect::<Vec<_>>())
    }

    #[getter]
    fn window_tokens(&self) -> Option<usize> {
        self.inner.window_tokens()
    }

    #[getter]
    fn blocks_per_entry(&self) -> usize {
        self.inner.blocks_per_entry()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.inner.bytes()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let window = self
            .window_tokens()
            .map_or(String::new(), |n| format!(", window_tokens={n}"));
        let blocks = match self.blocks_per_entry() {
            1 => String::new(),
            n => format!(", blocks_per_entry={n}"),
        };
        Ok(format!(
            "Group('{}', {}{window}{blocks})",
            self.kind(),
            self.layers(py)?.repr()?
        ))
    }
}

/// Groups whose bytes at one block form one entry. For all ranks together, it is whole or absent.
#[pyclass(frozen, eq, name = "PageClass", module = "hybrid_pages._core")]
#[derive(PartialEq, Eq)]
pub struct PyPageClass {
    inner: geometry::PageClass,
}

#[pymethods]
impl PyPageClass {
    #[getter]
    fn index(&self) -> usize {
        self.inner.index
    }

    #[getter]
    fn kind(&self) -> &'static str {
        geometry::kind_name(self.inner.kind)
    }

    #[getter]
    fn groups<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.inner.groups)
    }

    #[getter]
    fn window_blocks(&self) -> Option<usize> {
        self.inner.window_blocks
    }

    #[getter]
    fn rank_bytes(&self) -> usize {
        self.inner.rank_bytes
    }

    #[getter]
    fn entry_bytes(&self) -> usize {
        self.inner.entry_bytes
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let window = self
            .inner
            .window_blocks
            .map_or("None".to_owned(), |n| n.to_string());
        Ok(format!(
            "PageClass(index={}, kind='{}', groups={}, window_blocks={window}, rank_bytes={}, \
             entry_bytes={})",
            self.inner.index,
            self.kind(),
            self.groups(py)?.repr()?,
            self.inner.rank_bytes,
            self.inner.entry_bytes
        ))
    }
}

/// The structure of pages and checkpoints. Two geometries are equal if their fingerprints are.
#[pyclass(frozen, name = "Geometry", module = "hybrid_pages._core")]
pub struct PyGeometry {
    pub inner: Arc<Geometry>,
}

#[pymethods]
impl PyGeometry {
    #[new]
    #[pyo3(signature = (*, block_tokens, groups, ranks = 1, identity))]
    fn new(
        block_tokens: Whole,
        groups: Vec<Bound<'_, PyGroup>>,
        #[pyo3(from_py_with = whole)] ranks: usize,
        identity: &Bound<'_, PyMapping>,
    ) -> PyResult<Self> {
        let groups = groups
            .iter()
            .map(|group| group.get().inner.clone())
            .collect();
        let identity: BTreeMap<String, String> = identity
            .items()?
            .iter()
            .map(|item| {
                let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
                Ok((text(&key)?, text(&value)?))
            })
            .collect::<PyResult<_>>()?;
        let inner = Geometry::new(block_tokens.0, groups, ranks, identity).map_err(to_py)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    #[getter]
    fn block_tokens(&self) -> usize {
        self.inner.block_tokens()
    }

    #[getter]
    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    #[getter]
    fn groups<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let groups = self
            .inner
            .groups()
            .iter()
            .cloned()
            .map(|inner| PyGroup { inner });
        PyTuple::new(py, groups.collect::<Vec<_>>())
    }

    #[getter]
    fn classes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let classes = self
            .inner
            .classes()
            .iter()
            .cloned()
            .map(|inner| PyPageClass { inner });
        PyTuple::new(py, classes.collect::<Vec<_>>())
    }

    #[getter]
    fn identity<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let identity = PyDict::new(py);
        for (key, value) in self.inner.identity() {
            identity.set_item(key, value)?;
        }
        Ok(identity)
    }

    #[getter]
    fn fingerprint<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.inner.fingerprint().as_bytes())
    }

    fn to_json(&self) -> &str {
        self.inner.to_json()
    }

    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        Ok(Self {
            inner: Arc::new(Geometry::from_json(text).map_err(to_py)?),
        })
    }

    fn suggest_slot_bytes(&self) -> usize {
        self.inner.suggest_slot_bytes()
    }

    fn slots_per_entry(&self, class_index: Whole, slot_bytes: Whole) -> PyResult<usize> {
        self.inner
            .slots_per_entry(class_index.0, slot_bytes.0)
            .map_err(to_py)
    }

    fn difference(&self, other: &Self) -> Option<String> {
        self.inner.difference(&other.inner)
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.inner == other.inner
    }

    fn __hash__(&self) -> u64 {
        let bytes = self.inner.fingerprint().as_bytes();
        u64::from_le_bytes(std::array::from_fn(|i| bytes[i]))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let from_json = py.get_type::<Self>().getattr("from_json")?;
        Ok((from_json, (self.inner.to_json().to_owned(),)))
    }

    fn __repr__(&self) -> String {
        let fingerprint = self.inner.fingerprint().to_string();
        format!(
            "Geometry(block_tokens={}, groups={}, ranks={}, fingerprint={}...)",
            self.inner.block_tokens(),
            self.inner.groups().len(),
            self.inner.ranks(),
            &fingerprint[..12]
        )
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PySegment>()?;
    m.add_class::<PyLayer>()?;
    m.add_class::<PyGroup>()?;
    m.add_class::<PyPageClass>()?;
    m.add_class::<PyGeometry>()
}
