//! The remote tier against its own client, `object_store`, on the same store: objects of 32 MiB written four at a
//! time, and ranges of 8 MiB read sixteen at a time.
//!
//! Entries have 8 MiB and then 256 KiB. Rounds of all four run in turn, so that shares count on a machine whose
//! speed drifts; the medians are printed, and those of the shares and of the CPU time of a GiB. The tier also checks every byte and copies it between the client's buffers
//! and slots. `HYBRID_PAGES_BENCH_REMOTE` names an empty store, such as `s3://bucket` with the client's own
//! environment; without it, a temporary directory is one. It is empty again at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, EntryKey, PrefixKey, SlotId};
use hybrid_pages::policy;
use hybrid_pages::tier::{Below, CopyEnd, CopyId};
use hybrid_pages::transfer::checksum;
use hybrid_pages_arena::Arena;
use hybrid_pages_remote::{Admit, Remote, RemoteHandle, RemoteOptions, RemotePlace};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

/// Bytes of an entry.
const SIZES: [usize; 2] = [8 << 20, 256 << 10];
/// Bytes that a round writes and reads.
const TOTAL: usize = 256 << 20;
const OBJECT: usize = 32 << 20;
const RANGE: usize = 8 << 20;
const ROUNDS: usize = 7;
const LIMIT: Duration = Duration::from_secs(300);

/// How long something took, by the clock and of the processors.
#[derive(Clone, Copy)]
struct Took {
    seconds: f64,
    cpu: f64,
}

fn timed(work: impl FnOnce()) -> Took {
    let cpu = || {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
    };
    let (begun, before) = (Instant::now(), cpu());
    work();
    Took {
        seconds: begun.elapsed().as_secs_f64(),
        cpu: cpu() - before,
    }
}

struct Tier {
    remote: Remote,
    handle: RemoteHandle,
    entries: usize,
    slots: usize,
    sums: Vec<u64>,
    copies: u64,
    _arena: Arena,
}

impl Tier {
    /// A tier whose entries have slots of their own.
    fn open(place: &RemotePlace, shard: usize, round: usize) -> Self {
        let segment = Segment::new("kv", Dtype::Uint8, vec![shard]).unwrap();
        let layer = Layer::new("attention", vec![segment]).unwrap();
        let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
        let geometry = Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap();
        let slot = shard.min(2 << 20);
        let (entries, slots) = (TOTAL / shard, shard / slot);
        let arena = Arena::create(&geometry, slot, entries * slots).unwrap();
        let mut bytes = vec![0; shard];
        let mut seed = blake3::Hasher::new();
        seed.update(b"bench").finalize_xof().fill(&mut bytes);
        for entry in 0..entries {
            for (at, part) in bytes.chunks(slot).enumerate() {
                arena
                    .write(SlotId((entry * slots + at) as u32), part)
                    .unwrap();
            }
        }
        let mut options = RemoteOptions::new(place.clone());
        options.admit = Admit::All;
        options.deadline = LIMIT;
        options.queue_bytes = 2 * TOTAL as u64;
        let shape = policy::EntrySizes {
            page: slots as u32,
            window: 0,
            checkpoint: 0,
        };
        let policy = policy::by_name("lru", shape).unwrap();
        let remote = Remote::open(options, &geometry, slot, policy).unwrap();
        let handle = remote.handle();
        let mut identity = [1; 32];
        identity[..8].copy_from_slice(&(round as u64).to_le_bytes());
        identity[8..16].copy_from_slice(&(std::process::id() as u64).to_le_bytes());
        handle.connect(&arena, &identity).unwrap();
        Self {
            remote,
            handle,
            entries,
            slots,
            sums: vec![checksum(&bytes)],
            copies: 0,
            _arena: arena,
        }
    }

    fn key(number: usize) -> EntryKey {
        let digest = blake3::hash(&number.to_le_bytes());
        EntryKey {
            namespace: Arc::from(&b"bench"[..]),
            prefix: PrefixKey::new(digest.as_bytes()).unwrap(),
            block_index: number,
            class_index: 0,
        }
    }

    fn slots(&self, entry: usize) -> Vec<SlotId> {
        let first = entry * self.slots;
        (first..first + self.slots)
            .map(|slot| SlotId(slot as u32))
            .collect()
    }

    fn run(&mut self, writes: bool) -> Took {
        let mut ended: Vec<CopyEnd> = Vec::new();
        let took = timed(|| self.move_all(writes, &mut ended));
        for end in ended {
            let sums = end.result.unwrap();
            assert!(writes || sums == self.sums);
        }
        took
    }

    fn move_all(&mut self, writes: bool, ended: &mut Vec<CopyEnd>) {
        let begun = Instant::now();
        for entry in 0..self.entries {
            let (key, slots) = (Self::key(entry), self.slots(entry));
            let copy = CopyId(self.copies);
            self.copies += 1;
            if writes {
                self.remote.write(copy, &key, &slots, &self.sums);
            } else {
                self.remote.read(copy, &key, &slots);
            }
        }
        while ended.len() < self.entries {
            assert!(begun.elapsed() < LIMIT, "{:?}", self.handle.stats());
            std::thread::sleep(Duration::from_micros(200));
            self.remote.poll(ended);
        }
    }
}

/// The same bytes by the client alone.
fn raw(runtime: &Runtime, place: &RemotePlace, round: usize, objects: &[Bytes]) -> [Took; 2] {
    let store = Arc::clone(place.client());
    let name = move |at: usize| Path::from(format!("raw/{}-{round}-{at}", std::process::id()));
    let write = async {
        let puts = futures::stream::iter(0..objects.len()).map(|at| {
            let (store, object) = (Arc::clone(&store), objects[at].clone());
            // As the tier does: work of several objects on several threads.
            tokio::spawn(async move {
                store
                    .put(&name(at), PutPayload::from_bytes(object))
                    .await
                    .unwrap();
            })
        });
        puts.buffer_unordered(4)
            .for_each(async |put| put.unwrap())
            .await;
    };
    let read = async {
        let gets = futures::stream::iter(0..TOTAL / RANGE).map(|at| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let start = (at * RANGE % OBJECT) as u64;
                let range = start..start + RANGE as u64;
                let bytes = store
                    .get_range(&name(at * RANGE / OBJECT), range)
                    .await
                    .unwrap();
                assert_eq!(bytes.len(), RANGE);
            })
        });
        gets.buffer_unordered(16)
            .for_each(async |get| get.unwrap())
            .await;
    };
    [
        timed(|| runtime.block_on(write)),
        timed(|| runtime.block_on(read)),
    ]
}

fn remove(runtime: &Runtime, place: &RemotePlace) {
    let store: &Arc<dyn ObjectStore> = place.client();
    runtime.block_on(async {
        let names: Vec<_> = store.list(None).collect().await;
        for meta in names {
            store.delete(&meta.unwrap().location).await.unwrap();
        }
    });
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// One line: the tier's rounds beside the client's.
fn report(what: &str, ours: &[Took], client: &[Took]) {
    let speed = |took: &[Took]| {
        TOTAL as f64 / (1 << 20) as f64 / median(took.iter().map(|took| took.seconds))
    };
    let cpu =
        |took: &[Took]| median(took.iter().map(|took| took.cpu)) * (1 << 30) as f64 / TOTAL as f64;
    let shares = ours
        .iter()
        .zip(client)
        .map(|(ours, client)| client.seconds / ours.seconds);
    println!(
        "  {what} {:.0}, client {:.0}, {:.2} of it; CPU s / GiB {:.2}, client {:.2}",
        speed(ours),
        speed(client),
        median(shares),
        cpu(ours),
        cpu(client)
    );
}

fn main() {
    let directory = tempfile::tempdir().unwrap();
    let here = format!("file://{}", directory.path().display());
    let given = std::env::var("HYBRID_PAGES_BENCH_REMOTE");
    let place = RemotePlace::of_url(&given.unwrap_or(here)).unwrap();
    let runtime = Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    let first = runtime.block_on(async { place.client().list(None).next().await });
    assert!(
        first.is_none(),
        "expected an empty store, found something in it"
    );
    // As much memory as the tier's slots, so that no side finds it in the processor's caches.
    let object = |from: usize| Bytes::from_iter((0..OBJECT).map(|at| (from + at * 31 / 7) as u8));
    let objects: Vec<Bytes> = (0..TOTAL / OBJECT).map(object).collect();
    println!("MiB/s, medians of {ROUNDS} rounds of {} MiB", TOTAL >> 20);
    for (number, size) in SIZES.into_iter().enumerate() {
        let mut times: [Vec<Took>; 4] = Default::default();
        for round in 0..ROUNDS {
            let number = number * ROUNDS + round;
            let client = || raw(&runtime, &place, number, &objects);
            // Neither always finds the memory that the other has just freed.
            let first = (round % 2 == 1).then(client);
            let mut tier = Tier::open(&place, size, number);
            let ours = [tier.run(true), tier.run(false)];
            drop(tier);
            let client = first.unwrap_or_else(client);
            for (times, took) in times.iter_mut().zip(ours.into_iter().chain(client)) {
                times.push(took);
            }
            remove(&runtime, &place);
        }
        println!("entries of {} KiB", size >> 10);
        let [put, get, raw_put, raw_get] = &times;
        report("put", put, raw_put);
        report("get", get, raw_get);
    }
}
