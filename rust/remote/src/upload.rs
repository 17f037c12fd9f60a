//! Writes: entries wait a moment for others, and go to the store as one pack.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hybrid_pages::error::Error;
use hybrid_pages::tier::Name;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout, timeout_at};

use crate::lock;
use crate::messages::{Entry, Upload};
use crate::pack::{PackId, PackName, Table, sign_of};
use crate::place::plain;
use crate::shared::{Connection, Shared, now};
use crate::stats::Reason;

/// Packs on their way at a time.
const PACKS: usize = 4;
/// Most packs that are removed one by one after a reset.
const MOST_OWN: usize = 1 << 16;
/// Most entries of a pack.
const MOST_ENTRIES: usize = 4096;

/// Runs until the store is closed.
pub(crate) async fn serve(shared: Arc<Shared>, mut queue: UnboundedReceiver<Upload>) {
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
        tokio::spawn(async move {
            put(&shared, entries, this).await;
            drop(permit);
        });
    }
}

/// Writes a pack and ends its copies.
async fn put(shared: &Shared, entries: Vec<Entry>, number: u32) {
    let Some(connection) = shared.connection.get() else {
        return;
    };
    let mut wanted = Vec::with_capacity(entries.len());
    let mut payload = vec![Bytes::new()];
    for entry in entries {
        if !is_wanted(shared, &entry) {
            let what = "expected a write, found it undone";
            shared.end(entry.copy, Err(Error::Remote(what.into())));
            continue;
        }
        let Some((bytes, sums)) = shared.gather(entry.copy, entry.class, &entry.slots) else {
            continue;
        };
        if sums != *entry.sums {
            let what = "expected slots with the bytes that were offered, found others";
            shared.fail(entry.copy, Reason::Source, what);
            forget(shared, &entry);
            continue;
        }
        payload.push(bytes.into());
        wanted.push(entry);
    }
    if wanted.is_empty() {
        return;
    }
    let id = PackId {
        made: now(),
        writer: shared.writer,
        number,
    };
    let laid: Vec<(Name, usize, &[u64])> = wanted
        .iter()
        .map(|entry| (entry.name, entry.class, &entry.sums[..]))
        .collect();
    let mut table = Table::of(&laid, &shared.classes);
    let head = table.encode(&connection.identity, id);
    let name = PackName {
        id,
        table_bytes: head.len() as u64,
    };
    payload[0] = head.into();
    let path = connection.folder.clone().join(name.to_string());
    let payload: PutPayload = payload.into_iter().collect();
    let begun = Instant::now();
    let writing = shared.options.place.store.put(&path, payload);
    let outcome = timeout(shared.options.write_limit, writing).await;
    shared.count(|counts| counts.puts += 1);
    let failure = match outcome {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(plain(&error)),
        Err(_) => Some(format!(
            "expected it within {:?}, found no answer",
            begun.elapsed()
        )),
    };
    if let Some(what) = failure {
        if lock(&shared.state).writes.failed() {
            shared.note("writes pause since it takes none");
        }
        for entry in &wanted {
            shared.fail(entry.copy, Reason::Write, &what);
            forget(shared, entry);
        }
        // It may have arrived in spite of that.
        remove(shared, &path).await;
        return;
    }
    let taken_back = {
        let mut state = lock(&shared.state);
        state.writes.worked();
        if !state.cleared {
            if state.own.len() == MOST_OWN {
                state.own.drain(..MOST_OWN / 2); // The sign alone takes those back.
            }
            state.own.push(name);
            // Records are in the order of entries.
            let mut entries = wanted.iter();
            table.records.retain(|_| {
                let entry = entries.next();
                entry.is_some_and(|entry| state.writing.get(&entry.name) == Some(&entry.copy))
            });
            let written = table.object_bytes;
            let count = wanted.len() as u64;
            state.catalog.add(name, table, &shared.classes, true);
            shared.count(|counts| {
                counts.writes += count;
                counts.written_bytes += written;
            });
        }
        state.cleared
    };
    for entry in &wanted {
        forget(shared, entry);
        let result = if taken_back {
            Err(Error::Remote("expected a write, found a reset".into()))
        } else {
            Ok(Vec::new())
        };
        shared.end(entry.copy, result);
    }
    if taken_back {
        remove(shared, &path).await;
    }
}

fn is_wanted(shared: &Shared, entry: &Entry) -> bool {
    lock(&shared.state).writing.get(&entry.name) == Some(&entry.copy)
}

fn forget(shared: &Shared, entry: &Entry) {
    let mut state = lock(&shared.state);
    if state.writing.get(&entry.name) == Some(&entry.copy) {
        state.writing.remove(&entry.name);
    }
}

/// Says in the store that this process takes back what it wrote, and removes it. Ends when that is done.
pub(crate) async fn take_back(shared: Arc<Shared>) {
    let Some(connection) = shared.connection.get() else {
        return;
    };
    let sign = connection
        .folder
        .clone()
        .join(sign_of(now(), shared.writer));
    let limit = shared.options.write_limit;
    loop {
        let writing = shared.options.place.store.put(&sign, PutPayload::default());
        match timeout(limit, writing).await {
            Ok(Ok(_)) => break,
            Ok(Err(error)) => shared.failed(Reason::Remove, &plain(&error)),
            Err(_) => shared.failed(Reason::Remove, "expected an answer, found none"),
        }
        sleep(shared.options.retry).await;
    }
    let own = std::mem::take(&mut lock(&shared.state).own);
    for path in paths(connection, &own) {
        remove(&shared, &path).await;
    }
    lock(&shared.state).removing = false;
}

fn paths(connection: &Connection, own: &[PackName]) -> Vec<Path> {
    let path = |name: &PackName| connection.folder.clone().join(name.to_string());
    own.iter().map(path).collect()
}

/// Removes an object; the sign keeps others from using it if that fails.
async fn remove(shared: &Shared, path: &Path) {
    let limit = shared.options.write_limit;
    match timeout(limit, shared.options.place.store.delete(path)).await {
        Ok(Ok(()) | Err(object_store::Error::NotFound { .. })) => {}
        Ok(Err(error)) => shared.failed(Reason::Remove, &plain(&error)),
        Err(_) => shared.failed(Reason::Remove, "expected an answer, found none"),
    }
}
