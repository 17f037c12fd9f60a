//! Reads. One request fetches entries that are wanted together and lie near each other.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hybrid_pages::error::Cause;
use hybrid_pages::transfer::{TILE_BYTES, combine};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout_at};

use crate::error::StoreError;
use crate::files::{self, FilePart};
use crate::messages::Fetch;
use crate::pack::PackName;
use crate::place::of_a_file;
use crate::shared::{GONE, RemoteConnection, RemoteShared, left_of};
use crate::stats::RemoteFailure;
use hybrid_pages_tiers::lock;

/// How long a read waits for others, since the cache begins all reads of a hit in a row.
const GATHERING: Duration = Duration::from_micros(500);
/// Most unwanted bytes between two entries that one request reads.
const MOST_GAP: u64 = 64 << 10;
/// Most bytes of a request for several entries. Several requests run at a time.
const RUN_BYTES: u64 = 8 << 20;

/// Reads that run at the same time.
struct ReadBatch {
    begun: Instant,
    asked: u64,
    brought: AtomicU64,
    left: AtomicUsize,
    failed: AtomicUsize,
}

/// Serves reads until the store is closed.
pub(crate) async fn serve(shared: Arc<RemoteShared>, mut queue: UnboundedReceiver<Fetch>) {
    let permits = Arc::new(Semaphore::new(shared.options.requests));
    while let Some(first) = queue.recv().await {
        sleep(GATHERING).await;
        let mut fetches = vec![first];
        while let Ok(next) = queue.try_recv() {
            fetches.push(next);
        }
        let asked = fetches.iter().map(|fetch| fetch.bytes).sum();
        let runs = runs(fetches);
        let batch = Arc::new(ReadBatch {
            begun: Instant::now(),
            asked,
            brought: AtomicU64::new(0),
            left: AtomicUsize::new(runs.len()),
            failed: AtomicUsize::new(0),
        });
        for run in runs {
            let (shared, permits) = (Arc::clone(&shared), Arc::clone(&permits));
            let batch = Arc::clone(&batch);
            tokio::spawn(async move {
                let asked = run.iter().map(|fetch| fetch.bytes).sum();
                let (works, brought) = match fetch(&shared, &permits, run).await {
                    ReadOutcome::Whole => (true, asked),
                    ReadOutcome::Slow => (true, 0),
                    ReadOutcome::Failed => (false, 0),
                };
                batch.brought.fetch_add(brought, Ordering::SeqCst);
                batch
                    .failed
                    .fetch_add(usize::from(!works), Ordering::SeqCst);
                let last = batch.left.fetch_sub(1, Ordering::SeqCst) == 1;
                if last && batch.failed.load(Ordering::SeqCst) == 0 {
                    let took = batch.begun.elapsed();
                    let brought = batch.brought.load(Ordering::SeqCst);
                    let mut state = lock(&shared.state);
                    state.speed.brought(batch.asked, brought, took);
                }
            });
        }
    }
}

/// Groups reads into runs: entries of one pack that lie near each other, in order.
fn runs(mut fetches: Vec<Fetch>) -> Vec<Vec<Fetch>> {
    fetches.sort_by_key(|fetch| (fetch.spot.pack, fetch.spot.offset));
    let mut runs: Vec<Vec<Fetch>> = Vec::new();
    for fetch in fetches {
        let near = runs.last().is_some_and(|run| {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            let end = last.spot.offset + last.bytes;
            // Within a pack, reads are sorted by offset.
            first.spot.pack == fetch.spot.pack
                && fetch.spot.offset <= end + MOST_GAP
                && fetch.spot.offset + fetch.bytes - first.spot.offset <= RUN_BYTES
        });
        match runs.last_mut().filter(|_| near) {
            Some(run) => run.push(fetch),
            None => runs.push(vec![fetch]),
        }
    }
    runs
}

/// The outcome of a request, as a measurement of the store's speed.
enum ReadOutcome {
    Whole,
    /// The request took too long, so the store is at most this fast.
    Slow,
    /// The request failed and measured nothing.
    Failed,
}

/// Reads a run of entries and ends their copies.
async fn fetch(shared: &Arc<RemoteShared>, permits: &Semaphore, run: Vec<Fetch>) -> ReadOutcome {
    let begun = run.iter().map(|fetch| fetch.begun).min();
    let limit = left_of(begun.unwrap_or_else(Instant::now), shared.options.deadline);
    let first = &run[0].spot;
    let (pack, start) = (first.pack, first.offset);
    let end = run
        .iter()
        .map(|fetch| fetch.spot.offset + fetch.bytes)
        .max();
    let end = end.unwrap_or(start);
    let name = lock(&shared.state).catalog.pack(pack);
    let Some((name, connection)) = name.zip(shared.connection.get()) else {
        fail(shared, &run, RemoteFailure::Gone, GONE);
        return ReadOutcome::Failed;
    };
    let read = async {
        let permit = permits.acquire().await;
        let found = read(shared, name, start..end, &run).await;
        drop(permit);
        found
    };
    let outcome = timeout_at(limit, read).await;
    shared.ledger.count(|counts| counts.gets += 1);
    match outcome {
        Err(_) => {
            let deadline = shared.options.deadline;
            let what = format!("expected an answer within {deadline:?}, found none");
            let quiet = lock(&shared.state).is_quiet(deadline);
            fail(shared, &run, RemoteFailure::Deadline, what);
            if quiet {
                shared.read_answered(false);
            }
            ReadOutcome::Slow
        }
        Ok(Err(object_store::Error::NotFound { .. })) => {
            shared.remove_pack(name.id, |catalog| catalog.miss(name.id));
            fail(shared, &run, RemoteFailure::Gone, GONE);
            shared.read_answered(true);
            ReadOutcome::Failed
        }
        Ok(Err(error)) => {
            fail(
                shared,
                &run,
                RemoteFailure::Read,
                Cause::of(StoreError::of(&error)),
            );
            shared.read_answered(false);
            ReadOutcome::Failed
        }
        Ok(Ok(found)) => {
            let sums = match found {
                Got::Copied(sums) => Some(sums),
                Got::Bytes(bytes) if bytes.len() as u64 == end - start => Some(
                    run.iter()
                        .map(|fetch| copy(shared, connection, fetch, start, &bytes))
                        .collect(),
                ),
                Got::Bytes(_) | Got::Short => None,
            };
            let Some(sums) = sums else {
                let what = format!("expected {} bytes of a pack, found others", end - start);
                shared.read_lied(pack);
                lose(shared, name);
                fail(shared, &run, RemoteFailure::Short, what);
                return ReadOutcome::Failed;
            };
            if std::iter::zip(&run, &sums).any(|(fetch, sums)| **sums == *fetch.sums) {
                shared.read_answered(true);
            } else {
                shared.read_lied(pack);
            }
            for (fetch, sums) in run.iter().zip(sums) {
                take(shared, fetch, sums);
            }
            ReadOutcome::Whole
        }
    }
}

/// The bytes that a request brought.
enum Got {
    Bytes(Bytes),
    /// The entries are in their slots already; these are their checksums.
    Copied(Vec<Vec<u64>>),
    /// There were fewer bytes than expected.
    Short,
}

async fn read(
    shared: &Arc<RemoteShared>,
    name: PackName,
    range: Range<u64>,
    run: &[Fetch],
) -> object_store::Result<Got> {
    let Some(connection) = shared.connection.get() else {
        return Ok(Got::Short);
    };
    let path = connection.folder.clone().join(name.to_string());
    let place = &shared.options.place;
    let Some(directory) = &place.directory else {
        return place.range(&path, range).await.map(Got::Bytes);
    };
    let part = |fetch: &Fetch| FilePart {
        copy: fetch.copy.id,
        class: fetch.spot.class,
        slots: Arc::clone(&fetch.slots),
        offset: fetch.spot.offset,
        sums: Arc::clone(&fetch.sums),
        seal: fetch.seal.clone(),
        pack: fetch.spot.pack,
    };
    let parts = run.iter().map(part).collect();
    let file = directory.path_to_filesystem(&path)?;
    match files::read(shared, file, parts).await {
        Ok(sums) => Ok(Got::Copied(sums)),
        Err(error) => match error.kind() {
            ErrorKind::UnexpectedEof => Ok(Got::Short),
            ErrorKind::NotFound => Err(object_store::Error::NotFound {
                path: path.into(),
                source: Box::new(error),
            }),
            _ => Err(of_a_file(error)),
        },
    }
}

/// Copies an entry from the bytes that were read into its slots. Returns the checksums; none if its seal is broken.
fn copy(
    shared: &RemoteShared,
    connection: &RemoteConnection,
    fetch: &Fetch,
    start: u64,
    bytes: &[u8],
) -> Vec<u64> {
    let (id, class) = (fetch.copy.id, fetch.spot.class);
    let at = (fetch.spot.offset - start) as usize;
    let shard = shared.classes[class].shard_bytes;
    let shards = bytes[at..at + fetch.bytes as usize].chunks(shared.stored_shard(class).max(1));
    let mut sums = Vec::with_capacity(shared.ranks);
    for (rank, bytes) in shards.enumerate() {
        let mut digests = Vec::with_capacity(shard.div_ceil(TILE_BYTES));
        match &fetch.seal {
            None => shared.scatter(id, rank, &fetch.slots, 0, bytes, &mut digests),
            Some(seal) => {
                let at = shared.sealed_at(connection, fetch.spot.pack, class, &fetch.sums);
                let mut opened = bytes.to_vec();
                if !seal.open(&at, rank, 0, &mut opened) {
                    return Vec::new();
                }
                shared.scatter(id, rank, &fetch.slots, 0, &opened, &mut digests);
            }
        }
        sums.push(combine(digests.into_iter(), shard));
    }
    sums
}

/// Ends the read of an entry whose bytes are in its slots.
fn take(shared: &RemoteShared, fetch: &Fetch, sums: Vec<u64>) {
    if sums == *fetch.sums {
        shared.ledger.count(|counts| {
            counts.reads += 1;
            counts.read_bytes += fetch.bytes;
        });
        shared.end(fetch.copy.id, Ok(sums));
    } else {
        let (reason, what) = if sums.is_empty() {
            let what = "expected bytes that were sealed for this pack with this key, found others";
            (RemoteFailure::Sealed, what)
        } else {
            let what = "expected the bytes that were written, found others";
            (RemoteFailure::Checksum, what)
        };
        let pack = Some(fetch.spot.pack);
        let mut state = lock(&shared.state);
        state.catalog.remove(&fetch.name, pack, &shared.classes);
        drop(state);
        // Entries that hang from this one may still be right.
        shared.fail(fetch.copy.id, reason, what);
    }
}

fn fail(shared: &RemoteShared, run: &[Fetch], reason: RemoteFailure, what: impl Into<Cause>) {
    let what = what.into();
    {
        let mut state = lock(&shared.state);
        let now = Instant::now();
        let until = now + shared.options.suspicion();
        for fetch in run {
            state.suspects.insert(fetch.name, until, now);
        }
    }
    for fetch in run {
        shared.fail(fetch.copy.id, reason, what.clone());
    }
}

/// Removes a pack that has changed from the catalog.
fn lose(shared: &RemoteShared, name: PackName) {
    shared.remove_pack(name.id, |catalog| catalog.refuse(name.id));
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use hybrid_pages::tier::CopyId;

    use super::*;
    use crate::catalog::PackSpot;
    use crate::messages::Begun;
    use crate::pack::PackId;

    fn fetch(pack: u32, offset: u64, bytes: u64) -> Fetch {
        let id = PackId {
            made: 1,
            writer: 1,
            number: pack,
        };
        Fetch {
            copy: Begun::new(CopyId(0), Weak::<RemoteShared>::new()),
            name: [0; 32],
            spot: PackSpot {
                pack: id,
                class: 0,
                offset,
                sums: Box::default(),
            },
            sums: Arc::default(),
            seal: None,
            bytes,
            slots: Arc::default(),
            begun: Instant::now(),
        }
    }

    #[test]
    fn entries_of_one_pack_that_lie_near_each_other_come_together() {
        let mib = 1 << 20;
        let all = vec![
            fetch(1, 3 * mib, mib),
            fetch(0, 0, 10),
            fetch(1, 2 * mib, mib),
            fetch(0, 10, 10),
            fetch(0, 100_000, 10),
            fetch(1, 4 * mib, 7 * mib),
        ];
        let found: Vec<Vec<u64>> = runs(all)
            .iter()
            .map(|run| run.iter().map(|fetch| fetch.spot.offset).collect())
            .collect();
        let expected = [
            vec![0, 10],
            vec![100_000],
            vec![2 * mib, 3 * mib],
            vec![4 * mib],
        ];
        assert_eq!(found, expected);
    }
}
