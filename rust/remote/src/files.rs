//! Packs in a directory: bytes go between files and slots a piece at a time, through memory that stays in the
//! processor's caches.
//!
//! A file system may hang. Whoever waits no longer stops the copy, and nothing touches its slots afterwards: a thread
//! that hangs does so with memory of its own.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use hybrid_pages::ids::SlotId;
use hybrid_pages::tier::CopyId;
use hybrid_pages::transfer::{TILE_BYTES, combine};

use crate::lock;
use crate::shared::Shared;

/// Bytes that are read or written at a time.
const PIECE: usize = 16 * TILE_BYTES;

/// A part of a pack.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) copy: CopyId,
    pub(crate) class: usize,
    pub(crate) slots: Arc<[SlotId]>,
    /// In the file.
    pub(crate) offset: u64,
    /// Checksums that the bytes should have.
    pub(crate) sums: Arc<[u64]>,
}

/// Whether the slots are still the copy's. Whoever touches them holds it.
#[derive(Debug, Clone, Default)]
struct Stopped(Arc<Mutex<bool>>);

impl Stopped {
    fn check(&self) -> io::Result<MutexGuard<'_, bool>> {
        let stopped = lock(&self.0);
        if *stopped {
            return Err(io::Error::other("expected a copy, found that it had ended"));
        }
        Ok(stopped)
    }
}

/// Stops what runs when it is dropped.
struct Stops(Stopped);

impl Drop for Stops {
    fn drop(&mut self) {
        *lock(&self.0.0) = true;
    }
}

/// Reads parts into their slots. Returns the checksums of what was read.
///
/// # Errors
/// [`ErrorKind::UnexpectedEof`] if the file ends before.
pub(crate) async fn read(
    shared: &Arc<Shared>,
    file: File,
    parts: Vec<Part>,
) -> io::Result<Vec<Vec<u64>>> {
    let shared = Arc::clone(shared);
    in_a_thread(move |stopped| read_parts(&shared, file, &parts, stopped)).await
}

/// Writes a pack that begins with `head`. `Some`: the slots of that part have other bytes than they should, or are no
/// longer the copy's, and there is no pack.
pub(crate) async fn write(
    shared: &Arc<Shared>,
    path: PathBuf,
    head: Vec<u8>,
    parts: Vec<Part>,
) -> io::Result<Option<usize>> {
    let shared = Arc::clone(shared);
    in_a_thread(move |stopped| {
        // The client's name for what is not whole: no listing has it.
        let mut staged = path.clone().into_os_string();
        staged.push("#1");
        let staged = PathBuf::from(staged);
        let written = write_parts(&shared, &staged, &head, &parts, stopped);
        let done = match written {
            Ok(None) => fs::rename(&staged, &path).map(|()| None),
            other => other,
        };
        if !matches!(done, Ok(None)) {
            let _ = fs::remove_file(&staged); // What is left is in nobody's way.
        }
        done
    })
    .await
}

async fn in_a_thread<T: Send + 'static>(
    work: impl FnOnce(&Stopped) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let stopped = Stopped::default();
    let _stops = Stops(stopped.clone());
    let done = tokio::task::spawn_blocking(move || work(&stopped)).await;
    done.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

fn read_parts(
    shared: &Shared,
    mut file: File,
    parts: &[Part],
    stopped: &Stopped,
) -> io::Result<Vec<Vec<u64>>> {
    let mut buffer = vec![0; PIECE];
    let mut read = Vec::with_capacity(parts.len());
    for part in parts {
        file.seek(SeekFrom::Start(part.offset))?;
        let shard = shared.classes[part.class].shard_bytes;
        let mut sums = Vec::with_capacity(shared.ranks);
        for rank in 0..shared.ranks {
            let mut digests = Vec::with_capacity(shard.div_ceil(TILE_BYTES));
            for at in (0..shard).step_by(PIECE) {
                let piece = &mut buffer[..PIECE.min(shard - at)];
                file.read_exact(piece)?;
                let held = stopped.check()?;
                shared.scatter(part.copy, rank, &part.slots, at, piece, &mut digests);
                drop(held);
            }
            sums.push(combine(digests.into_iter(), shard));
        }
        read.push(sums);
    }
    Ok(read)
}

fn write_parts(
    shared: &Shared,
    path: &Path,
    head: &[u8],
    parts: &[Part],
    stopped: &Stopped,
) -> io::Result<Option<usize>> {
    let mut file = create(path)?;
    file.write_all(head)?;
    let mut buffer = vec![0; PIECE];
    for (at, part) in parts.iter().enumerate() {
        let shard = shared.classes[part.class].shard_bytes;
        for rank in 0..shared.ranks {
            let mut digests = Vec::with_capacity(shard.div_ceil(TILE_BYTES));
            for from in (0..shard).step_by(PIECE) {
                let piece = &mut buffer[..PIECE.min(shard - from)];
                let held = stopped.check()?;
                let there = shared.gather(part.copy, rank, &part.slots, from, piece, &mut digests);
                drop(held);
                if !there {
                    return Ok(Some(at));
                }
                file.write_all(piece)?;
            }
            if part.sums.get(rank) != Some(&combine(digests.into_iter(), shard)) {
                return Ok(Some(at));
            }
        }
    }
    Ok(None)
}

/// A new file; its directory is made if it is missing.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            options.open(path)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_nobody_waits_for_any_more_touches_no_slots() {
        let (goes_on, waits) = channel();
        let (says, hears) = channel();
        let work = move |stopped: &Stopped| {
            waits.recv().unwrap();
            says.send(stopped.check().is_ok()).unwrap();
            Ok(())
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let late = runtime.block_on(async {
            tokio::time::timeout(Duration::from_millis(10), in_a_thread(work)).await
        });
        assert!(late.is_err());
        goes_on.send(()).unwrap();
        assert_eq!(hears.recv(), Ok(false));
    }
}
