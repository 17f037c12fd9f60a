//! Packs in a directory. Bytes move between files and slots in pieces that fit into the processor's caches while they
//! are hashed and copied.
//!
//! A file system may hang. When the caller stops waiting, the copy is stopped, and nothing writes its slots
//! afterwards: a read that hangs uses memory of its own. A write that hangs may still read the slots, but then no
//! pack results.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use hybrid_pages::ids::SlotId;
use hybrid_pages::tier::CopyId;
use hybrid_pages::transfer::{TILE_BYTES, combine};
use hybrid_pages_tiers::{PriorityGuard, PriorityMutex, Seal, lock, sealed_bytes};
use tokio::sync::mpsc::{Sender, channel};

use crate::pack::PackId;
use crate::shared::{RemoteConnection, RemoteShared};

/// Number of tiles that are read or written at a time.
const TILES: usize = 16;
/// Bytes of a shard that are read or written at a time.
const PIECE: usize = TILES * TILE_BYTES;
/// Most names that a listing has read ahead.
const LISTED: usize = 1024;
/// Kinds of errors for a file that was removed after its name was listed.
const HAS_LEFT: [ErrorKind; 2] = [ErrorKind::NotFound, ErrorKind::StaleNetworkFileHandle];

/// A part of a pack.
#[derive(Debug, Clone)]
pub(crate) struct FilePart {
    pub(crate) copy: CopyId,
    pub(crate) class: usize,
    pub(crate) slots: Arc<[SlotId]>,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Checksums that the bytes should have.
    pub(crate) sums: Arc<[u64]>,
    pub(crate) seal: Option<Seal>,
    pub(crate) pack: PackId,
}

/// Whether a copy was stopped. The lock is held while its slots are touched.
#[derive(Debug, Clone, Default)]
struct Stopped(Arc<PriorityMutex<bool>>);

impl Stopped {
    fn check(&self) -> io::Result<PriorityGuard<'_, bool>> {
        let stopped = lock(&self.0);
        if *stopped {
            return Err(io::Error::other("expected a copy, found that it had ended"));
        }
        Ok(stopped)
    }
}

/// Stops a copy on drop.
struct Stops(Stopped);

impl Drop for Stops {
    fn drop(&mut self) {
        *lock(&self.0.0) = true;
    }
}

/// Reads parts of a file into their slots. Returns the checksums of the bytes; none for a part whose seal is broken.
///
/// # Errors
/// [`ErrorKind::UnexpectedEof`] if the file ends before.
pub(crate) async fn read(
    shared: &Arc<RemoteShared>,
    path: PathBuf,
    parts: Vec<FilePart>,
) -> io::Result<Vec<Vec<u64>>> {
    let shared = Arc::clone(shared);
    in_a_thread(move |stopped| read_parts(&shared, File::open(path)?, &parts, stopped)).await
}

/// Writes a pack that begins with `head`. If the slots of a part have wrong bytes or were given up, makes no pack,
/// and returns that part's index.
pub(crate) async fn write(
    shared: &Arc<RemoteShared>,
    path: PathBuf,
    head: Vec<u8>,
    parts: Vec<FilePart>,
) -> io::Result<Option<usize>> {
    let shared = Arc::clone(shared);
    in_a_thread(move |stopped| {
        // The client uses such names for files that are not whole, and listings leave them out.
        let mut staged = path.clone().into_os_string();
        staged.push("#1");
        let staged = PathBuf::from(staged);
        let written = create(&staged).and_then(|file| {
            let wrong = write_parts(&shared, &file, &head, &parts, stopped)?;
            if wrong.is_some() {
                return Ok(wrong);
            }
            file.sync_all()?; // A shared file system may report only now that it is full.
            given_up(&shared, &parts, stopped)
        });
        let done = match written {
            Ok(None) => fs::rename(&staged, &path).map(|()| None),
            other => other,
        };
        if !matches!(done, Ok(None)) {
            let _ = fs::remove_file(&staged); // A file that remains does no harm.
        }
        done
    })
    .await
}

/// Makes an empty file.
pub(crate) async fn mark(path: PathBuf) -> io::Result<()> {
    in_a_thread(move |_| create(&path).map(drop)).await
}

/// Lists the files of a folder whose names are wanted, with their lengths in bytes. Other files are left out.
pub(crate) fn list(
    folder: PathBuf,
    is_wanted: impl Fn(&str) -> bool + Send + 'static,
) -> BoxStream<'static, io::Result<(String, u64)>> {
    let (sender, receiver) = channel(LISTED);
    drop(tokio::task::spawn_blocking(move || {
        if let Err(error) = list_into(&folder, is_wanted, &sender) {
            drop(sender.blocking_send(Err(error)));
        }
    }));
    stream::unfold(receiver, async |mut receiver| {
        let next = receiver.recv().await;
        next.map(|next| (next, receiver))
    })
    .boxed()
}

fn list_into(
    folder: &Path,
    is_wanted: impl Fn(&str) -> bool,
    sender: &Sender<io::Result<(String, u64)>>,
) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if !is_wanted(&name) {
            continue;
        }
        let file = match entry.metadata() {
            Err(error) if HAS_LEFT.contains(&error.kind()) => continue,
            file => file?,
        };
        if file.is_file() && sender.blocking_send(Ok((name, file.len()))).is_err() {
            return Ok(()); // The reader of the list has gone.
        }
    }
    Ok(())
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
    shared: &RemoteShared,
    mut file: File,
    parts: &[FilePart],
    stopped: &Stopped,
) -> io::Result<Vec<Vec<u64>>> {
    let mut buffer = vec![0; TILES * shared.stored_tile()];
    let mut read = Vec::with_capacity(parts.len());
    let Some(connection) = shared.connection.get() else {
        return Err(ErrorKind::NotConnected.into());
    };
    'parts: for part in parts {
        file.seek(SeekFrom::Start(part.offset))?;
        let shard = shared.classes[part.class].shard_bytes;
        let mut sums = Vec::with_capacity(shared.ranks);
        for rank in 0..shared.ranks {
            let mut digests = Vec::with_capacity(shard.div_ceil(TILE_BYTES));
            for at in (0..shard).step_by(PIECE) {
                let length = PIECE.min(shard - at);
                let piece = &mut buffer[..sealed_bytes(length, shared.seals.tile_bytes())];
                file.read_exact(piece)?;
                if !open(shared, connection, part, (rank, at / TILE_BYTES), piece) {
                    read.push(Vec::new());
                    continue 'parts;
                }
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

/// Opens tiles of an encrypted part, in place. False if one of them is not what was sealed here.
fn open(
    shared: &RemoteShared,
    connection: &RemoteConnection,
    part: &FilePart,
    (rank, first): (usize, usize),
    bytes: &mut [u8],
) -> bool {
    part.seal.as_ref().is_none_or(|seal| {
        let at = shared.sealed_at(connection, part.pack, part.class, &part.sums);
        seal.open(&at, rank, first, bytes)
    })
}

fn write_parts(
    shared: &RemoteShared,
    mut file: &File,
    head: &[u8],
    parts: &[FilePart],
    stopped: &Stopped,
) -> io::Result<Option<usize>> {
    let Some(connection) = shared.connection.get() else {
        return Ok(Some(0));
    };
    file.write_all(head)?;
    let mut buffer = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let shard = shared.classes[part.class].shard_bytes;
        let lot = part.seal.as_ref().map(Seal::lot).transpose();
        let lot = lot.map_err(io::Error::other)?;
        for rank in 0..shared.ranks {
            let mut digests = Vec::with_capacity(shard.div_ceil(TILE_BYTES));
            for from in (0..shard).step_by(PIECE) {
                let piece = from..shard.min(from + PIECE);
                let length = piece.len();
                let held = stopped.check()?;
                if let Some(lot) = &lot {
                    buffer.resize(sealed_bytes(length, shared.seals.tile_bytes()), 0);
                    let slots = &part.slots;
                    let there =
                        shared.gather(part.copy, rank, slots, from, &mut buffer, &mut digests);
                    drop(held);
                    if !there {
                        return Ok(Some(at));
                    }
                    let place = shared.sealed_at(connection, part.pack, part.class, &part.sums);
                    lot.seal(&place, rank, from / TILE_BYTES, &mut buffer)
                        .map_err(io::Error::other)?;
                    file.write_all(&buffer)?;
                    continue;
                }
                let there = shared.digest(part.copy, rank, &part.slots, piece, &mut digests);
                drop(held);
                if !there {
                    return Ok(Some(at));
                }
                let planes = &connection.planes;
                planes.write(rank, &part.slots, from, length, file)?;
            }
            if part.sums.get(rank) != Some(&combine(digests.into_iter(), shard)) {
                return Ok(Some(at));
            }
        }
    }
    Ok(None)
}

/// The first part whose slots were given up. If there is none, the bytes in the file are those that were hashed,
/// since nobody else could write the slots until now.
fn given_up(
    shared: &RemoteShared,
    parts: &[FilePart],
    stopped: &Stopped,
) -> io::Result<Option<usize>> {
    let _held = stopped.check()?;
    Ok(parts.iter().position(|part| !shared.has_slots(part.copy)))
}

/// Makes a new file. Missing folders below the store's directory are made, but not the directory itself, which is
/// missing when a share is not mounted.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parents: Vec<&Path> = path.ancestors().skip(1).take(2).collect();
            for folder in parents.into_iter().rev() {
                match fs::create_dir(folder) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                    _ => {}
                }
            }
            options.open(path)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::OnceLock;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
    use hybrid_pages::ids::ClassKind;
    use hybrid_pages::transfer::checksum;
    use hybrid_pages_arena::Arena;
    use hybrid_pages_tiers::Planes;
    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;
    use crate::options::RemoteOptions;
    use crate::place::RemotePlace;
    use crate::shared::RemoteConnection;
    use hybrid_pages_tiers::entry_sizes;

    const COPY: CopyId = CopyId(7);

    /// A store with a copy out of a slot that holds one piece of ones.
    fn writing(folder: &Path) -> (RemoteShared, FilePart) {
        let segment = Segment::new("data", Dtype::Uint8, vec![PIECE]).unwrap();
        let layer = Layer::new("layer", vec![segment]).unwrap();
        let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
        let geometry = Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap();
        let arena = Arena::create(&geometry, PIECE, 1).unwrap();
        arena.write(SlotId(0), &vec![1; PIECE]).unwrap();
        let place = RemotePlace::of_url(&format!("file://{}", folder.display())).unwrap();
        let options = RemoteOptions::new(place);
        let mut shared =
            RemoteShared::new(options, entry_sizes(&geometry, PIECE).unwrap(), 1, PIECE);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        shared.connection = OnceLock::from(RemoteConnection {
            planes: Planes::of(&arena, 1, PIECE).unwrap(),
            identity: [0; 32],
            writer: 1,
            folder: object_store::path::Path::default(),
            tasks: runtime.handle().clone(),
            uploads: tokio::sync::mpsc::unbounded_channel().0,
            fetches: tokio::sync::mpsc::unbounded_channel().0,
        });
        lock(&shared.state).runs(COPY, Instant::now(), None);
        let part = FilePart {
            copy: COPY,
            class: 0,
            slots: Arc::from([SlotId(0)]),
            offset: 0,
            sums: Arc::from([checksum(&vec![1; PIECE])]),
            seal: None,
            pack: PackId {
                made: 0,
                writer: 0,
                number: 0,
            },
        };
        (shared, part)
    }

    /// The outcome of a write during whose last bytes `happens` runs.
    fn write_while(
        happens: impl FnOnce(&RemoteShared, &Stopped) + Send,
    ) -> (io::Result<Option<usize>>, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let (shared, part) = writing(folder.path());
        // The writer waits for who reads here, after it has hashed.
        let path = folder.path().join("pack");
        mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        let stopped = Stopped::default();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut bytes = vec![0];
                let mut reader = File::open(&path).unwrap();
                reader.read_exact(&mut bytes).unwrap();
                happens(&shared, &stopped);
                reader.read_to_end(&mut bytes).unwrap();
                bytes
            });
            let file = create(&path).unwrap();
            let parts = [part];
            let written = write_parts(&shared, &file, &[], &parts, &stopped);
            drop(file);
            let bytes = reading.join().unwrap();
            let written = written.and_then(|wrong| {
                assert_eq!(wrong, None);
                given_up(&shared, &parts, &stopped)
            });
            (written, bytes)
        })
    }

    #[test]
    fn what_is_written_while_its_slots_were_not_the_copys_counts_for_nothing() {
        let (written, bytes) = write_while(|_, _| {});
        assert_eq!(written.unwrap(), None);
        assert!(bytes == vec![1; PIECE]);
        let (written, _) = write_while(|shared, _| shared.end(COPY, Ok(Vec::new())));
        assert_eq!(written.unwrap(), Some(0));
        let (written, _) = write_while(|shared, _| shared.leave_slots());
        assert_eq!(written.unwrap(), Some(0));
        let (written, _) = write_while(|_, stopped| *lock(&stopped.0) = true);
        assert!(written.is_err());
    }

    #[test]
    fn a_pack_that_the_file_system_did_not_keep_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, part) = writing(folder.path());
        let shared = Arc::new(shared);
        let path = folder.path().join("pack");
        // A pipe takes every byte, and refuses to be synced.
        mkfifoat(CWD, folder.path().join("pack#1"), Mode::RWXU).unwrap();
        let staged = folder.path().join("pack#1");
        let reading = std::thread::spawn(move || fs::read(staged).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let written = runtime.block_on(write(&shared, path.clone(), Vec::new(), vec![part]));
        assert_eq!(reading.join().unwrap(), vec![1; PIECE]);
        assert_eq!(written.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(!path.exists());
    }

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
