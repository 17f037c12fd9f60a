//! Errors of a device, with the driver's call that reported them.

use std::error::Error as _;

use hybrid_pages::error::{Cause, Error};
use thiserror::Error as ThisError;

/// An error of a CUDA device or of its driver.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver, no such device, or no function of that name in the driver.
    #[error("CUDA is not available: {0}")]
    Unavailable(String),
    /// A function of the driver failed, or reported an earlier failure.
    #[error("{call} failed: {name} ({code}): {text}")]
    Driver {
        /// The driver function.
        call: &'static str,
        /// The `CUresult`.
        code: i32,
        /// The result's name, such as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// The driver's description.
        text: String,
    },
    /// A transfer was asked for while its compute stream records a graph.
    #[error(
        "expected a compute stream that runs, found one that captures a graph: ask again after"
    )]
    Capturing,
    /// An argument or a layout that the core rejects.
    #[error(transparent)]
    Core(#[from] Error),
}

impl CudaError {
    /// Whether every later call on the device will fail, too: the error is one of those that leave a process
    /// in an inconsistent state, by the driver API's reference of `CUresult`.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        const STICKY: [i32; 15] = [
            4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721,
        ];
        matches!(self, Self::Driver { code, .. } if STICKY.contains(code))
    }
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Core(error) => error,
            other => Self::transfer(Cause::new(other.to_string(), other)),
        }
    }
}

/// The system's reason why a library can't be loaded.
pub(crate) fn told(error: &libloading::Error) -> String {
    let system = error.source().map(ToString::to_string);
    system.unwrap_or_else(|| error.to_string())
}

/// A result whose error is [`CudaError`].
pub type Result<T> = std::result::Result<T, CudaError>;
