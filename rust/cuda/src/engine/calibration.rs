//! Measures the cost of each method once per device, and keeps it.

use std::fs;
use std::path::Path;
use std::time::Instant;

use hybrid_pages::transfer::{Direction, TILE_BYTES};
use serde::{Deserialize, Serialize};

use crate::cache_dir::{self, cache_dir};
use crate::driver::{DeviceMemory, Event, HostMemory};
use crate::error::Result;
use crate::kernels::abi::{Packed, Strided};
use crate::line::{Copy, Line};

use super::costs::{Calibration, Costs};
use super::lane::{Given, Slots};
use super::lanes::{Failed, Lanes};
use super::method::Method;
use super::options::Options;

/// Changes with the code that it measures.
const VERSION: u32 = 1;
const SMALL: usize = TILE_BYTES;
const MANY: usize = 256;
const LARGE: usize = 8 << 20;
const TIMES: usize = 5;

/// The machine and version that a calibration holds for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Conditions {
    version: u32,
    package: String,
    device: String,
    driver: i32,
    share: f64,
    staging_bytes: usize,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    conditions: Conditions,
    calibration: Calibration,
}

/// The calibration that was kept for these conditions, or a new one, which is kept. A file that cannot
/// be read or is of other conditions is measured again.
pub(super) fn calibrate(
    lanes: &mut Lanes,
    methods: &[Method],
    options: &Options,
    warnings: &mut Vec<String>,
) -> Result<Calibration> {
    let device = lanes.device();
    let conditions = Conditions {
        version: VERSION,
        package: env!("CARGO_PKG_VERSION").to_owned(),
        device: device.description().uuid.clone(),
        driver: device.driver().version(),
        share: options.share,
        staging_bytes: options.staging_bytes,
    };
    let path = cache_dir(options.cache_dir.as_deref())
        .map(|directory| directory.join(format!("calibration-{}.json", conditions.device)));
    if let Some(kept) = path.as_deref().and_then(|path| read(path, &conditions)) {
        let complete = |method: &Method| {
            [Direction::Store, Direction::Load]
                .iter()
                .all(|direction| kept.costs(*direction, *method).is_some())
        };
        if methods.iter().all(complete) {
            return Ok(kept);
        }
    }
    let calibration = measure(lanes, methods)?;
    if let Some(path) = path {
        let kept = Kept {
            conditions,
            calibration: calibration.clone(),
        };
        let written = serde_json::to_vec_pretty(&kept).map_err(Into::into);
        let written = written.and_then(|text| cache_dir::write(&path, &text));
        if let Err(error) = written {
            warnings.push(format!(
                "the calibration could not be kept in {}: {error}: it is measured again next \
                     time",
                path.display()
            ));
        }
    }
    Ok(calibration)
}

fn read(path: &Path, expected: &Conditions) -> Option<Calibration> {
    let text = fs::read_to_string(path).ok()?;
    let kept: Kept = serde_json::from_str(&text).ok()?;
    let usable = kept.conditions == *expected && kept.calibration.is_sound();
    usable.then_some(kept.calibration)
}

/// Pieces of one size at twice their size from each other on the device, packed on the host.
struct Shape {
    pieces: usize,
    bytes: usize,
}

fn measure(lanes: &mut Lanes, methods: &[Method]) -> Result<Calibration> {
    let device = DeviceMemory::new(lanes.device(), 2 * LARGE)?;
    let host = HostMemory::new(lanes.device(), LARGE)?;
    let mut costs = Vec::new();
    for direction in [Direction::Store, Direction::Load] {
        for &method in methods {
            let mut seconds = |pieces, bytes| {
                let shape = Shape { pieces, bytes };
                median(lanes, &device, &host, direction, method, &shape)
            };
            let one = seconds(1, SMALL)?;
            let many = seconds(MANY, SMALL)?;
            let large = seconds(1, LARGE)?;
            costs.push((direction, method, fit(method, one, many, large)));
        }
    }
    // A copy of the ring costs as much as any other.
    for index in 0..costs.len() {
        let (direction, method, _) = costs[index];
        let copy = costs
            .iter()
            .find(|c| c.0 == direction && c.1 == Method::Copy);
        if let (Method::Staged, Some(per_copy)) = (method, copy.map(|c| c.2.per_copy)) {
            costs[index].2.per_copy = per_copy;
        }
    }
    Ok(Calibration::from_costs(costs))
}

fn fit(method: Method, one: f64, many: f64, large: f64) -> Costs {
    let (small, all) = (SMALL as f64, (MANY * SMALL) as f64);
    let mut per_byte = ((large - one) / (LARGE as f64 - small)).max(0.0);
    let mut per_copy = 0.0;
    match method {
        Method::Copy => {
            per_copy = ((many - one - per_byte * (all - small)) / (MANY - 1) as f64).max(0.0);
        }
        Method::Kernel | Method::Staged => {
            per_byte = per_byte.max((many - one) / (all - small));
        }
    }
    Costs {
        fixed: (one - per_copy - per_byte * small).max(0.0),
        per_copy,
        per_byte,
    }
}

fn median(
    lanes: &mut Lanes,
    device: &DeviceMemory,
    host: &HostMemory,
    direction: Direction,
    method: Method,
    shape: &Shape,
) -> Result<f64> {
    let address = host.host().addr().get() as u64;
    let total = shape.pieces * shape.bytes;
    debug_assert!(2 * total <= device.nbytes() && total <= host.nbytes());
    let stride = 2 * shape.bytes;
    let line = Line {
        strided: vec![Strided {
            position: 0,
            address: device.address(),
            bytes: total as u64,
            run: shape.bytes as u32,
            extent: [1, 1, 1, shape.pieces as u32],
            reserved: 0,
            stride: [0, 0, 0, stride as i64],
        }],
        packed: vec![Packed {
            position: 0,
            address,
            bytes: total as u64,
        }],
        entries: vec![(0, total as u64)],
        tiles: total.div_ceil(TILE_BYTES) as u64,
        bytes: total as u64,
        partial: false,
    };
    let copies: Vec<Copy> = (0..shape.pieces)
        .map(|piece| Copy {
            engine: device.address() + (piece * stride) as u64,
            arena: address + (piece * shape.bytes) as u64,
            bytes: shape.bytes as u64,
        })
        .collect();
    let never = Event::new(lanes.device())?;
    let done = Event::new(lanes.device())?;
    let given = Given {
        method,
        line: &line,
        copies: &copies,
        slots: Slots {
            host: address,
            mapped: Some(host.mapped()),
        },
        digests: direction == Direction::Store,
        after: &never,
        done: &done,
    };
    let mut seconds = Vec::with_capacity(TIMES);
    for time in 0..=TIMES {
        let started = Instant::now();
        let mut kept = None;
        // SAFETY: the line and the copies lie in the two buffers, which outlive the wait.
        let enqueued = unsafe { lanes.enqueue(direction, &given, &mut kept) };
        enqueued.map_err(|(Failed::This(error) | Failed::Device(error))| error)?;
        lanes.wait(&done)?;
        // The first time is slower: the driver sets things up.
        if time > 0 {
            seconds.push(started.elapsed().as_secs_f64());
        }
        lanes.give_back(kept);
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[TIMES / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_found_again_from_what_they_cost() {
        let costs = Costs {
            fixed: 5e-6,
            per_copy: 2e-6,
            per_byte: 2e-11,
        };
        let (small, large) = (SMALL as u64, LARGE as u64);
        let found = fit(
            Method::Copy,
            costs.of(1, small),
            costs.of(MANY as u64, MANY as u64 * small),
            costs.of(1, large),
        );
        assert!((found.fixed - costs.fixed).abs() < 1e-9, "{found:?}");
        assert!((found.per_copy - costs.per_copy).abs() < 1e-9, "{found:?}");
        assert!((found.per_byte - costs.per_byte).abs() < 1e-14, "{found:?}");
    }

    #[test]
    fn no_cost_is_negative() {
        for method in Method::ALL {
            let found = fit(method, 3e-3, 1e-3, 2e-3);
            let least = found.fixed.min(found.per_copy).min(found.per_byte);
            assert!(least >= 0.0, "{method}: {found:?}");
        }
    }
}
