//! Random lists of pieces, and the memory they lie in.

use hybrid_pages_cuda::kernels::abi::{Packed, Strided, TILE_BYTES};

use crate::random::Random;

const TILE: u64 = TILE_BYTES as u64;

/// A list does not get longer than about this.
const MANY: usize = 40;

/// A piece whose address is an offset in a region.
#[derive(Debug, Clone, Copy)]
pub struct Placed<P> {
    pub region: usize,
    pub piece: P,
}

/// Two lists over the same line.
pub struct Lists {
    pub strided: Vec<Placed<Strided>>,
    pub packed: Vec<Placed<Packed>>,
    /// Bytes of each region.
    pub regions: Vec<u64>,
    /// The tiles in which anything lies.
    pub tiles: std::ops::Range<u64>,
}

impl Lists {
    /// `shared`: strided pieces may hold the same byte of memory several times.
    pub fn random(random: &mut Random, entries: u64, shared: bool) -> Self {
        let grain = 1 << random.below(5);
        let first = match random.below(100) {
            0..50 => 0,
            50..75 => random.below(6),
            75..90 => (1 << 32) / TILE - 1 - random.below(3),
            _ => (1 << 24) + random.below(1 << 24),
        };
        let mut maker = Maker {
            random,
            grain,
            shared,
            regions: Vec::new(),
        };
        let (mut strided, mut packed, mut tile) = (Vec::new(), Vec::new(), first);
        for _ in 0..entries {
            let bytes = maker.entry_bytes();
            let cover = maker.cover(tile * TILE, bytes);
            let other = if maker.random.chance(80) {
                cover.clone()
            } else {
                maker.cover(tile * TILE, bytes)
            };
            maker.strided(&cover, &mut strided);
            maker.packed(&other, &mut packed);
            tile += bytes.div_ceil(TILE);
            if maker.random.chance(20) {
                let most = maker.random.pick(&[2, 40]);
                tile += maker.random.size(most);
            }
        }
        Self {
            strided,
            packed,
            regions: maker.regions,
            tiles: first..tile,
        }
    }
}

impl Lists {
    /// Drops the pieces beside a launch, and lets those at its ends reach far beyond it on the line.
    /// There is no memory for what lies outside the launch.
    pub fn reach_out(&mut self, random: &mut Random, tiles: std::ops::Range<u64>) {
        let (start, end) = (tiles.start * TILE, tiles.end * TILE);
        let meets = |position, bytes| position < end && start < position + bytes;
        self.strided
            .retain(|placed| meets(placed.piece.position, placed.piece.bytes));
        self.packed
            .retain(|placed| meets(placed.piece.position, placed.piece.bytes));

        if let Some(Placed { piece, .. }) = self.strided.first_mut()
            && piece.position <= start
        {
            let most = widen(random, piece);
            let run = u64::from(piece.run);
            let more = random.below(most.min(piece.position / run) + 1);
            let back = more.wrapping_mul(piece.stride as u64);
            piece.address = piece.address.wrapping_sub(back);
            piece.position -= more * run;
            piece.bytes += more * run;
        }
        if let Some(Placed { piece, .. }) = self.strided.last_mut()
            && piece.position + piece.bytes >= end
        {
            let most = widen(random, piece);
            piece.bytes += random.below(most) * u64::from(piece.run);
        }
        if let Some(Placed { piece, .. }) = self.packed.first_mut()
            && piece.position <= start
        {
            let more = random.below(piece.position + 1);
            piece.address = piece.address.wrapping_sub(more);
            piece.position -= more;
            piece.bytes += more;
        }
        if let Some(Placed { piece, .. }) = self.packed.last_mut()
            && piece.position + piece.bytes >= end
        {
            piece.bytes += match random.below(2) {
                0 => random.below(1 << 36),
                // What is left is then little more than a multiple of 2^32.
                _ => ((1 + random.below(16)) << 32) - random.below(TILE),
            };
        }
    }
}

/// Readies a piece for more runs, and says for how many its addresses suffice.
fn widen(random: &mut Random, piece: &mut Strided) -> u64 {
    if piece.runs() == 1 {
        piece.stride = random.below(1 << 12) as i64 - (1 << 11);
    }
    ((1 << 40) / (piece.stride.unsigned_abs() + 1)).clamp(1, 1 << 30)
}

struct Maker<'a> {
    random: &'a mut Random,
    /// Most positions, addresses, runs and strides are multiples of this.
    grain: u64,
    shared: bool,
    regions: Vec<u64>,
}

impl Maker<'_> {
    fn entry_bytes(&mut self) -> u64 {
        match self.random.below(100) {
            0..30 => 1 + self.random.below(256),
            30..65 => 1 + self.random.below(TILE),
            65..80 => TILE * (1 + self.random.below(3)) - 1 + self.random.below(3),
            80..92 => 1 + self.random.below(3 * TILE),
            _ => 1 + self.random.below(12 * TILE),
        }
    }

    /// A multiple of the grain, most of the time; at most `most`, at least 1.
    fn grained(&mut self, size: u64, most: u64) -> u64 {
        let size = if self.random.chance(97) {
            size.next_multiple_of(self.grain)
        } else {
            size
        };
        size.clamp(1, most)
    }

    /// The stretches of an entry that a list covers.
    fn cover(&mut self, start: u64, bytes: u64) -> Vec<(u64, u64)> {
        let end = start + bytes;
        if self.random.chance(75) {
            return vec![(start, end)];
        }
        let (mut position, mut cover) = (start, Vec::new());
        while position < end {
            let left = end - position;
            let size = self.random.size(bytes);
            let stretch = self.grained(size, left);
            if self.random.chance(60) {
                cover.push((position, position + stretch));
            }
            position += stretch;
        }
        cover
    }

    fn strided(&mut self, cover: &[(u64, u64)], list: &mut Vec<Placed<Strided>>) {
        let most = self.random.size(1 << 18);
        for &(start, end) in cover {
            let mut position = start;
            while position < end {
                let run = if list.len() < MANY {
                    self.random.size(most)
                } else {
                    end - position
                };
                let run = self.grained(run, end - position);
                let placed = self.strided_piece(position, run, end - position);
                position += placed.piece.bytes;
                list.push(placed);
            }
        }
    }

    fn strided_piece(&mut self, position: u64, run: u64, most: u64) -> Placed<Strided> {
        let mut runs = 1;
        if self.random.chance(75) {
            let most = (most / run).min(self.random.pick(&[2, 3, 7, 33, 20_000, 40_000]));
            runs = self.random.size(most);
        }
        let stride = self.stride(run, runs);
        let reach = (runs as i64 - 1).wrapping_mul(stride);
        let (region, offset) = self.place(run + reach.unsigned_abs());
        let piece = Strided {
            position,
            address: offset.wrapping_sub(reach.min(0) as u64),
            bytes: run * runs,
            stride,
            run: run as u32,
            reserved: 0,
        };
        Placed { region, piece }
    }

    /// A stride that lets runs overlap only where that is allowed; of one run, any.
    fn stride(&mut self, run: u64, runs: u64) -> i64 {
        let repeats = runs - 1;
        if repeats == 0 {
            return match self.random.below(4) {
                0 => self.random.next() as i64,
                1 => self.random.below(64) as i64,
                _ => 0,
            };
        }
        let mut step = run;
        if self.shared && self.random.chance(10) {
            step = self.random.below(run);
        } else if self.random.chance(50) {
            let most = (1 << 16) / repeats;
            let gap = self.random.size(256);
            step += self.grained(gap, u64::MAX).min(most);
        }
        if self.random.chance(25) {
            -(step as i64)
        } else {
            step as i64
        }
    }

    fn packed(&mut self, cover: &[(u64, u64)], list: &mut Vec<Placed<Packed>>) {
        let most = self.random.size(1 << 19);
        for &(start, end) in cover {
            let mut position = start;
            while position < end {
                let mut bytes = end - position;
                if list.len() < MANY {
                    let size = self.random.size(most);
                    bytes = self.grained(size, bytes);
                }
                let (region, address) = self.place(bytes);
                let piece = Packed {
                    position,
                    address,
                    bytes,
                };
                list.push(Placed { region, piece });
                position += bytes;
            }
        }
    }

    /// Room for so many bytes: a region of their own, or more of the last one.
    fn place(&mut self, bytes: u64) -> (usize, u64) {
        if self.regions.is_empty() || self.random.chance(70) {
            self.regions.push(0);
        }
        let region = self.regions.len() - 1;
        let gap = match self.random.below(4) {
            0 => self.random.below(40),
            _ => 0,
        };
        let end = self.regions[region] + gap;
        let offset = if self.random.chance(90) {
            end.next_multiple_of(self.grain)
        } else {
            end
        };
        self.regions[region] = offset + bytes;
        (region, offset)
    }
}
