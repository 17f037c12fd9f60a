//! Random layouts and entries, for the tests of transfers.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::HashSet;
use std::sync::Arc;

use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::transfer::{
    ByteRun, Direction, Engine, EntryCopy, LayerMap, Region, SlotMemory, TransferLayout, checksum,
};
use hybrid_pages_arena::Arena;

use super::transfer_support::{Dice, Memory, entry, expecting, geometry_in, run};
use super::transfer_tokens::Tokens;

/// One rank's memory and where its layers lie in it; kept apart from what the engine sees.
pub struct Rank {
    pub memory: Memory,
    pub maps: Vec<LayerMap>,
    /// Where each map's block 0 starts in the memory.
    bases: Vec<usize>,
}

impl Rank {
    /// Layers in runs of any split and order, with padding anywhere; groups overlaid from the
    /// first byte on, or each layer in a place of its own, with strides and as many `blocks` as its group has. Layers
    /// that are `elsewhere`, by group and index, have no runs.
    pub fn random(
        dice: &mut Dice,
        geometry: &Geometry,
        blocks: &[usize],
        tokens: &Tokens,
        elsewhere: &HashSet<(usize, usize)>,
        overlaid: bool,
        memory: impl Fn(Vec<u8>) -> Memory,
    ) -> Self {
        let mut placed = Vec::new();
        let mut strides = vec![0; geometry.groups().len()];
        for (group, layers) in geometry.groups().iter().enumerate() {
            let mut at = 0;
            for (layer, bytes) in layers.layers().iter().map(|l| l.bytes()).enumerate() {
                let (runs, end) = random_runs(dice, bytes, if overlaid { at } else { 0 });
                strides[group] = strides[group].max(end);
                at = end;
                placed.push((group, layer, runs));
            }
        }
        for stride in &mut strides {
            *stride += dice.roll(9);
        }
        if overlaid {
            let widest = strides.iter().copied().max().unwrap();
            strides.fill(widest);
        }
        let sizes: Vec<usize> = std::iter::zip(&strides, blocks)
            .map(|(s, b)| s * b)
            .collect();
        let whole_size = if overlaid {
            sizes.iter().copied().max().unwrap()
        } else {
            placed.iter().map(|(group, ..)| sizes[*group]).sum()
        };
        let memory = memory(dice.bytes(whole_size));
        let whole = memory.region();
        let mut maps = Vec::new();
        let mut bases = Vec::new();
        let mut base = 0;
        for (group, layer, runs) in placed {
            let address = whole.address().as_ptr().wrapping_add(base);
            // SAFETY: the place lies inside the memory, which outlives the engine.
            let region = unsafe { Region::new(address, sizes[group]).unwrap() };
            maps.push(LayerMap {
                group,
                layer,
                region,
                block_stride: strides[group],
                runs: if elsewhere.contains(&(group, layer)) {
                    Vec::new()
                } else {
                    runs
                },
                tokens: tokens
                    .of(group, layer)
                    .filter(|_| !elsewhere.contains(&(group, layer))),
            });
            bases.push(base);
            base += if overlaid { 0 } else { sizes[group] };
        }
        Self {
            memory,
            maps,
            bases,
        }
    }

    pub fn layout(
        &self,
        geometry: &Arc<Geometry>,
        rank: usize,
        blocks: &[usize],
    ) -> TransferLayout {
        TransferLayout::new(Arc::clone(geometry), rank, blocks, &self.maps).unwrap()
    }

    /// Where each byte of this rank's shard of an entry lies in the memory, if its layer is here and its block is not
    /// left out.
    pub fn places(
        &self,
        geometry: &Geometry,
        class: usize,
        blocks: &[Option<usize>],
    ) -> Vec<Option<usize>> {
        let mut places = Vec::new();
        for (group, block) in groups_of_blocks(geometry, class).zip(blocks) {
            for (map, base) in self
                .maps
                .iter()
                .zip(&self.bases)
                .filter(|(m, _)| m.group == group)
            {
                if map.runs.is_empty() {
                    let layer = &geometry.groups()[group].layers()[map.layer];
                    places.resize(places.len() + layer.bytes(), None);
                }
                for run in &map.runs {
                    let start = block.map(|block| base + block * map.block_stride + run.offset);
                    places.extend((0..run.length).map(|byte| Some(start? + byte)));
                }
            }
        }
        places
    }
}

/// Of each block id of an entry: the group that it is of.
fn groups_of_blocks(geometry: &Geometry, class: usize) -> impl Iterator<Item = usize> + '_ {
    let of = |&group: &usize| vec![group; geometry.groups()[group].blocks_per_entry()];
    geometry.classes()[class].groups.iter().flat_map(of)
}

fn random_runs(dice: &mut Dice, bytes: usize, from: usize) -> (Vec<ByteRun>, usize) {
    // One run, or equal ones at equal distances: a CUDA engine folds what repeats.
    let count = 1 + dice.roll(6);
    if bytes.is_multiple_of(count) && dice.roll(2) == 0 {
        let length = bytes / count;
        let distance = length + dice.roll(3);
        let runs = (0..count).map(|index| ByteRun {
            offset: from + index * distance,
            length,
        });
        return (runs.collect(), from + count * distance);
    }
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
        ByteRun {
            offset: 0,
            length: 0
        };
        lengths.len()
    ];
    let mut at = from;
    for index in order {
        at += if dice.roll(2) == 0 { 0 } else { dice.roll(5) };
        runs[index] = ByteRun {
            offset: at,
            length: lengths[index],
        };
        at += lengths[index];
    }
    (runs, at)
}

/// Distinct slots for each entry, in any order.
fn random_entries(
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
    entries.collect()
}

/// Gives entries blocks that no two of them share: of a group or, where groups are overlaid, at all.
fn place(
    dice: &mut Dice,
    geometry: &Geometry,
    blocks: &[usize],
    overlaid: bool,
    entries: &mut [EntryCopy],
) {
    let mut shuffled = |end: usize| {
        let mut ids: Vec<usize> = (0..end).collect();
        dice.shuffle(&mut ids);
        ids
    };
    let mut free: Vec<Vec<usize>> = if overlaid {
        vec![shuffled(blocks.iter().copied().min().unwrap())]
    } else {
        blocks.iter().map(|&end| shuffled(end)).collect()
    };
    for entry in entries {
        let ids = groups_of_blocks(geometry, entry.class)
            .map(|group| free[if overlaid { 0 } else { group }].pop());
        entry.blocks = ids.collect();
    }
}

/// Gives some of the pages fewer tokens than a block has. Blocks without tokens may be missing.
fn cut_short(dice: &mut Dice, geometry: &Geometry, tokens: &Tokens, entries: &mut [EntryCopy]) {
    for entry in entries {
        let most = geometry.block_tokens() - 1;
        if most == 0 || !tokens.all_known(geometry, entry.class) || dice.roll(3) == 0 {
            continue;
        }
        let left = 1 + dice.roll(most);
        entry.tokens = Some(left);
        let mut blocks = entry.blocks.iter_mut();
        for &group in &geometry.classes()[entry.class].groups {
            let count = geometry.groups()[group].blocks_per_entry();
            let each = geometry.block_tokens() / count;
            for (index, block) in blocks.by_ref().take(count).enumerate() {
                if index * each >= left && dice.roll(2) == 0 {
                    *block = None;
                }
            }
        }
    }
}

/// How many blocks each group has: enough for so many entries of any class, and no two groups the same.
fn random_blocks(
    dice: &mut Dice,
    geometry: &Geometry,
    overlaid: bool,
    entries: usize,
) -> Vec<usize> {
    let groups = geometry.groups().iter();
    let needed = groups.map(|group| group.blocks_per_entry() * entries.max(1));
    let needed: Vec<usize> = needed.collect();
    let all: usize = needed.iter().sum();
    let mut more: Vec<usize> = (0..needed.len()).collect();
    dice.shuffle(&mut more);
    let counts = std::iter::zip(needed, more);
    counts
        .map(|(needed, more)| if overlaid { all } else { needed } + more)
        .collect()
}

/// Of each rank, the layers that it does not have. Mostly none, else any number, all of them included.
fn random_split(
    dice: &mut Dice,
    geometry: &Geometry,
    ranks: usize,
) -> Vec<HashSet<(usize, usize)>> {
    let groups = geometry.groups().iter().enumerate();
    let layers = groups.flat_map(|(group, of)| (0..of.layers().len()).map(move |i| (group, i)));
    let layers: Vec<_> = layers.collect();
    let mut of_rank = || {
        let missing = dice.roll(4).saturating_sub(1);
        let of_all = layers.iter().copied();
        of_all.filter(|_| dice.roll(3) < missing).collect()
    };
    (0..ranks).map(|_| of_rank()).collect()
}

pub fn contents(arena: &Arena) -> Vec<u8> {
    (0..arena.slots() as u32)
        .flat_map(|slot| arena.read(SlotId(slot)).unwrap())
        .collect()
}

/// A random transfer: what is moved, and from where to where.
#[derive(Debug, Clone)]
pub struct Case {
    /// Kind, bytes of the layers, blocks per entry.
    pub groups: Vec<(ClassKind, Vec<usize>, usize)>,
    pub block_tokens: usize,
    pub ranks: usize,
    /// In each rank's plane.
    pub rank_slot_bytes: usize,
    pub entries: usize,
    pub overlaid: bool,
    pub seed: u64,
}

/// Stores and loads a case on every rank, against a model that moves one byte at a time. Where a page has not all of
/// its tokens, the engine's blocks hold other bytes behind them, of which the model has none. Returns how many such
/// pages there were.
pub fn check<E: Engine>(
    case: &Case,
    memory: impl Fn(Vec<u8>) -> Memory + Copy,
    engine: impl Fn(TransferLayout, SlotMemory) -> E,
) -> usize {
    let mut dice = Dice::new(case.seed);
    let groups: Vec<_> = case
        .groups
        .iter()
        .map(|(kind, layers, blocks_per_entry)| (*kind, layers.as_slice(), *blocks_per_entry))
        .collect();
    let geometry = geometry_in(case.block_tokens, &groups, case.ranks);
    let tokens = Tokens::random(&mut dice, &geometry);
    let classes: Vec<usize> = (0..case.entries)
        .map(|_| dice.roll(geometry.classes().len()))
        .collect();
    let slot_bytes = case.rank_slot_bytes * case.ranks;
    let needed = |class: &usize| geometry.slots_per_entry(*class, slot_bytes).unwrap();
    let slots = classes.iter().map(needed).sum::<usize>() + 1 + dice.roll(3);
    let arena = Arc::new(Arena::create(&geometry, slot_bytes, slots).unwrap());
    for slot in 0..slots as u32 {
        arena.write(SlotId(slot), &dice.bytes(slot_bytes)).unwrap();
    }
    let mut expected = contents(&arena);
    let blocks = random_blocks(&mut dice, &geometry, case.overlaid, case.entries);
    let mut entries = random_entries(&mut dice, &geometry, &arena, &classes);
    place(&mut dice, &geometry, &blocks, case.overlaid, &mut entries);
    cut_short(&mut dice, &geometry, &tokens, &mut entries);
    let elsewhere = random_split(&mut dice, &geometry, case.ranks);
    let in_arena = |entry: &EntryCopy, rank: usize, index: usize| {
        let part = case.rank_slot_bytes;
        entry.slots[index / part].0 as usize * slot_bytes + rank * part + index % part
    };

    let start = |of: &Rank, rank| {
        engine(
            of.layout(&geometry, rank, &blocks),
            arena.memory(rank).unwrap(),
        )
    };

    let mut sums = Vec::new();
    for rank in 0..case.ranks {
        let from = Rank::random(
            &mut dice,
            &geometry,
            &blocks,
            &tokens,
            &elsewhere[rank],
            case.overlaid,
            memory,
        );
        let before = from.memory.bytes();
        let engine = start(&from, rank);
        let stored = run(&engine, Direction::Store, entries.clone());
        assert_eq!(stored.error, None);
        let (mut shard_sums, mut moved) = (Vec::new(), 0);
        for entry in &entries {
            let places = from.places(&geometry, entry.class, &entry.blocks);
            let mut shard = vec![0; places.len()];
            let left = entry.tokens.unwrap_or(usize::MAX);
            let of_bytes = match entry.tokens {
                Some(_) => tokens.of_bytes(&geometry, entry.class),
                None => vec![0; places.len()],
            };
            let here = places.iter().enumerate();
            let here = here.filter_map(|(index, place)| Some((index, (*place)?)));
            for (index, place) in here.filter(|(index, _)| of_bytes[*index] < left) {
                shard[index] = before[place];
                moved += 1;
            }
            for (index, byte) in shard.iter().enumerate() {
                expected[in_arena(entry, rank, index)] = *byte;
            }
            shard_sums.push(checksum(&shard));
        }
        assert_eq!((&stored.checksums, stored.bytes), (&shard_sums, moved));
        assert_eq!(
            from.memory.bytes(),
            before,
            "a store only reads the engine's memory"
        );
        sums.push(shard_sums);
    }
    assert_eq!(contents(&arena), expected);

    for (rank, sums) in sums.iter().enumerate() {
        let to = Rank::random(
            &mut dice,
            &geometry,
            &blocks,
            &tokens,
            &elsewhere[rank],
            case.overlaid,
            memory,
        );
        let mut wanted_bytes = to.memory.bytes();
        let mut moved = 0;
        let mut wanted = entries.clone();
        wanted.iter_mut().for_each(|entry| entry.tokens = None);
        place(&mut dice, &geometry, &blocks, case.overlaid, &mut wanted);
        if dice.roll(2) == 0 {
            let targets = wanted.iter_mut().flat_map(|entry| &mut entry.blocks);
            targets.for_each(|block| *block = block.filter(|_| dice.roll(4) > 0));
        }
        for entry in &wanted {
            let places = to.places(&geometry, entry.class, &entry.blocks);
            let places = places.into_iter().enumerate();
            for (index, place) in places.filter_map(|(index, place)| Some((index, place?))) {
                moved += 1;
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
        assert_eq!((loaded.error, loaded.bytes), (None, moved));
        assert!(
            to.memory.bytes() == wanted_bytes,
            "a load writes its blocks and nothing else"
        );
        drop(engine);
    }
    assert_eq!(contents(&arena), expected, "a load only reads the arena");
    entries
        .iter()
        .filter(|entry| entry.tokens.is_some())
        .count()
}
