//! Reads: entries that are wanted together and lie near each other come by one request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hashbrown::HashSet;
use object_store::ObjectStoreExt as _;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout_at};

use crate::lock;
use crate::messages::Fetch;
use crate::pack::PackName;
use crate::place::plain;
use crate::shared::{Shared, left_of};
use crate::stats::Reason;

/// The cache asks for all that a hit needs in a row: so long for the others.
const GATHERING: Duration = Duration::from_micros(500);
/// Bytes between two entries that are read along with them.
const MOST_GAP: u64 = 64 << 10;
/// Bytes of one request, about: several run beside each other.
const RUN_BYTES: u64 = 8 << 20;

/// Reads that run beside each other.
struct Batch {
    begun: Instant,
    bytes: u64,
    left: AtomicUsize,
    failed: AtomicUsize,
}

/// Runs until the store is closed.
pub(crate) async fn serve(shared: Arc<Shared>, mut queue: UnboundedReceiver<Fetch>) {
    let permits = Arc::new(Semaphore::new(shared.options.requests));
    while let Some(first) = queue.recv().await {
        sleep(GATHERING).await;
        let mut fetches = vec![first];
        while let Ok(next) = queue.try_recv() {
            fetches.push(next);
        }
        let bytes = fetches.iter().map(|fetch| fetch.bytes).sum();
        let runs = runs(fetches);
        let batch = Arc::new(Batch {
            begun: Instant::now(),
            bytes,
            left: AtomicUsize::new(runs.len()),
            failed: AtomicUsize::new(0),
        });
        for run in runs {
            let (shared, permits) = (Arc::clone(&shared), Arc::clone(&permits));
            let batch = Arc::clone(&batch);
            tokio::spawn(async move {
                let works = fetch(&shared, &permits, run).await;
                batch
                    .failed
                    .fetch_add(usize::from(!works), Ordering::SeqCst);
                let last = batch.left.fetch_sub(1, Ordering::SeqCst) == 1;
                if last && batch.failed.load(Ordering::SeqCst) == 0 {
                    let took = batch.begun.elapsed();
                    lock(&shared.state).speed.brought(batch.bytes, took);
                }
            });
        }
    }
}

/// Entries of one pack that lie near each other, in order.
fn runs(mut fetches: Vec<Fetch>) -> Vec<Vec<Fetch>> {
    fetches.sort_by_key(|fetch| (fetch.spot.pack, fetch.spot.offset));
    let mut runs: Vec<Vec<Fetch>> = Vec::new();
    for fetch in fetches {
        let near = runs.last().is_some_and(|run| {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            let end = last.spot.offset + last.bytes;
            // Those of one pack are in the order of their offsets.
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

/// Reads a run and ends its copies. Returns whether the store answered as it should.
async fn fetch(shared: &Arc<Shared>, permits: &Semaphore, run: Vec<Fetch>) -> bool {
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
    let Some(name) = name else {
        fail(
            shared,
            &run,
            Reason::Gone,
            "expected a pack, found that it had left",
        );
        return true;
    };
    let read = async {
        let permit = permits.acquire().await;
        let bytes = read(shared, name, start, end).await;
        drop(permit);
        bytes
    };
    let outcome = timeout_at(limit, read).await;
    shared.count(|counts| counts.gets += 1);
    match outcome {
        Err(_) => {
            let deadline = shared.options.deadline;
            let what = format!("expected an answer within {deadline:?}, found none");
            let quiet = lock(&shared.state).is_quiet(deadline);
            fail(shared, &run, Reason::Deadline, &what);
            if quiet {
                shared.read_answered(false);
            }
            true // So slow, at least: the next hit is weighed against that.
        }
        Ok(Err(object_store::Error::NotFound { .. })) => {
            lose(shared, name);
            fail(
                shared,
                &run,
                Reason::Gone,
                "expected a pack, found that it had left",
            );
            shared.read_answered(true);
            true
        }
        Ok(Err(error)) => {
            fail(shared, &run, Reason::Read, &plain(&error));
            shared.read_answered(false);
            false
        }
        Ok(Ok(bytes)) if bytes.len() as u64 != end - start => {
            let what = format!(
                "expected {} bytes of a pack, found {}",
                end - start,
                bytes.len()
            );
            lose(shared, name);
            fail(shared, &run, Reason::Short, &what);
            shared.read_answered(true);
            false
        }
        Ok(Ok(bytes)) => {
            shared.read_answered(true);
            for fetch in run {
                take(shared, &fetch, start, &bytes);
            }
            true
        }
    }
}

async fn read(
    shared: &Shared,
    name: PackName,
    start: u64,
    end: u64,
) -> object_store::Result<Bytes> {
    let Some(connection) = shared.connection.get() else {
        return Ok(Bytes::new());
    };
    let path = connection.folder.clone().join(name.to_string());
    shared
        .options
        .place
        .store
        .get_range(&path, start..end)
        .await
}

/// Takes an entry out of what was read.
fn take(shared: &Shared, fetch: &Fetch, start: u64, bytes: &[u8]) {
    let at = (fetch.spot.offset - start) as usize;
    let bytes = &bytes[at..at + fetch.bytes as usize];
    let sums = shared.scatter(fetch.copy, fetch.spot.class, &fetch.slots, bytes);
    if sums == *fetch.spot.sums {
        shared.count(|counts| {
            counts.reads += 1;
            counts.read_bytes += fetch.bytes;
        });
        shared.end(fetch.copy, Ok(sums));
    } else {
        let what = "expected the bytes that were written, found others";
        let pack = Some(fetch.spot.pack);
        let mut state = lock(&shared.state);
        state.catalog.remove(&fetch.name, pack, &shared.classes);
        drop(state);
        // A failed read says nothing of what hangs from the entry.
        shared.fail(fetch.copy, Reason::Checksum, what);
    }
}

fn fail(shared: &Shared, run: &[Fetch], reason: Reason, what: &str) {
    {
        let mut state = lock(&shared.state);
        let now = Instant::now();
        let until = now + shared.options.deadline.max(shared.options.retry);
        state.suspects.retain(|_, until| now < *until);
        for fetch in run {
            state.suspects.insert(fetch.name, until);
        }
    }
    for fetch in run {
        shared.fail(fetch.copy, reason, what);
    }
}

/// A pack is gone, or not what it was: its entries are no longer counted on.
fn lose(shared: &Shared, name: PackName) {
    let gone = HashSet::from_iter([name.id]);
    let mut state = lock(&shared.state);
    state.catalog.remove_packs(&gone, &shared.classes);
    state.catalog.refuse(name.id);
}

#[cfg(test)]
mod tests {
    use hybrid_pages::tier::CopyId;

    use super::*;
    use crate::catalog::Spot;
    use crate::pack::PackId;

    fn fetch(pack: u32, offset: u64, bytes: u64) -> Fetch {
        let id = PackId {
            made: 1,
            writer: 1,
            number: pack,
        };
        Fetch {
            copy: CopyId(0),
            name: [0; 32],
            spot: Spot {
                pack: id,
                class: 0,
                offset,
                sums: Box::default(),
            },
            bytes,
            slots: Vec::new(),
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
