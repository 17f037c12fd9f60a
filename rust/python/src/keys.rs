//! The keys of a prefix: a sequence of hashes, or keys that were read from one before.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard};

use hybrid_pages::error::Error;
use hybrid_pages::guarded::lock;
use hybrid_pages::ids::PrefixKey;
use hybrid_pages::prefix::boundaries;
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySequence, PyString};

use crate::error::to_py;
use crate::number::Whole;

/// The keys of a prefix that grows, one per block. Each key is read once.
#[pyclass(frozen, name = "PrefixKeys", module = "hybrid_pages._core")]
pub struct PyPrefixKeys {
    stride: usize,
    keys: Mutex<Vec<PrefixKey>>,
}

impl PyPrefixKeys {
    fn lock(&self) -> MutexGuard<'_, Vec<PrefixKey>> {
        lock(&self.keys)
    }

    /// The keys of at most `limit` leading blocks. No Python code may run while they are borrowed.
    pub fn leading(&self, limit: usize) -> BlockKeys<'_> {
        let keys = self.lock();
        let limit = limit.min(keys.len());
        BlockKeys::Read(keys, limit)
    }
}

#[pymethods]
impl PyPrefixKeys {
    #[new]
    #[pyo3(signature = (stride = Whole(1)), text_signature = "(stride=1)")]
    fn new(stride: Whole) -> PyResult<Self> {
        let _at_least_one = boundaries(0, stride.0).map_err(to_py)?;
        Ok(Self {
            stride: stride.0,
            keys: Mutex::default(),
        })
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: Whole) -> PyResult<Bound<'py, PyBytes>> {
        let keys = self.lock();
        let key = keys.get(at.0).ok_or_else(|| {
            PyIndexError::new_err(format!(
                "key: expected an index below {}, found {}",
                keys.len(),
                at.0
            ))
        })?;
        Ok(PyBytes::new(py, key.as_bytes()))
    }

    pub fn read(&self, hashes: &Bound<'_, PyList>) -> PyResult<()> {
        let mut keys = self.lock();
        let blocks = hashes.len() / self.stride;
        let hash = |block: usize| key(&hashes.get_item((block + 1) * self.stride - 1)?);
        // A chained hash covers all hashes before it: if it is equal, they are.
        let known = match keys.last() {
            Some(last) if keys.len() <= blocks && hash(keys.len() - 1)? == *last => keys.len(),
            _ => 0,
        };
        keys.truncate(known);
        for block in known..blocks {
            keys.push(hash(block)?);
        }
        Ok(())
    }

    fn append(&self, hash: &Bound<'_, PyAny>) -> PyResult<()> {
        self.lock().push(key(hash)?);
        Ok(())
    }

    pub fn clear(&self) {
        self.lock().clear();
    }
}

/// Keys of tails.
pub fn tails(keys: &Bound<'_, PyList>) -> PyResult<Vec<PrefixKey>> {
    keys.iter().map(|tail| key(&tail)).collect()
}

/// The key of a tail.
#[pyfunction]
fn tail_key<'py>(
    py: Python<'py>,
    before: &Bound<'_, PyBytes>,
    digest: &Bound<'_, PyBytes>,
    tokens: Whole,
) -> PyResult<Bound<'py, PyBytes>> {
    let before = match before.as_bytes() {
        b"" => None,
        before => Some(PrefixKey::new(before).map_err(to_py)?),
    };
    let tokens = u32::try_from(tokens.0).unwrap_or(0);
    let key = PrefixKey::tail(before.as_ref(), digest.as_bytes(), tokens).map_err(to_py)?;
    Ok(PyBytes::new(py, key.as_bytes()))
}

/// Reads one key.
pub fn key(hash: &Bound<'_, PyAny>) -> PyResult<PrefixKey> {
    PrefixKey::new(hash.cast::<PyBytes>()?.as_bytes()).map_err(to_py)
}

/// The keys of leading blocks: borrowed if they were read before, else owned.
pub enum BlockKeys<'a> {
    Read(MutexGuard<'a, Vec<PrefixKey>>, usize),
    Own(Vec<PrefixKey>),
}

impl Deref for BlockKeys<'_> {
    type Target = [PrefixKey];

    fn deref(&self) -> &[PrefixKey] {
        match self {
            Self::Read(keys, limit) => &keys[..*limit],
            Self::Own(keys) => keys,
        }
    }
}

/// The key of each block up to `limit`, and then that of a tail, if there is one. No Python code may run while they are
/// borrowed.
pub fn prefix_keys<'a>(
    keys: &'a Bound<'_, PyAny>,
    stride: Whole,
    limit: Option<Whole>,
    tail: Option<&Bound<'_, PyBytes>>,
) -> PyResult<BlockKeys<'a>> {
    let keys = block_keys(keys, stride, limit)?;
    let Some(tail) = tail else {
        return Ok(keys);
    };
    let tail = key(tail)?;
    if !tail.is_tail() {
        return Err(to_py(Error::InvalidArgument(format!(
            "tail: expected {} bytes from tail_key(), found {}",
            PrefixKey::TAIL_BYTES,
            tail.as_bytes().len()
        ))));
    }
    Ok(BlockKeys::Own([&keys[..], &[tail]].concat()))
}

/// The key of each block up to `limit`. No Python code may run while they are borrowed.
pub fn block_keys<'a>(
    keys: &'a Bound<'_, PyAny>,
    stride: Whole,
    limit: Option<Whole>,
) -> PyResult<BlockKeys<'a>> {
    let limit = limit.map_or(usize::MAX, |Whole(limit)| limit);
    if let Ok(read) = keys.cast::<PyPrefixKeys>() {
        if stride.0 != 1 {
            return Err(to_py(Error::InvalidArgument(format!(
                "stride: expected 1 with PrefixKeys, which have a key a block, found {}",
                stride.0
            ))));
        }
        return Ok(read.get().leading(limit));
    }
    read_keys(keys, stride, limit).map(BlockKeys::Own)
}

fn read_keys(keys: &Bound<'_, PyAny>, stride: Whole, limit: usize) -> PyResult<Vec<PrefixKey>> {
    let ends = |len| Ok::<_, PyErr>(boundaries(len, stride.0).map_err(to_py)?.take(limit));
    if let Ok(list) = keys.cast::<PyList>() {
        return ends(list.len())?
            .map(|at| key(&list.get_item(at)?))
            .collect();
    }
    if keys.is_instance_of::<PyString>() || keys.is_instance_of::<PyBytes>() {
        let found = keys.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "keys: expected a sequence of bytes, found {found}"
        )));
    }
    let sequence = keys.cast::<PySequence>()?;
    ends(sequence.len()?)?
        .map(|at| key(&sequence.get_item(at)?))
        .collect()
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(tail_key, m)?)?;
    m.add_class::<PyPrefixKeys>()
}
