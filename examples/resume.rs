//! The core from Rust: which prefixes are there, and which slots of an arena hold them.
//!
//!     cargo run --example resume
//!
//! A first prompt stores its pages and one checkpoint. A second prompt, which starts with the same
//! blocks, finds both and reads them back. A third one ends inside the prefix: it has pages, and no
//! state to resume from.

use std::collections::BTreeMap;
use std::error::Error;

use hybrid_pages::cache::{Cache, CacheConfig, ClassConfig};
use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, PrefixKey};
use hybrid_pages::transfer::checksum;
use hybrid_pages_arena::Arena;

const SLOT_BYTES: usize = 512;
const SLOTS: usize = 64;
/// The order of a geometry's classes: attention first, recurrent last.
const ATTENTION: usize = 0;
const RECURRENT: usize = 1;

fn main() -> Result<(), Box<dyn Error>> {
    // What the bytes are made of: a page of 2 x 16 x 8 numbers, a state of 32.
    let layer = |name: &str, dtype, shape: &[usize]| {
        Layer::new(name, vec![Segment::new("bytes", dtype, shape.to_vec())?])
    };
    let attention = vec![layer("0", Dtype::Bfloat16, &[2, 16, 8])?];
    let recurrent = vec![layer("1", Dtype::Float32, &[32])?];
    let groups = vec![
        Group::new(ClassKind::Attention, attention, None)?,
        Group::new(ClassKind::Recurrent, recurrent, None)?,
    ];
    let geometry = Geometry::new(16, groups, 1, BTreeMap::new())?;
    let arena = Arena::create(&geometry, SLOT_BYTES, SLOTS)?;
    let classes = [ClassKind::Attention, ClassKind::Recurrent];
    let classes = classes.iter().enumerate().map(|(index, &kind)| {
        let slots_per_entry = geometry.slots_per_entry(index, SLOT_BYTES)?;
        Ok(ClassConfig {
            kind,
            window_blocks: 0,
            slots_per_entry,
        })
    });
    let cache = Cache::new(&CacheConfig {
        classes: classes.collect::<Result<_, hybrid_pages::error::Error>>()?,
        ranks: 1,
        slots: SLOTS,
        slot_bytes: SLOT_BYTES,
        policy: "reuse".into(),
        tenant_slots: None,
    })?;
    let namespace = cache.namespace(b"")?;

    // The first prompt: three blocks and the state after the last one.
    let prompt = keys(&["system", "tools", "question"])?;
    let wanted = [
        (ATTENTION, 0),
        (ATTENTION, 1),
        (ATTENTION, 2),
        (RECURRENT, 2),
    ];
    let mut lease = cache.reserve(namespace, &prompt, &wanted)?;
    let mut checksums = Vec::new();
    for entry in lease.entries() {
        let bytes = payload(entry.class_index, entry.block_index);
        for (slot, part) in entry.slots.iter().zip(bytes.chunks(SLOT_BYTES)) {
            arena.write(*slot, part)?;
        }
        checksums.push([checksum(&bytes)]);
    }
    lease.commit(&checksums)?;

    // A second prompt goes on from there.
    let longer = keys(&["system", "tools", "question", "answer"])?;
    let found = cache.acquire(namespace, &longer, 0)?.ok_or("no hit")?;
    for entry in found.entries() {
        let slots = entry.slots.iter().map(|slot| arena.read(*slot));
        let mut bytes = slots.collect::<Result<Vec<_>, _>>()?.concat();
        bytes.truncate(payload(entry.class_index, entry.block_index).len());
        assert_eq!(checksum(&bytes), entry.checksums[0]);
    }
    println!("the second prompt resumes after {} blocks", found.blocks());
    assert_eq!(found.blocks(), 3);

    // A third one ends where no state was stored.
    let hit = cache.lookup(namespace, &longer[..2])?;
    println!(
        "the third has pages of {} blocks, and resumes after {}",
        hit.pages, hit.blocks
    );
    assert_eq!((hit.pages, hit.blocks), (2, 0));
    Ok(())
}

/// A key per block: a hash of everything up to its end. An engine uses a cryptographic one.
fn keys(blocks: &[&str]) -> hybrid_pages::error::Result<Vec<PrefixKey>> {
    let prefixes = (1..=blocks.len()).map(|end| blocks[..end].join("\0"));
    prefixes
        .map(|prefix| PrefixKey::new(&checksum(prefix.as_bytes()).to_le_bytes()))
        .collect()
}

/// The bytes that the engine would have for an entry.
fn payload(class: usize, block: usize) -> Vec<u8> {
    let length = if class == ATTENTION { 512 } else { 128 };
    vec![(16 * class + block) as u8; length]
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_example_runs() {
        super::main().unwrap();
    }
}
