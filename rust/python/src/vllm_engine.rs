//! vLLM's block pool, and the Python object that is told of entries that are not stored.

use hybrid_pages::error::Error;
use hybrid_pages_vllm::engine::{Handles, RankCopy, ServingEngine};
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::block_tables::block_id;
use crate::error::{Raised, to_py};
use crate::number::whole;
use crate::run::PyRules;

/// Python objects that a store in flight holds: the request's name, the pinned blocks, and the ranks' reports.
pub struct PyHandles;

impl Handles for PyHandles {
    type Name = Py<PyAny>;
    type Pin = Py<PyAny>;
    type Outcome = Py<PyAny>;
}

/// The engine whose requests a call of `Stores` is about.
pub struct VllmEngine<'a, 'py> {
    /// The Python object that has the engine's pool and block tables, and is told of failures.
    pub given: &'a Bound<'py, PyAny>,
    pub rules: &'a PyRules,
}

impl<'py> VllmEngine<'_, 'py> {
    pub fn py(&self) -> Python<'py> {
        self.given.py()
    }

    /// The engine's block pool.
    fn pool(&self) -> PyResult<Bound<'py, PyAny>> {
        let pool = self.given.getattr(intern!(self.py(), "pool"))?;
        if pool.is_none() {
            return Err(to_py(Error::InvalidArgument(
                "pool: expected the engine's block pool, found none: vLLM gives it with bind_gpu_block_pool at start"
                    .into(),
            )));
        }
        Ok(pool)
    }

    /// An engine block by its number.
    pub fn block(&self, id: u32) -> PyResult<Bound<'py, PyAny>> {
        blocks_of(&self.pool()?)?.get_item(id as usize)
    }

    fn tell(
        &self,
        name: &Bound<'py, PyString>,
        given: impl pyo3::call::PyCallArgs<'py>,
    ) -> PyResult<()> {
        self.given.call_method1(name, given).map(|_| ())
    }

    /// Reports that a store of a request's entries could not be planned.
    pub fn not_planned(&self, tracked: &Bound<'py, PyAny>, error: PyErr) -> PyResult<()> {
        let error = caught(self.py(), error)?;
        self.tell(intern!(self.py(), "not_planned"), (tracked, error))
    }

    /// Reports an outcome of a job that is not in flight.
    pub fn not_in_flight(&self, job: &Bound<'py, PyAny>) -> PyResult<()> {
        self.tell(intern!(self.py(), "not_in_flight"), (job,))
    }
}

/// All blocks of a pool.
fn blocks_of<'py>(pool: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    Ok(pool.getattr(intern!(pool.py(), "blocks"))?.cast_into()?)
}

impl ServingEngine for VllmEngine<'_, '_> {
    type Error = Raised;
    type Handles = PyHandles;

    fn pin(&self, blocks: &[u32]) -> Result<Vec<Py<PyAny>>, Raised> {
        let pool = self.pool()?;
        let all = blocks_of(&pool)?;
        let mut pins = Vec::with_capacity(blocks.len());
        for &id in blocks {
            pins.push(all.get_item(id as usize)?);
        }
        pin(self.rules, &pool, &pins)?;
        Ok(pins.into_iter().map(Bound::unbind).collect())
    }

    fn unpin(&self, pins: &[Py<PyAny>]) -> Result<(), Raised> {
        Ok(unpin(self.rules, &self.pool()?, pins)?)
    }

    fn can_spare(&self, blocks: usize) -> Result<bool, Raised> {
        let name = intern!(self.py(), "can_spare");
        let found = self.given.call_method1(name, (blocks,))?;
        Ok(found.is_truthy()?)
    }

    fn take(&self, blocks: usize) -> Result<Vec<(u32, Py<PyAny>)>, Raised> {
        let pool = self.pool()?;
        let taken = self.rules.take.bind(self.py()).call1((&pool, blocks))?;
        let taken: Vec<Py<PyAny>> = taken.extract()?;
        let id = |block: &Py<PyAny>| block_id(block.bind(self.py()));
        let ids: PyResult<Vec<_>> = taken.iter().map(id).collect();
        match ids {
            Ok(ids) => Ok(ids.into_iter().zip(taken).collect()),
            Err(error) => {
                unpin(self.rules, &pool, &taken)?;
                Err(error.into())
            }
        }
    }

    fn skipped(&self, reason: &str, entries: usize) -> Result<(), Raised> {
        Ok(self.tell(intern!(self.py(), "skipped"), (reason, entries))?)
    }

    fn skipped_tail(&self, reason: &str) -> Result<(), Raised> {
        Ok(self.tell(intern!(self.py(), "skipped_tail"), (reason,))?)
    }

    fn has_failed(&self, outcome: &Py<PyAny>) -> Result<bool, Raised> {
        let error = outcome
            .bind(self.py())
            .getattr(intern!(self.py(), "error"))?;
        Ok(!error.is_none())
    }

    fn copied(&self, outcome: &Py<PyAny>) -> Result<RankCopy, Raised> {
        Ok(copied(outcome.bind(self.py()))?)
    }

    fn not_copied(&self, outcome: &Py<PyAny>, first: bool) -> Result<(), Raised> {
        Ok(self.tell(intern!(self.py(), "not_copied"), (outcome, first))?)
    }

    fn not_published(&self, job: usize, error: Raised) -> Result<(), Raised> {
        let error = caught(self.py(), error.0)?;
        Ok(self.tell(intern!(self.py(), "not_published"), (job, error))?)
    }
}

fn copied(outcome: &Bound<'_, PyAny>) -> PyResult<RankCopy> {
    let py = outcome.py();
    let bytes = whole(&outcome.getattr(intern!(py, "nbytes"))?)?;
    let seconds = outcome.getattr(intern!(py, "seconds"))?.extract()?;
    let checksums = outcome.getattr(intern!(py, "checksums"))?;
    Ok(RankCopy {
        bytes,
        seconds,
        checksums: checksums.cast_into::<PyBytes>()?.as_bytes().to_vec(),
    })
}

/// The error, if it fails one job alone. `Err` for exceptions that shall end the engine.
fn caught(py: Python<'_>, error: PyErr) -> PyResult<PyErr> {
    if error.is_instance_of::<PyException>(py) {
        Ok(error)
    } else {
        Err(error)
    }
}

/// Adds a hold on each of these blocks of a pool.
///
/// A block counts its holds in `ref_cnt`, as vLLM's `KVCacheBlock` does. A block without holds is in the engine's
/// list of free blocks, so the engine is called to take it. On failure, the holds added so far are removed.
fn pin<'py>(
    rules: &PyRules,
    pool: &Bound<'py, PyAny>,
    blocks: &[Bound<'py, PyAny>],
) -> PyResult<()> {
    let (mut counted, mut unheld) = (Vec::with_capacity(blocks.len()), Vec::new());
    let pinned = blocks.iter().try_for_each(|block| {
        match holds(block)? {
            0 => unheld.push(block),
            holds => {
                set_holds(block, holds + 1)?;
                counted.push(block);
            }
        }
        Ok(())
    });
    let pinned = pinned.and_then(|()| give(&rules.pin, pool, &unheld));
    if pinned.is_err() {
        for block in counted {
            set_holds(block, holds(block)? - 1)?;
        }
    }
    pinned
}

/// Removes a hold on each of these blocks of a pool.
fn unpin(rules: &PyRules, pool: &Bound<'_, PyAny>, blocks: &[Py<PyAny>]) -> PyResult<()> {
    let (py, mut last) = (pool.py(), Vec::new());
    for block in blocks {
        let block = block.bind(py);
        match holds(block)? {
            0 | 1 => last.push(block),
            holds => set_holds(block, holds - 1)?,
        }
    }
    give(&rules.unpin, pool, &last)
}

fn give(to: &Py<PyAny>, pool: &Bound<'_, PyAny>, blocks: &[&Bound<'_, PyAny>]) -> PyResult<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    let py = pool.py();
    to.call1(py, (pool, PyList::new(py, blocks)?)).map(|_| ())
}

fn holds(block: &Bound<'_, PyAny>) -> PyResult<u32> {
    block.getattr(intern!(block.py(), "ref_cnt"))?.extract()
}

fn set_holds(block: &Bound<'_, PyAny>, holds: u32) -> PyResult<()> {
    block.setattr(intern!(block.py(), "ref_cnt"), holds)
}
