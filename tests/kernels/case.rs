//! One launch: what it is given, what its twin makes of it, and how the harness differs.

use std::fmt;

use hybrid_pages_cuda::kernels::abi::{Packed, Strided};
use hybrid_pages_cuda::kernels::twin;

use crate::harness::{Answer, Harness};
use crate::lists::{Lists, Placed};
use crate::random::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    Gather,
    Scatter,
    Digest,
}

#[derive(Debug, Clone, Copy)]
pub enum Order {
    Forward,
    Reversed,
    Shuffled,
}

/// The shape of random launches.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Blocks have at least so many threads.
    pub threads: u64,
    /// Percent of launches whose threads run at the same time.
    pub together: u64,
}

impl Limits {
    /// For finding races.
    pub const TOGETHER: Self = Self {
        threads: 2,
        together: 100,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads: 1,
            together: 5,
        }
    }
}

pub struct Case {
    pub seed: u64,
    pub kernel: Kernel,
    pub grid: u64,
    pub block: u64,
    pub blocks: Order,
    pub together: bool,
    pub threads: Order,
    pub first_tile: u64,
    pub tile_count: u64,
    pub digests: bool,
    pub regions: Vec<Vec<u8>>,
    pub strided: Vec<Placed<Strided>>,
    pub packed: Vec<Placed<Packed>>,
}

impl Case {
    pub fn random(seed: u64, limits: Limits) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let kernel = random.pick(&[
            Kernel::Gather,
            Kernel::Gather,
            Kernel::Scatter,
            Kernel::Scatter,
            Kernel::Digest,
        ]);
        let entries = random.pick(&[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 4]);
        let mut lists = Lists::random(random, entries, kernel != Kernel::Scatter);
        let (first_tile, tile_count) = tiles(random, &lists.tiles);
        if random.chance(30) {
            lists.reach_out(random, first_tile..first_tile + tile_count);
        }
        let orders = [Order::Forward, Order::Reversed, Order::Shuffled];
        let block = match random.below(1000) {
            0..500 => 1,
            500..950 => 2 + random.below(7),
            950..997 => 9 + random.below(40),
            _ => 512,
        };
        let regions = lists.regions.iter();
        Self {
            seed,
            kernel,
            grid: match random.below(10) {
                0..4 => 1,
                4..9 => 1 + random.below(6),
                _ => tile_count + random.below(3).max(1),
            },
            block: block.max(limits.threads),
            blocks: random.pick(&orders),
            together: random.chance(limits.together),
            threads: random.pick(&orders),
            first_tile,
            tile_count,
            digests: random.chance(if kernel == Kernel::Digest { 97 } else { 60 }),
            regions: regions.map(|bytes| random.bytes(*bytes as usize)).collect(),
            strided: lists.strided,
            packed: lists.packed,
        }
    }

    /// How the kernel's work differs from its twin's.
    pub fn difference(&self, harness: &mut Harness) -> Option<String> {
        if let Err(why) = harness.send(self) {
            return Some(why);
        }
        let expected = self.twin();
        let found = match harness.receive(self) {
            Ok(answer) => answer,
            Err(why) => return Some(why),
        };
        for (region, (expected, found)) in expected.regions.iter().zip(&found.regions).enumerate() {
            if expected != found {
                let differ = |at: &usize| expected[*at] != found[*at];
                let mut bytes = (0..expected.len()).filter(differ);
                let at = bytes.next().expect("they differ");
                let more = bytes.count();
                return Some(format!(
                    "region {region}, byte {at}: expected {:#04x}, found {:#04x}; {more} more",
                    expected[at], found[at]
                ));
            }
        }
        let mut digests = expected.digests.iter().zip(&found.digests).enumerate();
        let (tile, (expected, found)) = digests.find(|(_, (expected, found))| expected != found)?;
        Some(format!(
            "digest {tile}: expected {expected:#018x}, found {found:#018x}"
        ))
    }

    /// The expected result of the launch.
    fn twin(&self) -> Answer {
        let mut regions = self.regions.clone();
        let bases: Vec<u64> = regions
            .iter_mut()
            .map(|region| region.as_mut_ptr().expose_provenance() as u64)
            .collect();
        let strided = self.strided.iter().map(|placed| {
            let mut piece = placed.piece;
            piece.address = piece.address.wrapping_add(bases[placed.region]);
            piece
        });
        let packed = self.packed.iter().map(|placed| {
            let mut piece = placed.piece;
            piece.address = piece.address.wrapping_add(bases[placed.region]);
            piece
        });
        let (strided, packed): (Vec<_>, Vec<_>) = (strided.collect(), packed.collect());
        twin::check(&strided, &packed).unwrap_or_else(|why| panic!("{why}\n{self}"));
        let (first, count) = (self.first_tile, self.tile_count);
        let mut digests = vec![0; if self.digests { count as usize } else { 0 }];
        let noted = self.digests.then_some(digests.as_mut_slice());
        match self.kernel {
            // SAFETY: `lists.rs` lays every piece into its region, and no two where one is written.
            Kernel::Gather => unsafe { twin::gather(&strided, &packed, first, count, noted) },
            // SAFETY: as above.
            Kernel::Scatter => unsafe { twin::scatter(&strided, &packed, first, count, noted) },
            Kernel::Digest => {
                if let Some(digests) = noted {
                    // SAFETY: as above.
                    unsafe { twin::digest(&strided, first, count, digests) };
                }
            }
        }
        Answer { regions, digests }
    }
}

/// All tiles, some, none, or more than there are.
fn tiles(random: &mut Random, tiles: &std::ops::Range<u64>) -> (u64, u64) {
    let count = tiles.end - tiles.start;
    match random.below(20) {
        0..12 => (tiles.start, count),
        12..17 => {
            let skip = random.below(count.max(1));
            (tiles.start + skip, 1 + random.below(count.max(1) - skip))
        }
        17 => (tiles.start, 0),
        18 => (tiles.start.saturating_sub(2), count + 3),
        _ => (tiles.end, random.below(3)),
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 12;
        let threads = if self.together {
            "together".into()
        } else {
            format!("{:?}", self.threads)
        };
        writeln!(
            f,
            "{:?} of tiles {:#x}..+{}, digests {}; grid {} {:?}, block {} {threads}",
            self.kernel,
            self.first_tile,
            self.tile_count,
            self.digests,
            self.grid,
            self.blocks,
            self.block,
        )?;
        for (region, bytes) in self.regions.iter().enumerate().take(SHOWN) {
            writeln!(f, "  region {region}: {} bytes", bytes.len())?;
        }
        for Placed { region, piece } in self.strided.iter().take(SHOWN) {
            writeln!(
                f,
                "  strided {:#x}: {} bytes in region {region} from {}, runs of {} by {}",
                piece.position, piece.bytes, piece.address, piece.run, piece.stride
            )?;
        }
        for Placed { region, piece } in self.packed.iter().take(SHOWN) {
            writeln!(
                f,
                "  packed {:#x}: {} bytes in region {region} from {}",
                piece.position, piece.bytes, piece.address
            )?;
        }
        let shown = |count: usize| count.saturating_sub(SHOWN);
        let more = shown(self.regions.len()) + shown(self.strided.len()) + shown(self.packed.len());
        write!(f, "  and {more} more lines")
    }
}
