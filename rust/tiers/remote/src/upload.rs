//! Writes. Entries wait a moment for others, and go to the store as one pack.

use std::iter;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use hybrid_pages::error::{Cause, Error};
use hybrid_pages::transfer::{TILE_BYTES, combine};
use hybrid_pages_tiers::{Name, lock};
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout, timeout_at};

use crate::error::StoreError;
use crate::files::{self, FilePart};
use crate::messages::{EntryWrite, Upload};
use crate::pack::{MOST_ENTRIES, PackId, PackName, PackTable, sign_of};
use crate::place::{RemotePlace, of_a_file};
use crate::shared::{PANICKED, RemoteConnection, RemoteShared, now};
use crate::stats::RemoteFailure;

/// Most packs that are on their way at a time.
const PACKS: usize = 4;
/// Most packs that are removed one by one after a reset. A [sign](sign_of), which this process puts into the store,
/// makes others ignore all its packs anyway.
const MOST_OWN: usize = 1 << 16;

/// Serves writes until the store is closed.
pub(crate) async fn serve(shared: Arc<RemoteShared>, mut queue: UnboundedReceiver<Upload>) {
    let permits = Arc::new(Semaphore::new(PACKS));
    let mut number = 0;
    while let Some(first) = queue.recv().await {
        let Upload::Entry(first) = first else {
            continue;
        };
        let due = tokio::time::Instant::now() + shared.options.pack_age;
        let mut bytes = shared.classes[first.class].bytes;
        let mut entries = vec![first];
        while bytes < shared.options.pack_bytes && entries.len() < MOST_ENTRIES {
            match timeout_at(due, queue.recv()).await {
                Ok(Some(Upload::Entry(next))) => {
                    bytes += shared.classes[next.class].bytes;
                    entries.push(next);
                }
                Ok(Some(Upload::Flush) | None) | Err(_) => break,
            }
        }
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        let shared = Arc::clone(&shared);
        let this = number;
        number += 1;
        tokio::spawn(async move { put(&shared, entries, this, permit).await });
    }
}

/// Writes a pack and ends its copies. The permit is released when the store has answered.
async fn put(
    shared: &Arc<RemoteShared>,
    entries: Vec<EntryWrite>,
    number: u32,
    permit: OwnedSemaphorePermit,
) {
    let Some(connection) = shared.connection.get() else {
        return;
    };
    let pauses = {
        let mut state = lock(&shared.state);
        state.writes_begun |= !state.cleared;
        state.writes.is_open() && !state.writes.may_try()
    };
    if pauses {
        let what = "expected a store that takes writes, found that it takes none";
        for entry in &entries {
            shared.fail(entry.copy.id, RemoteFailure::Paused, what);
        }
        return;
    }
    let mut wanted = Vec::with_capacity(entries.len());
    for entry in entries {
        if is_wanted(shared, &entry) {
            wanted.push(entry);
        } else {
            let what = "expected a write, found it undone";
            shared.end(entry.copy.id, Err(Error::remote(what)));
        }
    }
    let id = PackId {
        made: now(),
        writer: connection.writer,
        number,
    };
    let mut payload = Vec::new();
    if shared.options.place.directory.is_none() {
        wanted.retain(|entry| {
            let bytes = gather(shared, connection, id, entry);
            let is_right = bytes.is_some();
            payload.extend(bytes);
            is_right
        });
    }
    let (name, path, table, failure) = loop {
        if wanted.is_empty() {
            return;
        }
        let laid: Vec<(Name, usize, &[u64])> = wanted
            .iter()
            .map(|entry| (entry.name, entry.class, &entry.told[..]))
            .collect();
        let table = PackTable::of(&laid, &shared.classes);
        let head = table.encode(shared.format(), &connection.identity, id);
        let table_bytes = head.len() as u64;
        let name = PackName { id, table_bytes };
        let path = connection.folder.clone().join(name.to_string());
        let sending = send(shared, &path, (id, head), &payload, &wanted);
        let outcome = timeout(shared.options.write_limit, sending).await;
        shared.ledger.count(|counts| counts.puts += 1);
        let failure = match outcome {
            Ok(Ok(None)) => None,
            Ok(Ok(Some(other))) => {
                differs(shared, &wanted.remove(other));
                continue;
            }
            Ok(Err(error)) => Some(Cause::of(StoreError::of(&error))),
            Err(_) => {
                let limit = shared.options.write_limit;
                Some(format!("expected it within {limit:?}, found no answer").into())
            }
        };
        break (name, path, table, failure);
    };
    if let Some(what) = failure {
        shared.write_failed();
        drop(permit);
        for entry in &wanted {
            shared.fail(entry.copy.id, RemoteFailure::Write, what.clone());
        }
        // The pack may have arrived nevertheless.
        remove(shared, &path).await;
        return;
    }
    drop(permit);
    {
        let mut state = lock(&shared.state);
        state.writes.worked();
        if !state.cleared {
            if state.own.len() == MOST_OWN {
                state.own.drain(..MOST_OWN / 2); // Only the sign takes these back.
            }
            state.own.push(name);
            shared.ledger.count(|counts| {
                counts.writes += wanted.len() as u64;
                counts.written_bytes += table.object_bytes;
            });
        }
    }
    // Records have the order of entries.
    let mut entries = wanted.iter();
    shared.add_pack(name, table.records, true, |state| {
        let entry = entries.next();
        entry.is_some_and(|entry| state.writing.get(&entry.name) == Some(&entry.copy.id))
    });
    let taken_back = lock(&shared.state).cleared;
    for entry in &wanted {
        let result = if taken_back {
            Err(Error::remote("expected a write, found a reset"))
        } else {
            Ok(Vec::new())
        };
        shared.end(entry.copy.id, result);
    }
    if taken_back {
        remove(shared, &path).await;
    }
}

/// Sends a pack to the store. If the slots of an entry don't have the bytes it was offered with, makes no pack, and
/// returns the entry's index.
async fn send(
    shared: &Arc<RemoteShared>,
    path: &Path,
    (id, head): (PackId, Vec<u8>),
    payload: &[Bytes],
    entries: &[EntryWrite],
) -> object_store::Result<Option<usize>> {
    let place = &shared.options.place;
    let Some(directory) = &place.directory else {
        let payload = iter::once(head.into()).chain(payload.iter().cloned());
        let put = place.store.put(path, payload.collect::<PutPayload>());
        return put.await.map(|_| None);
    };
    let part = |entry: &EntryWrite| FilePart {
        copy: entry.copy.id,
        class: entry.class,
        slots: Arc::clone(&entry.slots),
        offset: 0,
        sums: Arc::clone(&entry.sums),
        seal: entry.seal.clone(),
        pack: id,
    };
    let parts = entries.iter().map(part).collect();
    let file = directory.path_to_filesystem(path)?;
    files::write(shared, file, head, parts)
        .await
        .map_err(of_a_file)
}

/// Copies an entry out of its slots, and encrypts it if there is a key; `None` if they don't have the bytes it was
/// offered with.
fn gather(
    shared: &RemoteShared,
    connection: &RemoteConnection,
    id: PackId,
    entry: &EntryWrite,
) -> Option<Bytes> {
    let class = shared.classes[entry.class];
    let mut bytes = vec![0; class.bytes as usize];
    let (copy, slots) = (entry.copy.id, &entry.slots);
    let shards = bytes.chunks_exact_mut(shared.stored_shard(entry.class).max(1));
    for (rank, shard) in shards.enumerate() {
        let mut digests = Vec::with_capacity(class.shard_bytes.div_ceil(TILE_BYTES));
        let there = shared.gather(copy, rank, slots, 0, shard, &mut digests);
        let sum = combine(digests.into_iter(), class.shard_bytes);
        if !there || entry.sums.get(rank) != Some(&sum) {
            differs(shared, entry);
            return None;
        }
    }
    let sealed = seal(shared, connection, id, entry, &mut bytes);
    if let Err(what) = sealed {
        shared.fail(copy, RemoteFailure::Sealed, what);
        return None;
    }
    Some(bytes.into())
}

/// Encrypts the shards of an entry, if there is a key.
fn seal(
    shared: &RemoteShared,
    connection: &RemoteConnection,
    id: PackId,
    entry: &EntryWrite,
    bytes: &mut [u8],
) -> Result<(), Cause> {
    let Some(seal) = &entry.seal else {
        return Ok(());
    };
    let lot = seal.lot()?;
    let at = shared.sealed_at(connection, id, entry.class, &entry.sums);
    let shards = bytes.chunks_exact_mut(shared.stored_shard(entry.class).max(1));
    for (rank, shard) in shards.enumerate() {
        lot.seal(&at, rank, 0, shard)?;
    }
    Ok(())
}

fn differs(shared: &RemoteShared, entry: &EntryWrite) {
    let what = "expected slots with the bytes that were offered, found others";
    shared.fail(entry.copy.id, RemoteFailure::Source, what);
}

fn is_wanted(shared: &RemoteShared, entry: &EntryWrite) -> bool {
    lock(&shared.state).writing.get(&entry.name) == Some(&entry.copy.id)
}

/// After a reset, puts a sign into the store that this process has taken back its packs, and removes the packs. Ends
/// when that is done.
pub(crate) async fn take_back(shared: Arc<RemoteShared>) {
    while let Err(panic) = AssertUnwindSafe(sign(&shared)).catch_unwind().await {
        drop(panic); // The panic's text went to standard error.
        shared.ledger.failed(RemoteFailure::Panic, PANICKED);
        sleep(shared.options.retry).await;
    }
    lock(&shared.state).removing = false;
}

async fn sign(shared: &RemoteShared) {
    let Some(connection) = shared.connection.get() else {
        return;
    };
    let limit = shared.options.write_limit;
    loop {
        // Others list names from some time on, so the sign has the time of this attempt.
        let sign = connection
            .folder
            .clone()
            .join(sign_of(now(), connection.writer));
        match timeout(limit, mark(&shared.options.place, &sign)).await {
            Ok(Ok(())) => break,
            Ok(Err(error)) => shared
                .ledger
                .failed(RemoteFailure::Remove, &StoreError::of(&error).to_string()),
            Err(_) => shared
                .ledger
                .failed(RemoteFailure::Remove, "expected an answer, found none"),
        }
        sleep(shared.options.retry).await;
    }
    let own = std::mem::take(&mut lock(&shared.state).own);
    for path in paths(connection, &own) {
        remove(shared, &path).await;
    }
}

/// Makes an empty object.
async fn mark(place: &RemotePlace, path: &Path) -> object_store::Result<()> {
    let Some(directory) = &place.directory else {
        let put = place.store.put(path, PutPayload::default());
        return put.await.map(drop);
    };
    let file = directory.path_to_filesystem(path)?;
    files::mark(file).await.map_err(of_a_file)
}

fn paths(connection: &RemoteConnection, own: &[PackName]) -> Vec<Path> {
    let path = |name: &PackName| connection.folder.clone().join(name.to_string());
    own.iter().map(path).collect()
}

/// Removes an object. If that fails, the sign still keeps others from using it.
async fn remove(shared: &RemoteShared, path: &Path) {
    let limit = shared.options.write_limit;
    match timeout(limit, shared.options.place.store.delete(path)).await {
        Ok(Ok(()) | Err(object_store::Error::NotFound { .. })) => {}
        Ok(Err(error)) => shared
            .ledger
            .failed(RemoteFailure::Remove, &StoreError::of(&error).to_string()),
        Err(_) => shared
            .ledger
            .failed(RemoteFailure::Remove, "expected an answer, found none"),
    }
}
