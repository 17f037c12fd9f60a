//! Where this package keeps what it can make again, and how.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, io, process};

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

/// Writes a file and the directories to it. Others see the whole file or none.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_extension(format!("{}-{number}", process::id()));
    fs::write(&unfinished, bytes)
        .and_then(|()| fs::rename(&unfinished, path))
        .inspect_err(|_| {
            // It may not exist.
            let _ = fs::remove_file(&unfinished);
        })
}
