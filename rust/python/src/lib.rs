//! `hybrid_pages._core`, the Rust crates for Python: it converts values and errors, and releases the GIL.

mod arena;
mod arrays;
mod block_tables;
mod cache;
mod changes;
mod copy_engine;
mod cuda;
mod disk;
mod disk_tree;
mod dlpack;
mod error;
mod facts;
mod fleet;
mod geometry;
mod hints;
mod host_engine;
mod keys;
mod layer;
mod lease;
mod mooncake;
mod number;
mod outcomes;
#[cfg(feature = "remote")]
mod remote;
mod replay;
mod restore;
mod run;
mod step_request;
mod store_entries;
mod stores;
mod tier;
mod tuple;
mod vllm_engine;

use pyo3::prelude::*;

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("FORMAT_VERSION", hybrid_pages::geometry::FORMAT_VERSION)?;
    m.add(
        "DISK_FORMAT_VERSION",
        hybrid_pages_disk::DISK_FORMAT_VERSION,
    )?;
    m.add(
        "SEALED_DISK_FORMAT_VERSION",
        hybrid_pages_disk::SEALED_DISK_FORMAT_VERSION,
    )?;
    #[cfg(feature = "remote")]
    m.add(
        "REMOTE_FORMAT_VERSION",
        hybrid_pages_remote::REMOTE_FORMAT_VERSION,
    )?;
    m.add_function(wrap_pyfunction!(tier::encrypt_key_ids, m)?)?;
    m.add_function(wrap_pyfunction!(tier::without_tenant_key, m)?)?;
    error::register(m)?;
    geometry::register(m)?;
    arena::register(m)?;
    arrays::register(m)?;
    layer::register(m)?;
    copy_engine::register(m)?;
    host_engine::register(m)?;
    cuda::register(m)?;
    disk::register(m)?;
    disk_tree::register(m)?;
    mooncake::register(m)?;
    #[cfg(feature = "remote")]
    remote::register(m)?;
    hints::register(m)?;
    keys::register(m)?;
    store_entries::register(m)?;
    block_tables::register(m)?;
    cache::register(m)?;
    run::register(m)?;
    stores::register(m)?;
    changes::register(m)?;
    replay::register(m)?;
    fleet::register(m)?;
    Ok(())
}
