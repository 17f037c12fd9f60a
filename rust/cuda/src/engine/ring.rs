//! The staging ring of one direction: places on the device between a kernel and the copy engine.

use std::sync::Arc;

use hybrid_pages::transfer::TILE_BYTES;

use crate::driver::{Device, DeviceMemory, DevicePointer, Event};
use crate::error::Result;

/// Places of a ring.
const PLACES: usize = 4;

/// One place, and the events that order its use.
pub(super) struct Place {
    pub(super) address: DevicePointer,
    /// Recorded by whoever has filled it.
    pub(super) full: Event,
    /// Recorded by whoever has emptied it; before the first use, it stands for nothing.
    pub(super) empty: Event,
}

pub(super) struct Ring {
    places: Vec<Place>,
    next: usize,
    tiles: u64,
    _memory: DeviceMemory,
}

impl Ring {
    /// A ring of about that many bytes; half as many, and so on, where the device lacks them.
    pub(super) fn new(device: &Arc<Device>, nbytes: usize) -> Result<Self> {
        let least = PLACES * TILE_BYTES;
        let mut nbytes = nbytes.max(least);
        let (memory, tiles) = loop {
            let tiles = nbytes / least;
            match DeviceMemory::new(device, tiles * least) {
                Ok(memory) => break (memory, tiles),
                Err(error) if error.is_sticky() || tiles == 1 => return Err(error),
                Err(_) => nbytes /= 2,
            }
        };
        let place = |index: usize| -> Result<Place> {
            Ok(Place {
                address: memory.address() + (index * tiles * TILE_BYTES) as u64,
                full: Event::new(device)?,
                empty: Event::new(device)?,
            })
        };
        Ok(Self {
            places: (0..PLACES).map(place).collect::<Result<_>>()?,
            next: 0,
            tiles: tiles as u64,
            _memory: memory,
        })
    }

    /// Tiles of a place.
    pub(super) fn tiles(&self) -> u64 {
        self.tiles
    }

    /// Where the place after `turn` others lies.
    pub(super) fn ahead(&self, turn: usize) -> DevicePointer {
        self.places[(self.next + turn) % PLACES].address
    }

    /// The next place; its users wait for `empty` before they fill it.
    pub(super) fn turn(&mut self) -> &Place {
        let place = &self.places[self.next];
        self.next = (self.next + 1) % PLACES;
        place
    }
}
