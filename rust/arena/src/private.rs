//! Memory of this process alone, for systems without memfds and for planes that nobody else opens.

use memmap2::{MmapOptions, MmapRaw};

use hybrid_pages::error::{Cause, Error, Result};

/// A new mapping, all zeros.
pub(crate) fn create(bytes: usize) -> Result<MmapRaw> {
    let memory = MmapOptions::new().len(bytes).map_anon().map_err(|error| {
        Error::arena(Cause::new(
            format!("create: private memory of {bytes} bytes failed: {error}"),
            error,
        ))
    })?;
    Ok(memory.into())
}
