//! Memory, geometries and waiting, for the tests of transfers.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::transfer::{Completion, Direction, Engine, EntryCopy, Region};

/// Engine memory: an allocation that is only ever reached through its address.
pub struct Memory {
    address: *mut u8,
    nbytes: usize,
    free: Box<dyn Fn(*mut u8, usize)>,
}

// SAFETY: the allocation belongs to no thread, and neither do the ways to free it.
unsafe impl Send for Memory {}
// SAFETY: the tests read and write it only while no transfer does.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(bytes: Vec<u8>) -> Self {
        let nbytes = bytes.len();
        let address = Box::into_raw(bytes.into_boxed_slice()).cast();
        let free = |address, nbytes| {
            let bytes = std::ptr::slice_from_raw_parts_mut(address, nbytes);
            // SAFETY: it came from a box of this length and is given back once.
            drop(unsafe { Box::from_raw(bytes) });
        };
        // SAFETY: the box is nobody else's.
        unsafe { Self::at(address, nbytes, free) }
    }

    /// # Safety
    /// The bytes stay there, for this memory alone, until it frees them.
    pub unsafe fn at(
        address: *mut u8,
        nbytes: usize,
        free: impl Fn(*mut u8, usize) + 'static,
    ) -> Self {
        Self {
            address,
            nbytes,
            free: Box::new(free),
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.nbytes];
        // SAFETY: both are `nbytes` long, and no transfer is running.
        unsafe {
            self.address
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), self.nbytes)
        };
        bytes
    }

    pub fn region(&self) -> Region {
        // SAFETY: the tests drop their engines before their memory.
        unsafe { Region::new(self.address, self.nbytes).unwrap() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        (self.free)(self.address, self.nbytes);
    }
}

/// Numbers that look random and are the same every time.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.roll(256) as u8).collect()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.roll(i + 1));
        }
    }
}

/// Groups by kind and the bytes of their layers.
pub fn geometry(groups: &[(ClassKind, &[usize])], ranks: usize) -> Arc<Geometry> {
    let groups = groups.iter().map(|&(kind, layers)| (kind, layers, 1));
    geometry_of(&groups.collect::<Vec<_>>(), ranks)
}

/// Groups by kind, the bytes of their layers in a block, and the blocks of an entry.
pub fn geometry_of(groups: &[(ClassKind, &[usize], usize)], ranks: usize) -> Arc<Geometry> {
    geometry_in(16, groups, ranks)
}

/// A [`geometry_of`] groups with so many tokens in a block.
pub fn geometry_in(
    block_tokens: usize,
    groups: &[(ClassKind, &[usize], usize)],
    ranks: usize,
) -> Arc<Geometry> {
    let layer = |name: String, bytes: usize| {
        let segment = Segment::new("data", Dtype::Uint8, vec![bytes]).unwrap();
        Layer::new(name, vec![segment]).unwrap()
    };
    let groups = groups.iter().enumerate();
    let groups = groups.map(|(group, (kind, layers, blocks_per_entry))| {
        let layers = layers.iter().enumerate();
        let layers = layers
            .map(|(i, bytes)| layer(format!("{group}.{i}"), *bytes))
            .collect();
        let window_tokens = (*kind == ClassKind::Window).then_some(8);
        Group::new(*kind, layers, window_tokens)
            .and_then(|group| group.with_blocks_per_entry(*blocks_per_entry))
            .unwrap()
    });
    let groups = groups.collect();
    Arc::new(Geometry::new(block_tokens, groups, ranks, BTreeMap::new()).unwrap())
}

pub fn entry(class: usize, slots: &[u32], blocks: &[usize]) -> EntryCopy {
    let slots = slots.iter().copied().map(SlotId).collect();
    EntryCopy {
        class,
        slots,
        blocks: blocks.iter().copied().map(Some).collect(),
        checksum: None,
        tokens: None,
    }
}

pub fn expecting(entry: EntryCopy, checksum: u64) -> EntryCopy {
    EntryCopy {
        checksum: Some(checksum),
        ..entry
    }
}

/// Submits, waits, and returns the one completion.
pub fn run(engine: &impl Engine, direction: Direction, entries: Vec<EntryCopy>) -> Completion {
    let ticket = engine.submit(direction, entries).unwrap();
    assert!(engine.wait(ticket, None).unwrap());
    let mut completions = engine.poll();
    assert_eq!(completions.len(), 1);
    let completion = completions.remove(0);
    assert_eq!(completion.ticket, ticket);
    completion
}
