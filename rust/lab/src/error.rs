//! Errors of traces and their replays.

use hybrid_pages::error::Error;
use thiserror::Error as ThisError;

/// Why a trace could not be read or replayed.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum LabError {
    /// A trace can't be read. The text names the file and the line.
    #[error("trace: {0}")]
    Trace(String),
    /// An error of the core, such as an argument out of range.
    #[error(transparent)]
    Core(#[from] Error),
}

/// A result whose error is [`LabError`].
pub type Result<T> = std::result::Result<T, LabError>;
