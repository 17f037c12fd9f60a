//! What encryption costs beside the pass that copies and hashes: a shard of 1 MiB, and one of 64 KiB, on one thread.
//!
//! Rounds of all run in turn, so that a machine whose speed drifts slows all of them; medians are printed.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use hybrid_pages::ids::{EntryKey, PrefixKey};
use hybrid_pages::transfer::{TILE_BYTES, Tile};
use hybrid_pages_tiers::{EncryptKeys, SEAL_BYTES, SealedPlace, Seals, sealed_bytes};

const ROUNDS: usize = 201;
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn main() {
    for shard in [1 << 20, 64 << 10] {
        round(shard);
    }
    names();
}

fn round(shard: usize) {
    let seals = Seals::new(Some(EncryptKeys::parse(KEY).expect("a sound key")));
    let seal = seals.entry(&key(0)).1.expect("there are keys");
    let at = SealedPlace {
        identity: &[1; 32],
        place: [1, 0, 0, 0],
        shard_bytes: shard,
        sums: &[7],
    };
    let from: Vec<u8> = (0..shard).map(|at| (at * 7 / 3) as u8).collect();
    let mut to = vec![0; sealed_bytes(shard, SEAL_BYTES)];
    let [mut pass, mut sealing, mut opening] = [(); 3].map(|()| Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        pass.push(timed(|| copy(&from, &mut to)));
        sealing.push(timed(|| {
            let lot = seal.lot().expect("the system has random numbers");
            lot.seal(&at, 0, 0, &mut to).expect("there is room");
        }));
        opening.push(timed(|| assert!(seal.open(&at, 0, 0, &mut to))));
    }
    let speed = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        shard as f64 / times[ROUNDS / 2] / 1e9
    };
    println!(
        "{:>5} KiB: copy and checksum {:.1} GB/s, seal {:.1} GB/s, open {:.1} GB/s",
        shard >> 10,
        speed(&mut pass),
        speed(&mut sealing),
        speed(&mut opening)
    );
}

/// Copies a shard to tiles with room for seals, and hashes it, as a write to a tier does.
fn copy(from: &[u8], to: &mut [u8]) {
    let tiles = to.chunks_mut(TILE_BYTES + SEAL_BYTES);
    for (from, to) in from.chunks(TILE_BYTES).zip(tiles) {
        let mut tile = Tile::through_caches();
        // SAFETY: both are memory of their own, and the second has at least as many bytes.
        unsafe { tile.pass(from.as_ptr(), to.as_mut_ptr(), from.len()) };
        black_box(tile.digest());
    }
}

/// The name of an entry, which lookups compute for each block.
fn names() {
    let sealed = Seals::new(Some(EncryptKeys::parse(KEY).expect("a sound key")));
    for (what, seals) in [("plain", Seals::default()), ("encrypted", sealed)] {
        let took = timed(|| {
            for block in 0..10_000 {
                black_box(seals.name_of(&key(block)));
            }
        });
        println!("a name, {what}: {:.0} ns", took * 1e5);
    }
}

fn key(block_index: usize) -> EntryKey {
    EntryKey {
        namespace: Arc::from(&b"engine"[..]),
        prefix: PrefixKey::new(&[3; 32]).expect("32 bytes are a key"),
        block_index,
        class_index: 0,
    }
}

fn timed(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}
