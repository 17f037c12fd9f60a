//! Errors of a trace or its replay.

use hybrid_pages::error::Error;
use thiserror::Error as ThisError;

/// Why a trace could not be read or replayed.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum LabError {
    /// A trace that can't be read, with the file and the line.
    #[error("trace: {0}")]
    Trace(String),
    /// An argument out of range, as the core says it.
    #[error(transparent)]
    Core(#[from] Error),
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, LabError>;
