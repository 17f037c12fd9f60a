//! When a checkpoint is likely to be used next: hazards by age, learned online, and Gittins indexes from them.
//!
//! A *bin* is an interval of a checkpoint's age; bins are spaced by the square root of two, below a second by two. A
//! *hazard* is the number of uses expected within a bin (a Poisson rate) of a checkpoint that was not used before. It
//! is a product of factors, one for each feature of the checkpoint; each factor is one number of a small table. After
//! a bin has passed, a factor moves by the surprise (outcome less prediction) over the uses that were expected of it so
//! far: the diagonal of Newton's method, with no rate to tune and a prior that fades. At the start hazards are equal in
//! every bin: the scale-free law under which least recently used is right. Checkpoints that two requests have wanted,
//! and the ends of named sessions, start higher.

use super::origin::{CheckpointKind, Origin, Standing};

/// Number of bins: from milliseconds to a month, as entries on disks live long.
pub(super) const BINS: usize = EARLY + 44;
/// Number of bins below a second, each an octave; the others are half an octave.
pub(super) const EARLY: usize = 6;
/// Number of features, and so of factors, of a checkpoint.
const FEATURES: usize = 7;
/// Number of places in the table of each factor.
const SIZES: [u16; FEATURES] = [16 * BINS as u16, 300, 128, 64, 64, 64, 256];
/// The place at which the table of each factor begins.
const OFFSETS: [u16; FEATURES] = {
    let mut offsets = [0; FEATURES];
    let mut feature = 1;
    while feature < FEATURES {
        offsets[feature] = offsets[feature - 1] + SIZES[feature - 1];
        feature += 1;
    }
    offsets
};
/// Number of places in all tables together.
pub(super) const LEARNT: usize = (OFFSETS[FEATURES - 1] + SIZES[FEATURES - 1]) as usize;
/// Length of the arrays of all tables: a power of two, so that a mask keeps an index within and nothing has to check
/// it.
const PLACES: usize = 2048;
const _: () = assert!(LEARNT <= PLACES);
// Runs of the first factor's table, which has a place for each bin in each run: the run of each kind of checkpoint.
const END: u16 = 0;
const FORK: u16 = 1;
const BEFORE: u16 = 2;
const PASSED: u16 = 8;
const CONTINUED: u16 = 9;
const NAMED: u16 = 15;
/// The number behind those of all [`Standing`]s: it marks an end whose session went on elsewhere.
const GONE_ON: u16 = 4;
/// Hazard of half an octave before anything was learned.
const PRIOR: f32 = 0.05;
/// How much likelier it is, at the start, that a checkpoint that was wanted before is wanted again.
const AGAIN: f32 = 2.0;
/// Weight of the prior, in expected uses.
const WEIGHT: f32 = 5.0;
/// The highest hazard of a bin.
const MOST: f32 = 4.5;
/// A factor stays between this and its inverse.
pub(super) const MOST_FACTOR: f32 = 1e6;
/// End of the first half octave, in milliseconds, as a power of two.
const FIRST: f64 = 10.0;

/// Ends of the bins, in half octaves after the first one.
const HALF_OCTAVES: [i32; BINS] = {
    let mut ends = [0; BINS];
    let mut bin = 0;
    while bin < BINS {
        let after = bin as i32 - EARLY as i32;
        ends[bin] = if after < 0 { 2 * after } else { after };
        bin += 1;
    }
    ends
};

/// The features of a checkpoint: for each factor, the place of its number at age 0 in the arrays of all tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Features([u16; FEATURES]);

fn octave(value: u32, most: u32) -> u16 {
    (u32::BITS - 1 - value.saturating_add(1).leading_zeros()).min(most) as u16
}

/// Twice the binary logarithm.
fn half_octave(value: u32) -> u16 {
    (2.0 * (value.max(1) as f64).log2()) as u16
}

/// Four times the binary logarithm, from 2^7 to 2^20.
fn quarter_octave(value: u32) -> u16 {
    ((4.0 * (value.max(1) as f64).log2()) as u16).clamp(30, 80) - 30
}

impl Features {
    pub(super) const NONE: Self = Self([0; FEATURES]);

    /// The features of a checkpoint of a kind and origin that was used so many times.
    pub(super) fn new(kind: CheckpointKind, hits: u16, origin: &Origin) -> Self {
        // The run of the first factor, and the group by which the others are told apart.
        let (run, group) = match kind {
            CheckpointKind::End if origin.standing == Standing::Unnamed => (END, 0),
            CheckpointKind::End | CheckpointKind::Left => (NAMED, 0),
            CheckpointKind::Fork => (FORK, 1),
            CheckpointKind::Before(blocks) => (
                BEFORE + ((u32::BITS - (blocks - 1).leading_zeros()).min(5) as u16),
                2,
            ),
            CheckpointKind::Passed => (PASSED, 3),
            CheckpointKind::Continued => (
                CONTINUED + (u16::BITS - hits.saturating_sub(1).leading_zeros()).min(5) as u16,
                4,
            ),
        };
        let first = u16::from(origin.turn > 0);
        let standing = if kind == CheckpointKind::Left {
            GONE_ON
        } else {
            origin.standing as u16
        };
        let output = octave(origin.output_tokens, 11);
        let is_end = group == 0;
        let pace = |value: u32| {
            if is_end {
                1 + half_octave(value).min(60)
            } else {
                0
            }
        };
        let values = [
            run * BINS as u16,
            (standing * 12 + origin.turn.min(11) as u16) * 5 + group,
            (octave(origin.added, 11) * 2 + first) * 5 + group,
            pace(origin.output_tokens.saturating_add(8)),
            if origin.gap > 0 {
                pace(origin.gap.max(256))
            } else {
                0
            },
            output * 5 + group,
            quarter_octave(origin.tokens) * 5 + group,
        ];
        Self(std::array::from_fn(|feature| {
            OFFSETS[feature] + values[feature]
        }))
    }

    /// The places of the features' numbers in a bin.
    fn at(&self, bin: usize) -> [usize; FEATURES] {
        let mut places = self.0.map(usize::from);
        places[0] += bin;
        if let Some([output, gap]) = self.paces() {
            (places[3], places[4]) = (output.at(bin), gap.at(bin));
        }
        places.map(|place| place & (PLACES - 1))
    }

    /// The two features of an end of a prompt that depend on its age: as a multiple of the output's length and of the
    /// gap before.
    fn paces(&self) -> Option<[AgeFeature; 2]> {
        (self.0[3] > OFFSETS[3]).then(|| {
            [3, 4].map(|feature| AgeFeature {
                offset: OFFSETS[feature].into(),
                value: (self.0[feature] - OFFSETS[feature]).into(),
            })
        })
    }
}

/// A feature that compares an age with a value: by how many half octaves the age is beyond it. Place 0 is for
/// checkpoints that have no such value.
#[derive(Debug, Clone, Copy)]
struct AgeFeature {
    offset: i32,
    value: i32,
}

impl AgeFeature {
    fn at(self, bin: usize) -> usize {
        let place = if self.value > 0 {
            (HALF_OCTAVES[bin] + 60 - self.value).clamp(1, 60)
        } else {
            0
        };
        (self.offset + place) as usize
    }
}

/// The learned hazards of all checkpoints.
#[derive(Debug)]
pub(super) struct Hazards {
    factors: Box<[f32; PLACES]>,
    /// Uses that were expected of each factor so far.
    exposed: Box<[f32; PLACES]>,
    /// Ends and lengths of the bins in milliseconds.
    ends: [u64; BINS],
    spans: [f32; BINS],
}

impl Hazards {
    pub(super) fn new() -> Self {
        let mut factors = Box::new([1.0; PLACES]);
        for (place, factor) in factors[..SIZES[0].into()].iter_mut().enumerate() {
            let (run, bin) = ((place / BINS) as u16, place % BINS);
            let octave = if bin < EARLY { 2.0 } else { 1.0 };
            let wanted = run == FORK || (CONTINUED..=NAMED).contains(&run);
            *factor = PRIOR * octave * if wanted { AGAIN } else { 1.0 };
        }
        let ends: [f64; BINS] =
            std::array::from_fn(|bin| (FIRST + f64::from(HALF_OCTAVES[bin]) / 2.0).exp2());
        let start = |bin: usize| bin.checked_sub(1).map_or(0.0, |before| ends[before]);
        Self {
            factors,
            exposed: Box::new([0.0; PLACES]),
            ends: ends.map(|end| end as u64),
            spans: std::array::from_fn(|bin| (ends[bin] - start(bin)) as f32),
        }
    }

    /// Age at which a bin ends.
    pub(super) const fn end(&self, bin: usize) -> u64 {
        self.ends[bin]
    }

    /// The bin of an age.
    pub(super) fn bin(&self, age: u64) -> usize {
        self.ends.partition_point(|&end| end <= age).min(BINS - 1)
    }

    /// The share of a bin that has passed at an age.
    pub(super) fn share(&self, bin: usize, age: u64) -> f32 {
        let span = self.spans[bin];
        (1.0 - (self.ends[bin] as f64 - age as f64) as f32 / span).clamp(0.0, 1.0)
    }

    /// Learns from a share of a bin in which a checkpoint was used at the end, or was not used.
    pub(super) fn learn(&mut self, features: &Features, bin: usize, share: f32, used: bool) {
        let places = features.at(bin);
        let [a, b, c, d, e, f, g] = places.map(|place| self.factors[place]);
        let rate = ((a * b) * (c * d)) * ((e * f) * g);
        let expected = rate.min(MOST) * share;
        let surprise = f32::from(u8::from(used)) - expected;
        let mut teach = |place: usize| {
            let exposed = self.exposed[place] + expected;
            self.exposed[place] = exposed;
            let step = surprise / (WEIGHT + exposed);
            let factor = self.factors[place] * (1.0 + step + step * step / 2.0);
            self.factors[place] = factor.clamp(1.0 / MOST_FACTOR, MOST_FACTOR);
        };
        teach(places[0]);
        // An event within a second tells about that second and nothing else.
        if bin >= EARLY {
            places[1..].iter().copied().for_each(teach);
        }
    }

    /// The Gittins index at the start of a bin: expected uses per millisecond held, for the horizon that makes this the
    /// most.
    pub(super) fn index(&self, features: &Features, bin: usize) -> f32 {
        let factor = |place: usize| self.factors[place & (PLACES - 1)];
        let places = features.0.map(usize::from);
        let paces = features.paces();
        let mut fixed = [1, 2, 5, 6]
            .map(|feature| factor(places[feature]))
            .iter()
            .product::<f32>();
        if paces.is_none() {
            fixed *= factor(places[3]) * factor(places[4]);
        }
        let (mut left, mut uses, mut held, mut best) = (1.0_f32, 0.0_f32, 0.0_f32, 0.0_f32);
        for bin in bin..BINS {
            let mut rate = fixed * factor(places[0] + bin);
            if let Some([output, gap]) = paces {
                rate *= factor(output.at(bin)) * factor(gap.at(bin));
            }
            let rate = rate.min(MOST);
            // 1 - exp(-x), within a hundredth up to 1.
            let used = 12.0 * rate / (12.0 + 6.0 * rate + rate * rate);
            uses += left * used;
            held += left * (1.0 - used / 2.0) * self.spans[bin];
            left *= 1.0 - used;
            let index = uses / held;
            if index > best {
                best = index;
            } else if index < best * 0.3 || left < 1e-3 {
                break;
            }
        }
        best
    }

    /// Expected uses from the start of one bin to the start of another, if none comes in between.
    pub(super) fn uses(&self, features: &Features, bins: std::ops::Range<usize>) -> f32 {
        let rate = |bin: usize| {
            let factors = features.at(bin).map(|place| self.factors[place]);
            factors.iter().product::<f32>().min(MOST)
        };
        bins.map(rate).sum()
    }

    /// The factors, and the uses that were expected of each.
    pub(super) fn learnt(&self) -> [&[f32]; 2] {
        [&self.factors[..LEARNT], &self.exposed[..LEARNT]]
    }

    /// Takes over factors that another instance has learned, and the uses expected of each.
    pub(super) fn recall(&mut self, factors: &[f32], exposed: &[f32]) {
        self.factors[..LEARNT].copy_from_slice(factors);
        self.exposed[..LEARNT].copy_from_slice(exposed);
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.factors) + size_of_val(&*self.exposed)
    }
}
