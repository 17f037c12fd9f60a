//! `hybrid_pages._core`: the core for Python. Conversion, the error table and the GIL; no logic.

mod arena;
mod engine;
mod error;
mod geometry;
mod number;
mod replay;

mod cache;
mod lease;

use pyo3::prelude::*;

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("FORMAT_VERSION", hybrid_pages::geometry::FORMAT_VERSION)?;
    error::register(m)?;
    geometry::register(m)?;
    arena::register(m)?;
    engine::register(m)?;
    cache::register(m)?;
    replay::register(m)?;
    Ok(())
}
