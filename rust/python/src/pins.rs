//! Engine blocks that a copy reads, which the engine gives to nobody else meanwhile.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::run::PyRules;

/// Holds each of these blocks of a pool once more.
///
/// A block counts its holds as `ref_cnt`, as vLLM's `KVCacheBlock` does. Only where nobody holds one is the engine
/// asked, which keeps such blocks in an order of its own. If it fails, the others are let go of again.
pub fn pin(rules: &PyRules, pool: &Bound<'_, PyAny>, blocks: &Bound<'_, PyList>) -> PyResult<()> {
    let (mut counted, unheld) = (Vec::with_capacity(blocks.len()), PyList::empty(pool.py()));
    let pinned = blocks.iter().try_for_each(|block| match holds(&block)? {
        0 => unheld.append(block),
        holds => set_holds(&block, holds + 1).map(|()| counted.push(block)),
    });
    let pinned = pinned.and_then(|()| give(&rules.pin, pool, &unheld));
    if pinned.is_err() {
        for block in counted {
            set_holds(&block, holds(&block)? - 1)?;
        }
    }
    pinned
}

/// Lets go of these blocks of a pool.
pub fn unpin(rules: &PyRules, pool: &Bound<'_, PyAny>, blocks: &Bound<'_, PyList>) -> PyResult<()> {
    let last = PyList::empty(pool.py());
    for block in blocks {
        match holds(&block)? {
            0 | 1 => last.append(block)?,
            holds => set_holds(&block, holds - 1)?,
        }
    }
    give(&rules.unpin, pool, &last)
}

fn give(to: &Py<PyAny>, pool: &Bound<'_, PyAny>, blocks: &Bound<'_, PyList>) -> PyResult<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    to.call1(pool.py(), (pool, blocks)).map(|_| ())
}

fn holds(block: &Bound<'_, PyAny>) -> PyResult<u32> {
    block.getattr(intern!(block.py(), "ref_cnt"))?.extract()
}

fn set_holds(block: &Bound<'_, PyAny>, holds: u32) -> PyResult<()> {
    block.setattr(intern!(block.py(), "ref_cnt"), holds)
}
