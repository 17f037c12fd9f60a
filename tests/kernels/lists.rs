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
            let more = random.below(most.min(piece.position / slice(piece)) + 1);
            let back = more.wrapping_mul(piece.stride[0] as u64);
            piece.address = piece.address.wrapping_sub(back);
            piece.position -= more * slice(piece);
            lengthen(piece, more);
        }
        if let Some(Placed { piece, .. }) = self.strided.last_mut()
            && piece.position + piece.bytes >= end
        {
            let most = widen(random, piece);
            let more = random.below(most);
            lengthen(piece, more);
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

/// Bytes of one index of the outermost level.
fn slice(piece: &Strided) -> u64 {
    piece.bytes / u64::from(piece.extent[0])
}

/// Readies the outermost level for more, and says for how many its addresses suffice.
fn widen(random: &mut Random, piece: &mut Strided) -> u64 {
    if piece.extent[0] == 1 {
        piece.stride[0] = random.below(1 << 12) as i64 - (1 << 11);
    }
    ((1 << 40) / (piece.stride[0].unsigned_abs() + 1)).clamp(1, 1 << 30)
}

fn lengthen(piece: &mut Strided, more: u64) {
    piece.bytes += more * slice(piece);
    piece.extent[0] += more as u32;
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
        let rank = self.random.below(5) as usize;
        let mut extent = [1; 4];
        let mut bytes = run;
        for level in (4 - rank..4).rev() {
            let most = (most / bytes).min(self.random.pick(&[1, 2, 3, 7, 33, 20_000]));
            extent[level] = self.random.size(most) as u32;
            bytes *= u64::from(extent[level]);
        }
        let stride = self.strides(run, extent);
        let (mut low, mut high) = (0, run as i64);
        for (extent, stride) in extent.iter().zip(stride) {
            let reach = i64::from(extent - 1).wrapping_mul(stride);
            (low, high) = (low + reach.min(0), high + reach.max(0));
        }
        let (region, offset) = self.place((high - low) as u64);
        let piece = Strided {
            position,
            address: offset.wrapping_sub(low as u64),
            bytes,
            run: run as u32,
            extent,
            reserved: 0,
            stride,
        };
        Placed { region, piece }
    }

    /// Strides that nest the levels in any order, or let them overlap where that is allowed.
    fn strides(&mut self, run: u64, extent: [u32; 4]) -> [i64; 4] {
        let mut stride = [0; 4];
        let mut size = run;
        let mut levels = [3, 2, 1, 0];
        if self.random.chance(40) {
            for i in (1..4).rev() {
                levels.swap(i, self.random.below(i as u64 + 1) as usize);
            }
        }
        for level in levels {
            let repeats = u64::from(extent[level] - 1);
            if repeats == 0 {
                if self.random.chance(50) {
                    stride[level] = self.random.next() as i64;
                }
                continue;
            }
            let mut step = size;
            if self.shared && self.random.chance(10) {
                step = self.random.below(size);
            } else if self.random.chance(50) {
                let most = (1 << 16) / repeats;
                let gap = self.random.size(256);
                step += self.grained(gap, u64::MAX).min(most);
            }
            size += repeats * step;
            stride[level] = step as i64;
            if self.random.chance(25) {
                stride[level] = -stride[level];
            }
        }
        stride
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
