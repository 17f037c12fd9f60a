//! A layer's map, and the simplest engine over an arena.
#![allow(dead_code, reason = "each test uses a part")]

use std::sync::Arc;

use super::transfer_support::{Dice, Memory, geometry};
use hybrid_pages::error::{Error, Result};
use hybrid_pages::ids::ClassKind;
use hybrid_pages::transfer::{ByteRun, HostEngine, LayerMap, Region, TransferLayout};
use hybrid_pages_arena::Arena;

pub fn map(
    group: usize,
    layer: usize,
    region: Region,
    stride: usize,
    runs: &[(usize, usize)],
) -> LayerMap {
    let runs = runs
        .iter()
        .map(|&(offset, length)| ByteRun { offset, length })
        .collect();
    LayerMap {
        group,
        layer,
        region,
        block_stride: stride,
        runs,
        tokens: None,
    }
}

/// One attention layer of `bytes`, blocks back to back, and an arena for it.
pub struct Plain {
    pub engine: HostEngine,
    pub arena: Arc<Arena>,
    pub memory: Memory,
}

impl Plain {
    pub const BLOCKS: usize = 4;

    pub fn new(bytes: usize, slot_bytes: usize, slots: usize, threads: usize) -> Self {
        let geometry = geometry(&[(ClassKind::Attention, &[bytes])], 1);
        let memory = Memory::new(Dice::new(7).bytes(bytes * Self::BLOCKS));
        let maps = [map(0, 0, memory.region(), bytes, &[(0, bytes)])];
        let arena = Arc::new(Arena::create(&geometry, slot_bytes, slots).unwrap());
        let layout = TransferLayout::new(geometry, 0, &[Self::BLOCKS], &maps).unwrap();
        let engine = HostEngine::new(layout, arena.memory(0).unwrap(), threads).unwrap();
        Self {
            engine,
            arena,
            memory,
        }
    }
}

pub fn geometry_error<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::Geometry(why)) => why.to_string(),
        other => panic!("expected a geometry error, found {other:?}"),
    }
}

pub fn argument_error<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::InvalidArgument(why)) => why,
        other => panic!("expected an invalid argument, found {other:?}"),
    }
}
