//! Random layouts and entries, for the tests of transfers.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;

use hybrid_pages::geometry::{Geometry, PageClass};
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::tier::Arena;
use hybrid_pages::transfer::{
    Direction, Engine, EntryCopy, LayerMap, Layout, Region, Run, SlotMemory, checksum,
};

use super::transfer_support::{Dice, Memory, entry, expecting, geometry, run};

/// One rank's memory and where its layers lie in it; kept apart from what the engine sees.
pub struct Rank {
    pub memory: Memory,
    pub maps: Vec<LayerMap>,
    /// Where each map's block 0 starts in the memory.
    bases: Vec<usize>,
}

impl Rank {
    /// Layers in runs of any split and order, with padding anywhere; groups overlaid from the
    /// first byte on, or each layer in a place of its own.
    pub fn random(
        dice: &mut Dice,
        geometry: &Geometry,
        blocks: usize,
        overlaid: bool,
        memory: impl Fn(Vec<u8>) -> Memory,
    ) -> Self {
        let mut placed = Vec::new();
        let mut stride = 0;
        for (group, layers) in geometry.groups().iter().enumerate() {
            let mut at = 0;
            for (layer, bytes) in layers.layers().iter().map(|l| l.bytes()).enumerate() {
                let (runs, end) = random_runs(dice, bytes, if overlaid { at } else { 0 });
                stride = stride.max(end);
                at = end;
                placed.push((group, layer, runs));
            }
        }
        stride += dice.roll(9);
        let place = stride * blocks;
        let places = if overlaid { 1 } else { placed.len() };
        let memory = memory(dice.bytes(place * places));
        let whole = memory.region();
        let mut maps = Vec::new();
        let mut bases = Vec::new();
        for (index, (group, layer, runs)) in placed.into_iter().enumerate() {
            let base = if overlaid { 0 } else { index * place };
            let address = whole.address().as_ptr().wrapping_add(base);
            // SAFETY: the place lies inside the memory, which outlives the engine.
            let region = unsafe { Region::new(address, place).unwrap() };
            maps.push(LayerMap {
                group,
                layer,
                region,
                block_stride: stride,
                runs,
            });
            bases.push(base);
        }
        Self {
            memory,
            maps,
            bases,
        }
    }

    pub fn layout(&self, geometry: &Arc<Geometry>, rank: usize, blocks: usize) -> Layout {
        Layout::new(Arc::clone(geometry), rank, blocks, &self.maps).unwrap()
    }

    /// Where each byte of this rank's shard of an entry lies in the memory.
    pub fn places(&self, class: &PageClass, blocks: &[usize]) -> Vec<usize> {
        let mut places = Vec::new();
        for (group, block) in class.groups.iter().zip(blocks) {
            for (map, base) in self
                .maps
                .iter()
                .zip(&self.bases)
                .filter(|(m, _)| m.group == *group)
            {
                for run in &map.runs {
                    let start = base + block * map.block_stride + run.offset;
                    places.extend(start..start + run.length);
                }
            }
        }
        places
    }
}

fn random_runs(dice: &mut Dice, bytes: usize, from: usize) -> (Vec<Run>, usize) {
    let mut lengths = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let length = 1 + dice.roll(left);
        lengths.push(length);
        left -= length;
    }
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    if dice.roll(2) == 0 {
        dice.shuffle(&mut order);
    }
    let mut runs = vec![
        Run {
            offset: 0,
            length: 0
        };
        lengths.len()
    ];
    let mut at = from;
    for index in order {
        at += if dice.roll(2) == 0 { 0 } else { dice.roll(5) };
        runs[index] = Run {
            offset: at,
            length: lengths[index],
        };
        at += lengths[index];
    }
    (runs, at)
}

/// Distinct slots for each entry, in any order, and blocks that no two entries share.
pub fn random_entries(
    dice: &mut Dice,
    geometry: &Geometry,
    arena: &Arena,
    classes: &[usize],
) -> Vec<EntryCopy> {
    let mut slots: Vec<u32> = (0..arena.slots() as u32).collect();
    if dice.roll(4) > 0 {
        dice.shuffle(&mut slots);
    }
    let mut slots = slots.into_iter();
    let entries = classes.iter().map(|&class| {
        let count = geometry.slots_per_entry(class, arena.slot_bytes()).unwrap();
        let slots: Vec<u32> = slots.by_ref().take(count).collect();
        entry(class, &slots, &[])
    });
    let mut entries: Vec<_> = entries.collect();
    place(dice, geometry, &mut entries);
    entries
}

pub fn place(dice: &mut Dice, geometry: &Geometry, entries: &mut [EntryCopy]) {
    let mut blocks: Vec<usize> = (0..blocks_needed(geometry, entries.len())).collect();
    dice.shuffle(&mut blocks);
    for entry in entries {
        let groups = geometry.classes()[entry.class].groups.len();
        entry.blocks = blocks.split_off(blocks.len() - groups);
    }
}

pub fn blocks_needed(geometry: &Geometry, entries: usize) -> usize {
    (entries * geometry.groups().len()).max(1)
}

pub fn contents(arena: &Arena) -> Vec<u8> {
    (0..arena.slots() as u32)
        .flat_map(|slot| arena.read(SlotId(slot)).unwrap())
        .collect()
}

/// What is moved, and from where to where.
#[derive(Debug, Clone)]
pub struct Case {
    pub groups: Vec<(ClassKind, Vec<usize>)>,
    pub ranks: usize,
    pub slot_bytes: usize,
    pub entries: usize,
    pub overlaid: bool,
    pub seed: u64,
}

/// Stores and loads a case on every rank, against a model that moves one byte at a time.
pub fn check<E: Engine>(
    case: &Case,
    memory: impl Fn(Vec<u8>) -> Memory + Copy,
    engine: impl Fn(Layout, SlotMemory) -> E,
) {
    let mut dice = Dice::new(case.seed);
    let groups: Vec<_> = case
        .groups
        .iter()
        .map(|(kind, layers)| (*kind, layers.as_slice()))
        .collect();
    let geometry = geometry(&groups, case.ranks);
    let classes: Vec<usize> = (0..case.entries)
        .map(|_| dice.roll(geometry.classes().len()))
        .collect();
    let needed = |class: &usize| geometry.slots_per_entry(*class, case.slot_bytes).unwrap();
    let slots = classes.iter().map(needed).sum::<usize>() + 1 + dice.roll(3);
    let arena = Arc::new(Arena::create(&geometry, case.slot_bytes, slots).unwrap());
    for slot in 0..slots as u32 {
        arena
            .write(SlotId(slot), &dice.bytes(case.slot_bytes))
            .unwrap();
    }
    let mut expected = contents(&arena);
    let entries = random_entries(&mut dice, &geometry, &arena, &classes);
    let blocks = blocks_needed(&geometry, case.entries);
    let in_arena = |entry: &EntryCopy, rank: usize, index: usize| {
        let at = rank * geometry.classes()[entry.class].rank_bytes + index;
        entry.slots[at / case.slot_bytes].0 as usize * case.slot_bytes + at % case.slot_bytes
    };

    let start = |of: &Rank, rank| engine(of.layout(&geometry, rank, blocks), arena.memory());

    let mut sums = Vec::new();
    for rank in 0..case.ranks {
        let from = Rank::random(&mut dice, &geometry, blocks, case.overlaid, memory);
        let before = from.memory.bytes();
        let engine = start(&from, rank);
        let stored = run(&engine, Direction::Store, entries.clone());
        assert_eq!(stored.error, None);
        let mut parts = Vec::new();
        for entry in &entries {
            let places = from.places(&geometry.classes()[entry.class], &entry.blocks);
            let part: Vec<u8> = places.iter().map(|place| before[*place]).collect();
            for (index, byte) in part.iter().enumerate() {
                expected[in_arena(entry, rank, index)] = *byte;
            }
            parts.push(checksum(&part));
        }
        assert_eq!(stored.checksums, parts);
        assert_eq!(
            from.memory.bytes(),
            before,
            "a store only reads the engine's memory"
        );
        sums.push(parts);
    }
    assert_eq!(contents(&arena), expected);

    for (rank, sums) in sums.iter().enumerate() {
        let to = Rank::random(&mut dice, &geometry, blocks, case.overlaid, memory);
        let mut wanted_bytes = to.memory.bytes();
        let mut wanted = entries.clone();
        place(&mut dice, &geometry, &mut wanted);
        for entry in &wanted {
            let places = to.places(&geometry.classes()[entry.class], &entry.blocks);
            for (index, place) in places.into_iter().enumerate() {
                wanted_bytes[place] = expected[in_arena(entry, rank, index)];
            }
        }
        let verify = wanted.iter().cloned().zip(sums).map(|(entry, sum)| {
            if dice.roll(2) == 0 {
                entry
            } else {
                expecting(entry, *sum)
            }
        });
        let verify = verify.collect();
        let engine = start(&to, rank);
        let loaded = run(&engine, Direction::Load, verify);
        assert_eq!(loaded.error, None);
        assert!(
            to.memory.bytes() == wanted_bytes,
            "a load writes its blocks and nothing else"
        );
        drop(engine);
    }
    assert_eq!(contents(&arena), expected, "a load only reads the arena");
}
