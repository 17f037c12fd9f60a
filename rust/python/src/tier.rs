//! The parts that the Python classes of all tiers below a cache share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hybrid_pages::cache::CacheConfig;
use hybrid_pages::error::{Error, Result};
use hybrid_pages::geometry::Geometry;
use hybrid_pages::guarded::lock;
use hybrid_pages::policy::{self, Policy};
use hybrid_pages::tier::Below;
use hybrid_pages_tiers::{Counts, EncryptKeys, Failure as _, Identity, without_tenant};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::to_py;
use crate::geometry::class_configs;
use crate::number::duration;

/// A tier that no cache has taken yet.
pub struct Untaken<T> {
    argument: &'static str,
    geometry: Arc<Geometry>,
    slot_bytes: usize,
    tier: Mutex<Option<T>>,
}

impl<T: Below + 'static> Untaken<T> {
    /// Wraps a tier. Errors name `argument`, the argument of the cache that takes it.
    pub fn new(
        argument: &'static str,
        geometry: &Arc<Geometry>,
        slot_bytes: usize,
        tier: T,
    ) -> Self {
        Self {
            argument,
            geometry: Arc::clone(geometry),
            slot_bytes,
            tier: Mutex::new(Some(tier)),
        }
    }

    /// Hands the tier to a cache. Only one cache may have it.
    pub fn take(&self, geometry: &Geometry, slot_bytes: usize) -> PyResult<Box<dyn Below>> {
        let argument = self.argument;
        if let Some(difference) = geometry.difference(&self.geometry) {
            return Err(to_py(Error::Foreign(format!(
                "{argument}: expected one for the cache's geometry {}, found one for {}: {difference}",
                geometry.fingerprint(),
                self.geometry.fingerprint()
            ))));
        }
        if slot_bytes != self.slot_bytes {
            return Err(to_py(Error::InvalidArgument(format!(
                "{argument}: expected slots of {slot_bytes} bytes as in the cache, found {}",
                self.slot_bytes
            ))));
        }
        let mut tier = lock(&self.tier);
        match tier.take() {
            Some(tier) => Ok(Box::new(tier)),
            None => Err(to_py(Error::InvalidArgument(format!(
                "{argument}: expected one that no cache has, found one in use: make another"
            )))),
        }
    }
}

/// The keys in the text of a key file; `None` for an empty text.
pub fn keys_of(text: &str) -> PyResult<Option<EncryptKeys>> {
    let keys = (!text.is_empty()).then(|| EncryptKeys::parse(text));
    keys.transpose().map_err(to_py)
}

/// The short names of the key for all in the text of a key file, and of all that it says.
#[pyfunction]
pub fn encrypt_key_ids(text: &str) -> PyResult<(String, String)> {
    let keys = EncryptKeys::parse(text).map_err(to_py)?;
    Ok((keys.id(), keys.file_id()))
}

/// The text of a key file without the key of a tenant, which is named by the SHA-256 of its salt.
#[pyfunction]
pub fn without_tenant_key(text: &str, tenant: [u8; 32]) -> PyResult<String> {
    without_tenant(text, &tenant).map_err(to_py)
}

/// The policy of this name, for a tier with a size of its own.
pub fn policy_of(name: &str, geometry: &Geometry, slot_bytes: usize) -> PyResult<Box<dyn Policy>> {
    let config = CacheConfig {
        classes: class_configs(geometry, slot_bytes).map_err(to_py)?,
        ranks: geometry.ranks(),
        slots: 0,
        slot_bytes,
        policy: name.to_owned(),
        tenant_slots: None,
    };
    policy::by_name(name, config.shape()).map_err(to_py)
}

/// Connects a tier for an identity, which Python gives as bytes.
pub fn connect(
    py: Python<'_>,
    identity: &Bound<'_, PyBytes>,
    connect: impl Send + FnOnce(&Identity) -> Result<()>,
) -> PyResult<()> {
    let bytes = identity.as_bytes();
    let identity = Identity::try_from(bytes).map_err(|_| {
        to_py(Error::InvalidArgument(format!(
            "identity: expected {} bytes, found {}",
            size_of::<Identity>(),
            bytes.len()
        )))
    })?;
    py.detach(|| connect(&identity)).map_err(to_py)
}

/// Waits at most `seconds` for a tier's copies.
pub fn settle(
    py: Python<'_>,
    seconds: f64,
    settle: impl Send + FnOnce(Duration) -> bool,
) -> PyResult<bool> {
    let limit = duration("seconds", seconds)?;
    Ok(py.detach(|| settle(limit)))
}

/// The counts of a tier by name. Failures of each kind are named `failed_KIND`.
pub fn counts<'py, C: Counts>(py: Python<'py>, counts: &C) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in counts.fields() {
        dict.set_item(name, value)?;
    }
    for (kind, value) in C::Failure::ALL.iter().zip(counts.failures()) {
        dict.set_item(format!("failed_{}", kind.name()), value)?;
    }
    Ok(dict)
}
