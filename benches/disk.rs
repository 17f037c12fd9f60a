//! The disk tier against raw O_DIRECT calls by as many threads on the same file system, and the time that opening
//! a store of 100,000 entries takes.
//!
//! Entries have 8 MiB and then 64 KiB, the raw calls 1 MiB, as the tier's largest pieces, and 512 KiB, as what it
//! reads of small entries together. Rounds of all four run in turn, so that shares count on a machine whose speed
//! drifts; the medians are printed. The tier also checks every byte and copies it between its buffers and slots.
//! `HYBRID_PAGES_BENCH_DISK` names the directory to use, if not the system's for temporary files.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, EntryKey, PrefixKey, SlotId};
use hybrid_pages::policy;
use hybrid_pages::tier::{Below, CopyEnd, CopyId};
use hybrid_pages::transfer::checksum;
use hybrid_pages_arena::Arena;
use hybrid_pages_disk::{Disk, DiskOptions};
use memmap2::MmapMut;
use rustix::fs::{Mode, OFlags};

/// Bytes of an entry, and of a raw call.
const SIZES: [(usize, usize); 2] = [(8 << 20, 1 << 20), (64 << 10, 512 << 10)];
/// Bytes that a round writes and reads.
const TOTAL: usize = 256 << 20;
const ROUNDS: usize = 9;
const LIMIT: Duration = Duration::from_secs(300);

struct Tier {
    disk: Disk,
    arena: Arena,
    sums: Vec<u64>,
    copies: u64,
}

impl Tier {
    /// A tier whose entries all have the same bytes.
    fn open(path: &Path, shard: usize, threads: usize) -> (Self, Duration) {
        let segment = Segment::new("kv", Dtype::Uint8, vec![shard]).unwrap();
        let layer = Layer::new("attention", vec![segment]).unwrap();
        let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
        let geometry = Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap();
        let slot = shard.min(2 << 20);
        let arena = Arena::create(&geometry, slot, shard / slot).unwrap();
        let mut bytes = vec![0; shard];
        let mut seed = blake3::Hasher::new();
        seed.update(b"bench").finalize_xof().fill(&mut bytes);
        for (at, part) in bytes.chunks(slot).enumerate() {
            arena.write(SlotId(at as u32), part).unwrap();
        }
        let mut options = DiskOptions::new(path, 64 << 30);
        options.threads = threads;
        options.deadline = LIMIT;
        let shape = policy::EntrySizes {
            page: (shard / slot) as u32,
            window: 0,
            checkpoint: 0,
        };
        let policy = policy::by_name("lru", shape).unwrap();
        let disk = Disk::open(options, &geometry, slot, policy).unwrap();
        let begun = Instant::now();
        disk.handle().connect(&arena, &[1; 32]).unwrap();
        let took = begun.elapsed();
        let tier = Self {
            disk,
            arena,
            sums: vec![checksum(&bytes)],
            copies: 0,
        };
        (tier, took)
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

    /// Starts copies and waits for them all; at most `queue` are under way.
    fn run(&mut self, count: usize, queue: usize, write: bool) -> Duration {
        let slots: Vec<SlotId> = (0..self.arena.slots() as u32).map(SlotId).collect();
        let begun = Instant::now();
        let (mut under_way, mut next, mut ended) = (0, 0, Vec::<CopyEnd>::new());
        while next < count || under_way > 0 {
            while next < count && under_way < queue {
                let key = Self::key(next);
                let copy = CopyId(self.copies);
                self.copies += 1;
                if write {
                    self.disk.write(copy, &key, &slots, &self.sums);
                } else {
                    self.disk.read(copy, &key, &slots);
                }
                next += 1;
                under_way += 1;
            }
            self.disk.poll(&mut ended);
            for end in ended.drain(..) {
                let sums = end.result.expect("a copy");
                assert!(write || sums == self.sums);
                under_way -= 1;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        begun.elapsed()
    }

    fn forget(&mut self, count: usize) {
        (0..count).for_each(|number| self.disk.remove(&Self::key(number)));
    }
}

/// Pieces of one file, by threads that take the next.
fn raw(file: &File, size: usize, threads: usize, write: bool) -> Duration {
    let next = AtomicUsize::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut bytes = MmapMut::map_anon(size).unwrap();
                bytes.fill(7);
                loop {
                    let piece = next.fetch_add(1, Ordering::Relaxed);
                    if piece * size >= TOTAL {
                        break;
                    }
                    let offset = (piece * size) as u64;
                    if write {
                        file.write_all_at(&bytes, offset).unwrap();
                    } else {
                        file.read_exact_at(&mut bytes, offset).unwrap();
                    }
                }
            });
        }
    });
    begun.elapsed()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn speeds(place: &Path, (shard, piece): (usize, usize), threads: usize) {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT;
    let folder = File::open(place).unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::openat(folder.as_fd(), "raw", flags, mode).unwrap();
    let file = File::from(file);
    let entries = TOTAL / shard;
    let (mut tier, _) = Tier::open(&place.join(format!("{shard}-{threads}")), shard, threads);
    let mut rounds: [Vec<f64>; 4] = Default::default();
    let speed = |took: Duration| TOTAL as f64 / took.as_secs_f64() / (1 << 20) as f64;
    for round in 0..=ROUNDS {
        let found = [
            raw(&file, piece, threads, true),
            tier.run(entries, entries, true),
            raw(&file, piece, threads, false),
            tier.run(entries, entries, false),
        ];
        tier.forget(entries);
        // In the first round the file system finds room.
        if round > 0 {
            rounds
                .iter_mut()
                .zip(found)
                .for_each(|(to, took)| to.push(speed(took)));
        }
    }
    for (name, at) in [("write", 0), ("read", 2)] {
        let shares = rounds[at + 1]
            .iter()
            .zip(&rounds[at])
            .map(|(ours, raw)| ours / raw);
        println!(
            "{} KiB, {name}, {threads} threads: {:5.0} MiB/s, raw {:5.0} MiB/s, share {:.2}",
            shard >> 10,
            median(rounds[at + 1].clone()),
            median(rounds[at].clone()),
            median(shares.collect()),
        );
    }
}

fn opening(place: &Path) {
    const COUNT: usize = 100_000;
    let path = place.join("many");
    let (mut tier, _) = Tier::open(&path, 512, 4);
    let took = tier.run(COUNT, 4096, true);
    println!(
        "{COUNT} entries of 8 KiB written in {:.1} s",
        took.as_secs_f64()
    );
    assert!(tier.disk.handle().settle(LIMIT));
    drop(tier);
    let mut times = Vec::new();
    for _ in 0..5 {
        let (tier, took) = Tier::open(&path, 512, 4);
        assert_eq!(tier.disk.handle().stats().entries, COUNT as u64);
        times.push(took.as_secs_f64());
    }
    println!("opening {COUNT} entries: {:.3} s", median(times));
}

fn main() {
    let place = std::env::var_os("HYBRID_PAGES_BENCH_DISK");
    let place = place.map_or_else(std::env::temp_dir, PathBuf::from);
    let place = tempfile::tempdir_in(place).unwrap();
    for (size, threads) in [(0, 1), (0, 4), (0, 8), (1, 4), (1, 8)] {
        speeds(place.path(), SIZES[size], threads);
    }
    opening(place.path());
}
