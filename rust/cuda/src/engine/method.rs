//! The ways bytes can take.

use std::fmt;

use hybrid_pages::error::Error;

use crate::error::{CudaError, Result};

/// How a transfer moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// The copy engine, one copy for what is adjacent on both sides.
    Copy,
    /// A kernel that reaches pinned slots over the bus itself.
    Kernel,
    /// A kernel between device memory and a small ring there, the copy engine between ring and slots.
    Staged,
}

impl Method {
    /// Every method, in the order of their names here.
    pub const ALL: [Self; 3] = [Self::Copy, Self::Kernel, Self::Staged];

    /// The name that users give.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Kernel => "kernel",
            Self::Staged => "staged",
        }
    }

    /// The method of that name; none for `auto`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] listing the names.
    pub fn parse(name: &str) -> Result<Option<Self>> {
        if name == "auto" {
            return Ok(None);
        }
        let found = Self::ALL.into_iter().find(|method| method.name() == name);
        found.map(Some).ok_or_else(|| {
            CudaError::Core(Error::InvalidArgument(format!(
                "method: expected auto, copy, kernel or staged, found {name:?}"
            )))
        })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
