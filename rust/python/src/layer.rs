//! The place of a layer's blocks in an engine's memory.

use hybrid_pages::error::Error;
use hybrid_pages::transfer::{ByteRun, LayerMap, Region, TokenDim, TokenPart};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::to_py;
use crate::number::Whole;
use crate::tuple::sized;

/// The place of one layer's blocks in the engine's memory, `address` to `address + nbytes`.
#[pyclass(frozen, name = "LayerMap", module = "hybrid_pages._core")]
pub struct PyLayerMap {
    pub inner: LayerMap,
}

#[pymethods]
impl PyLayerMap {
    #[new]
    #[pyo3(signature = (*, group, layer, address, nbytes, block_stride, runs, tokens = None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        group: Whole,
        layer: Whole,
        address: Whole,
        nbytes: Whole,
        block_stride: Whole,
        runs: Vec<Bound<'_, PyTuple>>,
        tokens: Option<Vec<Bound<'_, PyTuple>>>,
    ) -> PyResult<Self> {
        let address = std::ptr::with_exposed_provenance_mut(address.0);
        // SAFETY: the stub demands this of the caller: the memory is the engine's, `owners` keeps it alive, and
        // nobody else touches a block while a transfer uses it.
        let region = unsafe { Region::new(address, nbytes.0) }.map_err(to_py)?;
        let run = |run: &Bound<'_, PyTuple>| {
            let (offset, length): (Whole, Whole) = sized("run", run, 2)?.extract()?;
            Ok(ByteRun {
                offset: offset.0,
                length: length.0,
            })
        };
        let runs: Vec<_> = runs.iter().map(run).collect::<PyResult<_>>()?;
        if runs.is_empty() {
            return Err(to_py(Error::geometry(
                "runs: expected some, found none (for a layer that another rank has: LayerMap.elsewhere)",
            )));
        }
        let tokens = tokens.map(|parts| parts.iter().map(token_part).collect::<PyResult<_>>());
        let tokens = tokens.transpose()?;
        let (group, layer, block_stride) = (group.0, layer.0, block_stride.0);
        Ok(Self {
            inner: LayerMap {
                group,
                layer,
                region,
                block_stride,
                runs,
                tokens,
            },
        })
    }

    #[staticmethod]
    #[pyo3(signature = (*, group, layer))]
    fn elsewhere(group: Whole, layer: Whole) -> PyResult<Self> {
        let nowhere = std::ptr::NonNull::<u8>::dangling().as_ptr();
        // SAFETY: a map without runs names no bytes, so nothing is read or written.
        let region = unsafe { Region::new(nowhere, 1) }.map_err(to_py)?;
        Ok(Self {
            inner: LayerMap {
                group: group.0,
                layer: layer.0,
                region,
                block_stride: 0,
                runs: Vec::new(),
                tokens: None,
            },
        })
    }

    #[getter]
    fn group(&self) -> usize {
        self.inner.group
    }

    #[getter]
    fn layer(&self) -> usize {
        self.inner.layer
    }

    #[getter]
    fn address(&self) -> usize {
        self.inner.region.address().addr().get()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.region.nbytes()
    }

    #[getter]
    fn block_stride(&self) -> usize {
        self.inner.block_stride
    }

    #[getter]
    fn runs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let runs = self.inner.runs.iter().map(|run| (run.offset, run.length));
        PyTuple::new(py, runs.collect::<Vec<_>>())
    }

    #[getter]
    fn tokens<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let dims = |part: &TokenPart| {
            let dims = part.dims.iter().map(|dim| (dim.extent, dim.tokens));
            PyTuple::new(py, dims.collect::<Vec<_>>())
        };
        let plain = |part: &TokenPart| Ok((part.first, dims(part)?, part.bytes));
        let Some(parts) = &self.inner.tokens else {
            return Ok(None);
        };
        let parts: Vec<_> = parts.iter().map(plain).collect::<PyResult<_>>()?;
        PyTuple::new(py, parts).map(Some)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "LayerMap(group={}, layer={}, address={:#x}, nbytes={}, block_stride={}, runs={}, tokens={})",
            self.group(),
            self.layer(),
            self.address(),
            self.nbytes(),
            self.block_stride(),
            self.runs(py)?.repr()?,
            self.tokens(py)?.into_pyobject(py)?.repr()?
        ))
    }
}

/// Reads (first token, dimensions as (extent, tokens), bytes of a cell).
fn token_part(part: &Bound<'_, PyTuple>) -> PyResult<TokenPart> {
    let (first, dims, bytes): (Whole, Vec<Bound<'_, PyTuple>>, Whole) =
        sized("token part", part, 3)?.extract()?;
    let dim = |dim: &Bound<'_, PyTuple>| {
        let (extent, tokens): (Whole, Whole) = sized("dimension", dim, 2)?.extract()?;
        Ok(TokenDim {
            extent: extent.0,
            tokens: tokens.0,
        })
    };
    Ok(TokenPart {
        first: first.0,
        dims: dims.iter().map(dim).collect::<PyResult<_>>()?,
        bytes: bytes.0,
    })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyLayerMap>()
}
