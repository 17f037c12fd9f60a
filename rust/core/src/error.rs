//! The one error type of the crate: a variant a cause, each with what was expected and found.

use thiserror::Error;

/// Everything that can go wrong inside the core. No public function panics on bad input.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A geometry that contradicts itself or the memory it is laid over.
    #[error("geometry: {0}")]
    Geometry(String),
    /// An argument out of range or of the wrong length.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// Bytes that belong to another geometry, format or engine.
    #[error("foreign bytes: {0}")]
    Foreign(String),
    /// The shared mapping could not be made, opened or used.
    #[error("arena: {0}")]
    Arena(String),
    /// A budget that cannot hold what was asked of it.
    #[error("budget: {0}")]
    Budget(String),
    /// A lease used after its end or against another cache.
    #[error("lease: {0}")]
    Lease(String),
    /// A copy that did not happen, or whose bytes were not those that left the engine.
    #[error("transfer: {0}")]
    Transfer(String),
    /// A panic inside: what it was at is in doubt, and is not used any more.
    #[error("panic: {0}")]
    Panicked(String),
    /// A disk's directory that cannot be used, or a copy from or to a disk that did not happen.
    #[error("disk: {0}")]
    Disk(String),
    /// A store on other machines that cannot be used, or a copy from or to it that did not happen.
    #[error("remote: {0}")]
    Remote(String),
}

/// Result with the crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;
