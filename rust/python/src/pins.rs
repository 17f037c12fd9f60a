//! Engine blocks that a copy reads, which the engine gives to nobody else meanwhile.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::run::PyRules;

/// Holds each of these blocks of a pool once more.
///
/// A block counts its holds as `ref_cnt`, as vLLM's `KVCacheBlock` does. Only where nobody holds one is the engine
/// asked, which keeps such blocks in an order of its own. If it fails, the others are let go of again.
pub fn pin<'py>(
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

/// Lets go of these blocks of a pool.
pub fn unpin(rules: &PyRules, pool: &Bound<'_, PyAny>, blocks: &[Py<PyAny>]) -> PyResult<()> {
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
