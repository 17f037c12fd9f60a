//! The driver's call that takes many copies at once (`cuMemcpyBatchAsync`), and whether an engine uses it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::driver::Driver;
use crate::error::CudaError;

/// Whether an engine uses the call. Copies go one by one after two refusals.
pub(super) struct BatchCall {
    offered: bool,
    refusals: AtomicUsize,
    first: OnceLock<String>,
}

impl BatchCall {
    const MOST_REFUSALS: usize = 2;

    /// `wanted`: whether the settings allow it.
    pub(super) fn new(driver: &Driver, wanted: bool) -> Self {
        Self {
            offered: wanted && driver.has_copy_batch(),
            refusals: AtomicUsize::new(0),
            first: OnceLock::new(),
        }
    }

    pub(super) fn is_used(&self) -> bool {
        self.offered && self.refusals() < Self::MOST_REFUSALS
    }

    /// Notes that the driver refused a call.
    pub(super) fn refuse(&self, error: &CudaError) {
        self.first.get_or_init(|| error.to_string());
        self.refusals.fetch_add(1, Ordering::Release);
    }

    /// How many calls the driver has refused.
    pub(super) fn refusals(&self) -> usize {
        self.refusals.load(Ordering::Acquire)
    }

    /// What happened and what it costs, if the driver has refused a call.
    pub(super) fn warning(&self) -> Option<String> {
        let first = self.first.get()?;
        Some(format!(
            "the driver refused many copies in one call, so they were made one by one, which is slower; after {} \
             refusals such calls are not tried again: {first}",
            Self::MOST_REFUSALS
        ))
    }
}
