//! The one error type of the crate: a variant for each cause, with a text that says what was expected and found.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Everything that can go wrong inside the core. No public function panics on bad input.
///
/// If the system or a library refused something, the error that it gave is the [`source`](StdError::source).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A geometry that contradicts itself or the memory it is laid over.
    Geometry(Cause),
    /// An argument out of range or of the wrong length.
    InvalidArgument(String),
    /// Bytes that belong to another geometry, format or engine.
    Foreign(String),
    /// The shared mapping could not be made, opened or used.
    Arena(Cause),
    /// A budget that cannot hold what was asked of it.
    Budget(String),
    /// A lease used after its end or against another cache.
    Lease(String),
    /// A copy that did not happen, or whose bytes were not those that left the engine.
    Transfer(Cause),
    /// A panic inside. The data that was being changed may be wrong, and is not used any more.
    Panicked(String),
    /// A disk's directory that cannot be used, or a copy from or to a disk that did not happen.
    Disk(Cause),
    /// A store on other machines that cannot be used, or a copy from or to it that did not happen.
    Remote(Cause),
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An [`Error::Geometry`].
    pub fn geometry(why: impl Into<Cause>) -> Self {
        Self::Geometry(why.into())
    }

    /// An [`Error::Arena`].
    pub fn arena(why: impl Into<Cause>) -> Self {
        Self::Arena(why.into())
    }

    /// An [`Error::Transfer`].
    pub fn transfer(why: impl Into<Cause>) -> Self {
        Self::Transfer(why.into())
    }

    /// An [`Error::Disk`].
    pub fn disk(why: impl Into<Cause>) -> Self {
        Self::Disk(why.into())
    }

    /// An [`Error::Remote`].
    pub fn remote(why: impl Into<Cause>) -> Self {
        Self::Remote(why.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, why): (_, &str) = match self {
            Self::Geometry(why) => ("geometry", why),
            Self::InvalidArgument(why) => ("invalid argument", why),
            Self::Foreign(why) => ("foreign bytes", why),
            Self::Arena(why) => ("arena", why),
            Self::Budget(why) => ("budget", why),
            Self::Lease(why) => ("lease", why),
            Self::Transfer(why) => ("transfer", why),
            Self::Panicked(why) => ("panic", why),
            Self::Disk(why) => ("disk", why),
            Self::Remote(why) => ("remote", why),
        };
        write!(f, "{kind}: {why}")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Geometry(why)
            | Self::Arena(why)
            | Self::Transfer(why)
            | Self::Disk(why)
            | Self::Remote(why) => why.source(),
            Self::InvalidArgument(_)
            | Self::Foreign(_)
            | Self::Budget(_)
            | Self::Lease(_)
            | Self::Panicked(_) => None,
        }
    }
}

/// Why something failed: a text that says what was expected and found, and the error behind it, if the system or a
/// library gave one.
#[derive(Debug, Clone)]
pub struct Cause {
    text: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Cause {
    /// A text, and the error that it tells of.
    pub fn new(text: impl Into<String>, source: impl StdError + Send + Sync + 'static) -> Self {
        Self {
            text: text.into(),
            source: Some(Arc::new(source)),
        }
    }

    /// An error of the system or of a library, in its own words.
    pub fn of(source: impl StdError + Send + Sync + 'static) -> Self {
        Self::new(source.to_string(), source)
    }

    /// Other words for the same error.
    #[must_use]
    pub fn map(self, words: impl FnOnce(&str) -> String) -> Self {
        Self {
            text: words(&self.text),
            source: self.source,
        }
    }
}

impl StdError for Cause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.source.as_deref()?;
        Some(source)
    }
}

/// Causes are equal if their texts are.
impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Cause {}

impl Deref for Cause {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<String> for Cause {
    fn from(text: String) -> Self {
        Self { text, source: None }
    }
}

impl From<&str> for Cause {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}
