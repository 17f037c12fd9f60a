//! Where this package keeps what it can make again.

use std::env;
use std::path::{Path, PathBuf};

/// The directory that was asked for, or this package's in the user's cache directory (XDG Base
/// Directory Specification).
pub(crate) fn cache_dir(asked: Option<&Path>) -> Option<PathBuf> {
    let set = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    asked.map(Path::to_owned).or_else(|| {
        let base = set("XDG_CACHE_HOME")
            .filter(|base| base.is_absolute())
            .or_else(|| set("HOME").map(|home| home.join(".cache")))?;
        Some(base.join("hybrid-pages"))
    })
}
